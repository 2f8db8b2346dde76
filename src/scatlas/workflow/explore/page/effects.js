// Effects of conditions as _effects.py packs them: how many genes each changes, and the genes of some.
import { readVarints } from "./atlas.js";

export class Effects {
  constructor(meta, numbers, genes) {
    Object.assign(this, meta, { numbers, genes });
    this.top = numbers.reduce((most, n) => Math.max(most, n - 1), 1);
    this.volcanoOf = new Map(this.shown.map((cell, i) => [cell, i]));
  }

  static async open(atlas) {
    const json = async (name) => JSON.parse(new TextDecoder().decode(await atlas.read(name)));
    let last = "";
    const genes = (await json("effects-genes"))
      .map((text) => (last = last.slice(0, text.charCodeAt(0) - 35) + text.slice(1)));
    return new Effects(await json("effects"), readVarints(await atlas.read("effects-numbers")), genes);
  }

  /** Genes that a condition changes in a group; -1 without a comparison. */
  number(row, column) {
    return this.numbers[row * this.groups.length + column] - 1;
  }

  /** Conditions whose names have a text. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    return [...this.rows.keys()].filter((row) => this.rows[row].toLowerCase().includes(wanted));
  }

  /** Conditions of the same compound, by dose; none if there are no others. */
  dosesOf(row) {
    const own = this.doses[row];
    if (!own) return [];
    const same = [...this.rows.keys()].filter((other) => this.doses[other]?.[0] === own[0]);
    return same.length < 2 ? [] : same.sort((a, b) => this.doses[a][1] - this.doses[b][1]);
  }

  /** Cell of a link, or null. */
  cellOf(text) {
    try {
      const [condition, group] = JSON.parse(text);
      const cell = [this.rows.indexOf(condition), this.groups.indexOf(group)];
      return Math.min(...cell) < 0 ? null : cell;
    } catch {
      return null; // a link that somebody has changed
    }
  }

  /** Genes of the volcano of a cell, the surest first; null if the page has none. */
  async volcano(atlas, row, column) {
    const i = this.volcanoOf.get(row * this.groups.length + column);
    if (i === undefined) return null;
    return atlas.once(`effect-${i}`, async () => this.genesOf(readVarints(await atlas.read(`effect-${i}`))));
  }

  genesOf([nSignificant, step, ...numbers]) {
    const n = numbers.length / 3;
    const [folds, heights] = this.steps;
    const genes = Array.from({ length: n }, (_, i) => {
      const code = numbers[n + i];
      return {
        name: this.genes[numbers[i]],
        fold: ((code % 2 ? -1 : 1) * Math.floor(code / 2)) / folds,
        height: numbers[2 * n + i] / heights,
        isSignificant: i < nSignificant,
      };
    });
    return { genes, step };
  }
}
