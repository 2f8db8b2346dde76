// Conditions beside their control: a heat map of the genes that each changes, the volcano plot of one,
// its genes, and the doses of its compound. On pages of atlases with effects alone, so that it comes
// last and adds to the explorer what others lack.
import { scheme, viridis, hexOfRgb } from "./colours.js";
import { Effects } from "./effects.js";
import { Explorer } from "./explorer.js";
import { howToAdd } from "./finder.js";
import { button, byId, element } from "./legend.js";
import { countOf, formatCount, formatNumber } from "./scales.js";

const ROW = 18; // pixels of a condition
const MIN_COLUMN = 8;
const NAMES_WIDTH = 150;
const MAX_GENES_LISTED = 15;
const UP = "#d55e00";
const DOWN = "#0072b2";

class EffectsPanel {
  constructor(explorer, effects) {
    Object.assign(this, { explorer, effects, rows: effects.find(""), cell: null, points: [], version: 0 });
    const canvas = (label) => element("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.heat = canvas("Heat map of the genes that conditions change");
    this.plot = canvas("Volcano plot");
    this.spacer = element("div", {});
    this.scroller = element("div", { class: "heat" }, this.heat, this.spacer);
    this.find = element("input", {
      type: "search", "aria-label": "Search a condition",
      placeholder: `Search ${countOf(effects.rows.length, "condition")}`,
    });
    this.title = element("p", { class: "chosen", role: "status" });
    this.doses = element("div", { class: "doses" });
    this.actions = element("div", { class: "row" });
    this.table = element("div", {});
    this.note = element("p", { class: "note" });
    const about = "Number of genes that differ from the control at a false discovery rate of 5%, by samples. "
      + "Empty: no comparison. Choose a field, or move by the arrows.";
    this.root = element("section", { id: "effects", "aria-labelledby": "effects-title" },
      element("h2", { id: "effects-title" }, `${effects.condition} beside ${effects.control}`),
      element("p", { class: "note" }, about), this.find, this.scroller, this.title, this.actions,
      this.doses, this.plot, this.note, this.table);
    this.root.hidden = true;
    document.querySelector("main aside").before(this.root);
    const toggle = () => this.show(this.root.hidden);
    this.toggle = button("Conditions", { id: "show-effects", "aria-pressed": "false", onclick: toggle });
    byId("two").before(this.toggle);
    this.listen();
  }

  listen() {
    const tip = byId("tip");
    const hide = () => (tip.hidden = true);
    this.find.addEventListener("input", () => {
      this.rows = this.effects.find(this.find.value);
      this.scroller.scrollTop = 0;
      this.draw();
    });
    this.scroller.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    this.heat.addEventListener("pointermove", (event) => {
      const cell = this.cellAt(event);
      this.tip(event, cell && this.textOf(...cell));
    });
    this.heat.addEventListener("click", (event) => {
      const cell = this.cellAt(event);
      if (cell) this.choose(cell);
    });
    this.heat.addEventListener("keydown", (event) => this.pressKey(event));
    this.plot.addEventListener("pointermove", (event) => {
      const gene = this.geneAt(event);
      this.tip(event, gene && `${gene.name}\nlog2 fold change ${formatNumber(gene.fold)}`);
    });
    this.plot.addEventListener("click", (event) => {
      const gene = this.geneAt(event);
      if (gene) this.colourBy(gene.name);
    });
    for (const canvas of [this.heat, this.plot]) canvas.addEventListener("pointerleave", hide);
  }

  tip(event, text) {
    const tip = byId("tip");
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, window.innerWidth - 220))}px`;
    tip.style.top = `${event.clientY + 14}px`;
  }

  textOf(row, column) {
    const { effects } = this;
    const n = effects.number(row, column);
    const said = n < 0 ? "no comparison" : countOf(n, "gene");
    return `${effects.rows[row]}, ${effects.groups[column]}: ${said}`;
  }

  setShown(isShown) {
    this.root.hidden = !isShown;
    this.toggle.setAttribute("aria-pressed", String(isShown));
  }

  show(isShown) {
    this.setShown(isShown);
    if (isShown) this.choose(this.cell ?? [0, this.strongestColumn(0)]);
    else this.explorer.saveLink();
  }

  strongestColumn(row) {
    const numbers = this.effects.groups.map((_, column) => this.effects.number(row, column));
    return numbers.indexOf(Math.max(...numbers));
  }

  /** What a link keeps. */
  get link() {
    const [row, column] = this.cell ?? [];
    return this.root.hidden || !this.cell ? null
      : JSON.stringify([this.effects.rows[row], this.effects.groups[column]]);
  }

  async choose(cell) {
    const version = ++this.version;
    const { effects, explorer } = this;
    const [row, column] = (this.cell = cell);
    this.title.textContent = this.textOf(row, column);
    this.heat.setAttribute("aria-label", `Heat map of conditions; chosen: ${this.title.textContent}`);
    const at = explorer.atlas.columnOf.get(effects.condition);
    const hasCells = at !== undefined && explorer.atlas.columns[at].levels.includes(effects.rows[row]);
    const only = { column: effects.condition, level: effects.rows[row] };
    const showCells = () => explorer.change(explorer.active, { only });
    const cells = button("Show its cells alone", { onclick: showCells });
    this.actions.replaceChildren(...(hasCells ? [cells] : []));
    this.draw();
    explorer.saveLink();
    const found = await effects.volcano(explorer.atlas, row, column);
    const doses = effects.dosesOf(row);
    const ofDoses = await Promise.all(doses.map((other) => effects.volcano(explorer.atlas, other, column)));
    if (version !== this.version) return;
    this.points = found?.genes ?? [];
    this.drawPlot();
    this.showDoses(doses, column, row);
    this.showGenes(doses, ofDoses);
    const which = found && found.step > 1 ? `Grey: one in ${found.step} of the other genes. ` : "";
    this.note.textContent = found
      ? `Each dot is a gene; coloured: a false discovery rate below 5%. ${which}`
        + "Click a gene to colour the map by it."
      : "The genes of this field are in effects.h5ad: the page has those of "
        + `${formatCount(effects.shown.length)} strongest ones.`;
  }

  showDoses(doses, column, row) {
    const { effects } = this;
    const most = Math.max(1, ...doses.map((other) => effects.number(other, column)));
    const parts = doses.map((other) => {
      const n = effects.number(other, column);
      const bar = element("span", { class: "dose-bar", "aria-hidden": "true" });
      bar.style.height = `${Math.round((34 * Math.max(0, n)) / most) + 1}px`;
      const text = `${effects.doses[other][2]}: ${n < 0 ? "none" : countOf(n, "gene")}`;
      return element("button", {
        type: "button", "aria-pressed": String(other === row), title: effects.rows[other],
        onclick: () => this.choose([other, column]),
      }, bar, text);
    });
    const caption = doses.length ? `Doses of ${effects.doses[row][0]}` : "";
    this.doses.replaceChildren(...(caption ? [element("strong", {}, caption), ...parts] : []));
  }

  showGenes(doses, ofDoses) {
    const listed = this.points.filter((gene) => gene.isSignificant).slice(0, MAX_GENES_LISTED);
    const names = doses.map((other) => this.effects.doses[other][2]);
    const foldOf = ofDoses.map((one) => new Map(one?.genes.map(({ name, fold }) => [name, fold])));
    const body = listed.map(({ name, fold }) => {
      const folds = doses.length ? foldOf.map((known) => known.get(name)) : [fold];
      return element("tr", {},
        element("th", { scope: "row" }, button(name, { class: "link", onclick: () => this.colourBy(name) })),
        ...folds.map((value) => foldCell(value)));
    });
    const heads = ["gene", ...(names.length ? names : ["log2 fold change"])];
    const head = heads.map((text) => element("th", { scope: "col" }, text));
    this.table.replaceChildren(...(listed.length ? [element("table", {},
      element("caption", {}, `Surest genes${names.length ? ": log2 fold change by dose" : ""}`),
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body))] : []));
  }

  colourBy(name) {
    const color = this.explorer.atlas.colour("gene", name);
    if (color) this.explorer.setColour(this.explorer.active, color);
    else this.note.textContent = howToAdd(name);
  }

  // Heat map --------------------------------------------------------------------------------------

  get columnWidth() {
    const room = this.scroller.clientWidth - NAMES_WIDTH;
    return Math.max(MIN_COLUMN, Math.min(60, room / this.effects.groups.length));
  }

  get headHeight() {
    const longest = Math.max(...this.effects.groups.map((name) => name.length));
    return Math.min(90, 14 + 5 * Math.min(longest, 15));
  }

  cellAt({ offsetX, offsetY }) {
    const column = Math.floor((offsetX - NAMES_WIDTH) / this.columnWidth);
    const row = this.rows[Math.floor((offsetY - this.headHeight + this.scroller.scrollTop) / ROW)];
    const isInside = offsetY >= this.headHeight && row !== undefined && column < this.effects.groups.length;
    return isInside ? [row, column < 0 ? this.strongestColumn(row) : column] : null;
  }

  pressKey(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const step = steps[event.key];
    if (!step || !this.rows.length) return;
    event.preventDefault();
    event.stopPropagation();
    const at = this.cell ? this.rows.indexOf(this.cell[0]) : 0;
    const next = Math.max(0, Math.min(this.rows.length - 1, at + step[0]));
    const column = Math.max(0, Math.min(this.effects.groups.length - 1, (this.cell?.[1] ?? 0) + step[1]));
    const room = this.scroller.clientHeight - this.headHeight;
    const top = Math.max(Math.min(this.scroller.scrollTop, next * ROW), (next + 1) * ROW - room);
    this.scroller.scrollTop = top;
    this.choose([this.rows[next], column]);
  }

  draw() {
    if (this.root.hidden) return;
    const { effects, columnWidth: wide, headHeight: head } = this;
    const width = Math.max(this.scroller.clientWidth, NAMES_WIDTH + wide * effects.groups.length);
    const height = Math.min(260, head + ROW * Math.max(1, this.rows.length));
    this.spacer.style.height = `${Math.max(0, head + ROW * this.rows.length - height)}px`;
    const ink = fit(this.heat, width, height);
    const first = Math.floor(this.scroller.scrollTop / ROW);
    const shift = head - (this.scroller.scrollTop % ROW);
    for (let i = 0; i * ROW + shift < height && first + i < this.rows.length; i++) {
      const row = this.rows[first + i];
      const y = shift + i * ROW;
      ink.fillStyle = scheme.ink;
      ink.textAlign = "right";
      ink.fillText(effects.short[row], NAMES_WIDTH - 6, y + ROW / 2, NAMES_WIDTH - 8);
      effects.groups.forEach((_, column) => this.drawField(ink, row, column, y, wide));
    }
    ink.fillStyle = hexOfRgb(scheme.paper);
    ink.fillRect(0, 0, width, head);
    if (wide < 9 && effects.groups.length > 1) ink.font = "8px system-ui, sans-serif";
    effects.groups.forEach((name, column) => {
      ink.save();
      ink.translate(NAMES_WIDTH + (column + 0.5) * wide, head - 4);
      ink.rotate(-Math.PI / 2);
      ink.textAlign = "left";
      ink.fillStyle = scheme.ink;
      ink.fillText(name.length > 15 ? `${name.slice(0, 14)}…` : name, 0, 0, head - 6);
      ink.restore();
    });
    if (this.plot.width) this.drawPlot();
  }

  drawField(ink, row, column, y, wide) {
    const n = this.effects.number(row, column);
    const x = NAMES_WIDTH + column * wide;
    if (n >= 0) {
      const share = Math.sqrt(n / this.effects.top);
      const rgb = n ? viridis(1 - 0.95 * share) : scheme.faded.map((part, i) => (part + scheme.paper[i]) / 2);
      ink.fillStyle = hexOfRgb(rgb);
      ink.fillRect(x, y, wide - 1, ROW - 1);
      if (n && wide > 26) {
        ink.fillStyle = 0.3 * rgb[0] + 0.6 * rgb[1] + 0.1 * rgb[2] > 130 ? "#111" : "#fff";
        ink.textAlign = "center";
        ink.fillText(formatCount(n), x + wide / 2, y + ROW / 2, wide - 2);
      }
    }
    if (this.cell?.[0] !== row || this.cell[1] !== column) return;
    ink.strokeStyle = "#e69f00";
    ink.lineWidth = 3;
    ink.strokeRect(x, y, wide - 1, ROW - 1);
  }

  // Volcano ---------------------------------------------------------------------------------------

  drawPlot() {
    this.plot.hidden = !this.points.length;
    if (this.plot.hidden) return;
    const [width, height] = [this.root.clientWidth - 30, 250];
    const ink = fit(this.plot, width, height);
    const wide = 1.15 * this.points.reduce((most, { fold }) => Math.max(most, Math.abs(fold)), 0.5);
    const high = 1.08 * this.points.reduce((most, gene) => Math.max(most, gene.height), 1);
    this.placed = this.points.map(({ fold, height: h }) => [
      30 + ((fold / wide + 1) / 2) * (width - 40), (height - 32) * (1 - h / high) + 4]);
    ink.strokeStyle = hexOfRgb(scheme.missing);
    ink.strokeRect(30, 4, width - 40, height - 32);
    for (let i = this.points.length - 1; i >= 0; i--) {
      const { fold, isSignificant } = this.points[i];
      ink.fillStyle = isSignificant ? (fold > 0 ? UP : DOWN) : hexOfRgb(scheme.missing);
      ink.beginPath();
      ink.arc(...this.placed[i], isSignificant ? 2.6 : 1.8, 0, 7);
      ink.fill();
    }
    ink.fillStyle = scheme.ink;
    ink.textAlign = "center";
    for (const share of [-0.5, 0, 0.5]) {
      const text = formatNumber(Number((share * wide).toPrecision(2)));
      ink.fillText(text, 30 + ((share + 1) / 2) * (width - 40), height - 18);
    }
    ink.fillText("log2 fold change", 30 + (width - 40) / 2, height - 5);
    ink.save();
    ink.rotate(-Math.PI / 2);
    ink.fillText(`−log10 p, up to ${formatNumber(high / 1.08)}`, 14 - height / 2, 14);
    ink.restore();
    this.drawNames(ink);
  }

  drawNames(ink) {
    const taken = [];
    const { placed } = this;
    this.points.slice(0, 12).forEach(({ name, fold, isSignificant }, i) => {
      const [x, y] = placed[i];
      if (!isSignificant || taken.some(([a, b]) => Math.abs(a - x) < 80 && Math.abs(b - y) < 12)) return;
      taken.push([x, y]);
      ink.textAlign = fold > 0 === x > this.plot.clientWidth - 90 ? "right" : "left";
      const side = ink.textAlign === "left" ? 5 : -5;
      ink.strokeStyle = scheme.halo;
      ink.lineWidth = 3;
      ink.strokeText(name, x + side, y);
      ink.fillText(name, x + side, y);
    });
  }

  geneAt({ offsetX, offsetY }) {
    let best = null;
    let least = 100;
    this.placed?.forEach(([x, y], i) => {
      const far = (x - offsetX) ** 2 + (y - offsetY) ** 2;
      if (far < least) [best, least] = [this.points[i], far];
    });
    return best;
  }
}

function foldCell(value) {
  if (value === undefined) return element("td", { class: "unknown", title: "not on this page" }, "–");
  const cell = element("td", {}, formatNumber(Number(value.toPrecision(2))));
  const share = Math.min(0.6, Math.abs(value) / 5);
  cell.style.backgroundColor = value > 0 ? `rgba(213, 94, 0, ${share})` : `rgba(0, 114, 178, ${share})`;
  return cell;
}

/** Size of a canvas in the pixels of the screen; returns what draws on it. */
function fit(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  ink.scale(ratio, ratio);
  ink.font = "11px system-ui, sans-serif";
  ink.textBaseline = "middle";
  return ink;
}

// The explorer with the panel: its address has one part more.
const { applyLink, saveLink, setTheme } = Explorer.prototype;
Object.assign(Explorer.prototype, {
  async applyLink() {
    this.panel ??= new EffectsPanel(this, await Effects.open(this.atlas));
    const cell = this.panel.effects.cellOf(new URLSearchParams(location.hash.slice(1)).get("effect"));
    this.panel.cell = cell;
    this.panel.setShown(Boolean(cell));
    await applyLink.call(this);
    if (cell) await this.panel.choose(cell);
  },
  saveLink() {
    saveLink.call(this);
    if (!this.panel?.link) return;
    this.ownHash = `${location.hash}&${new URLSearchParams({ effect: this.panel.link })}`;
    history.replaceState(null, "", this.ownHash);
  },
  setTheme(theme) {
    setTheme.call(this, theme);
    this.panel?.draw();
  },
});
