// The data of the page, unpacked when it is needed and kept: base 64, raw deflate, planes of bytes,
// LEB128 (_pack.py writes them).
import { denseCounts } from "./density.js";

/** Bytes of a text in base 64. */
export function bytesOfBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** Bytes of a raw deflate stream. */
export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers of 16 bits from two planes: all high bytes, then all low bytes. */
export function joinPlanes(bytes) {
  const n = bytes.length >> 1;
  const out = new Uint16Array(n);
  for (let i = 0; i < n; i++) out[i] = (bytes[i] << 8) | bytes[n + i];
  return out;
}

/** Whole numbers in LEB128: seven bits per byte, the lowest first. */
export function readVarints(bytes) {
  let n = 0;
  for (const byte of bytes) if (byte < 0x80) n++;
  const out = new Float64Array(n); // counts may exceed 32 bits
  let value = 0;
  let factor = 1;
  let at = 0;
  for (const byte of bytes) {
    value += (byte & 0x7f) * factor;
    if (byte < 0x80) {
      out[at++] = value;
      value = 0;
      factor = 1;
    } else {
      factor *= 128;
    }
  }
  return out;
}

/** Sparse counts: ascending keys and the cells of each. */
export function readCounts(bytes) {
  const numbers = readVarints(bytes);
  const n = numbers[0];
  const keys = new Uint32Array(n);
  let key = 0;
  for (let i = 0; i < n; i++) keys[i] = key += numbers[1 + i];
  return { keys, counts: numbers.subarray(1 + n) };
}

/** Ascending numbers from their gaps. */
export function sumGaps(numbers) {
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

// Largest code of one byte; code of no level, and of cells without a number.
const HIGHEST_CODE_8 = 0xfe;
export const NO_CODE = 0xffff;
const NO_NUMBER = 255;
export const HIGHEST_NUMBER = 254;
export const HIGHEST_EXPRESSION = 255;

/** Reads a block of the page once it is there. */
export async function readBlock(name) {
  const element = document.getElementById(`block-${name}`);
  if (!element) throw new Error(`This page lacks its block ${name}: it is damaged.`);
  return inflate(bytesOfBase64(element.textContent));
}

export class Atlas {
  constructor(meta, read) {
    Object.assign(this, meta);
    this.read = read;
    this.kept = new Map();
    // The page has short names where names are long.
    for (const column of this.columns) {
      column.short ??= column.levels;
      column.n_named = column.levels.length;
      if (!column.no_value) continue;
      // Cells without a value are shown as one level more, the last.
      column.levels = [...column.levels, column.no_value];
      column.short = [...column.short, column.no_value];
    }
    this.columnOf = new Map(this.columns.map((column, i) => [column.name, i]));
    this.geneOf = new Map(this.genes.map((gene, i) => [gene.name, i]));
  }

  static async open(read) {
    const text = new TextDecoder().decode(await read("meta"));
    return new Atlas(JSON.parse(text), read);
  }

  get isSampled() {
    return this.n_points < this.n_cells;
  }

  once(key, make) {
    if (!this.kept.has(key)) this.kept.set(key, make());
    return this.kept.get(key);
  }

  /** All cells by pixel. */
  cells() {
    return this.once("cells", async () => readCounts(await this.read("cells")));
  }

  /** Cells of each level of a column by pixel, and the cells of each level. */
  levelCounts(i) {
    return this.once(`counts-${i}`, async () => {
      const { levels, side } = this.columns[i];
      const found = readCounts(await this.read(`counts-${i}`));
      const sizes = new Float64Array(levels.length);
      const nPixels = side * side;
      found.keys.forEach((key, k) => (sizes[Math.floor(key / nPixels)] += found.counts[k]));
      return { ...found, side, sizes };
    });
  }

  /** Code of each point in a column: its level, or NO_CODE for no number. */
  codes(i) {
    return this.once(`column-${i}`, async () => {
      const bytes = await this.read(`column-${i}`);
      const column = this.columns[i];
      if (column.kind !== "category") {
        return Uint16Array.from(bytes, (code) => (code === NO_NUMBER ? NO_CODE : code));
      }
      return column.n_named > HIGHEST_CODE_8 ? joinPlanes(bytes) : Uint16Array.from(bytes);
    });
  }

  /** Names of the measured genes that are not on the page: each shares first letters with the last. */
  async measuredGenes() {
    if (!document.getElementById("block-measured")) return [];
    const packed = JSON.parse(new TextDecoder().decode(await this.read("measured")));
    let last = "";
    return packed.map((text) => (last = last.slice(0, text.charCodeAt(0) - 35) + text.slice(1)));
  }

  /** Positions of the points on a map: x and y in turn, from 0 to 65,535. */
  positions(map) {
    return this.once(`xy-${map}`, async () => {
      const bytes = await this.read(map ? `xy-${map}` : "xy");
      const n = this.n_points;
      const x = joinPlanes(bytes.subarray(0, 2 * n));
      const y = joinPlanes(bytes.subarray(2 * n));
      const out = new Uint16Array(2 * n);
      for (let k = 0; k < n; k++) {
        out[2 * k] = x[k];
        out[2 * k + 1] = y[k];
      }
      return out;
    });
  }

  /** Values of a gene, 0 to 255, of every gene_stride-th point. */
  gene(i) {
    return this.once(`gene-${i}`, () => this.read(`gene-${i}`));
  }

  /** The same for all points; NO_CODE where it is not on the page. */
  async geneCodes(i) {
    const values = await this.gene(i);
    const codes = new Uint16Array(this.n_points).fill(NO_CODE);
    for (let k = 0; k < values.length; k++) codes[k * this.gene_stride] = values[k];
    return codes;
  }

  /** Pixels of means that have cells. */
  meanPixels() {
    return this.once("mean-pixels", async () => {
      const cells = denseCounts(await this.cells(), this.side, this.means_side);
      return Uint32Array.from(cells.keys()).filter((pixel) => cells[pixel] > 0);
    });
  }

  /** Means of all cells in these pixels: of a gene 0 to 255, of a column of numbers 0 to 254. */
  async means(color) {
    const n = (await this.meanPixels()).length;
    const isGene = color.kind === "gene";
    const block = isGene ? "gene-means" : "number-means";
    const all = await this.once(block, () => this.read(block));
    const numbers = this.columns.filter((column) => column.kind === "number");
    const row = isGene ? color.index : numbers.indexOf(this.columns[color.index]);
    return all.subarray(row * n, (row + 1) * n);
  }

  /** Names of the cells; without names their rows in the atlas. */
  names() {
    return this.once("names", async () => {
      if (document.getElementById("block-names")) {
        return new TextDecoder().decode(await this.read("names")).split("\n");
      }
      return Array.from(sumGaps(readVarints(await this.read("rows"))), (row) => `row ${row}`);
    });
  }

  /** Number of a code in a column of numbers. */
  numberOf(i, code) {
    const { low, high } = this.columns[i];
    return low + (code / HIGHEST_NUMBER) * (high - low);
  }

  /** A colour by its kind and name; null if the page lacks it. */
  colour(kind, name) {
    if (kind === "cells") return { kind, name: "cells", index: 0 };
    const index = (kind === "gene" ? this.geneOf : this.columnOf).get(name);
    return index === undefined ? null : { kind, name, index };
  }
}
