// Selection, search, links and files: run by `node --test tests/explore/page` (test_scripts.py).
import assert from "node:assert/strict";
import { test } from "node:test";
import { PAGE } from "./page.mjs";

const selection = await PAGE("selection");
const { findEntries, searchEntries } = await PAGE("finder");
const { readLink, writeLink } = await PAGE("permalink");
const { cellsTsv, escapeXml, fileName, legendSvg } = await PAGE("export");
const { legendRows } = await PAGE("legend");
const { spreadOrder } = await PAGE("layers");
const { Atlas, NO_CODE } = await PAGE("atlas");
const { Effects } = await PAGE("effects");

const HOSTILE = "<img src=x onerror='1'>\"&:,=";
const META = {
  maps: ["UMAP", "UMAP after Harmony"],
  columns: [
    { name: "leiden", kind: "category", levels: ["0", "1", "10"] },
    { name: "drug: a=b&c", kind: "category", levels: ["DMSO", HOSTILE, "__proto__"] },
    { name: "score", kind: "number", levels: [], low: 0, high: 1 },
  ],
  genes: [{ name: "CD3E" }, { name: "CD3D" }, { name: "MT-CO1" }],
};
const ATLAS = new Atlas(META, null);

test("the even-odd rule, with a concave outline", () => {
  const outline = [[0, 0], [10, 0], [10, 10], [5, 2], [0, 10]];
  assert.ok(selection.isInside(1, 1, outline));
  assert.ok(selection.isInside(9, 7, outline));
  assert.ok(!selection.isInside(5, 6, outline));
});

test("chosen points are inside and shown", () => {
  const places = Uint16Array.of(5, 5, 50, 50, 6, 6);
  const box = selection.boxOutline([0, 0], [10, 10]);
  const mask = selection.choosePoints(places, box, (i) => i !== 2);
  assert.deepEqual([...mask], [selection.CHOSEN, 0, 0]);
  assert.equal(selection.countChosen(mask), 1);
});

test("cells of pixels inside are counted, of one level or all", () => {
  const histogram = { keys: Uint32Array.of(0, 3, 4), counts: Float64Array.of(5, 7, 1e9) };
  const left = selection.boxOutline([0, 0], [32768, 65536]);
  assert.equal(selection.countCellsInside(histogram, 2, left), 5);
  assert.equal(selection.countCellsInside(histogram, 2, left, 1), 1e9);
});

test("composition compares with all points", () => {
  const codes = Uint16Array.of(0, 0, 1, 1, 2, NO_CODE);
  const mask = Uint8Array.of(0, 255, 255, 255, 0, 255);
  const rows = selection.compareLevels(codes, mask, 3);
  assert.deepEqual(rows.map(({ level, n }) => [level, n]), [[1, 2], [0, 1]]);
  assert.equal(rows[0].share, 2 / 3);
  assert.equal(rows[0].whole, 2 / 5);
  const numbers = selection.compareNumbers(Uint16Array.of(1, 3, 5, NO_CODE), mask.slice(0, 4));
  assert.deepEqual(numbers, { inside: 4, whole: 3, n: 2 });
});

test("a gene is compared by Welch's t", () => {
  const values = Uint8Array.of(10, 20, 30, 0, 2, 1, 3, 0);
  const mask = new Uint8Array(16);
  [0, 2, 4].forEach((i) => (mask[i] = 255)); // points 0, 2, 4 of stride 2
  const found = selection.compareGene(values, 2, mask, 255);
  assert.deepEqual(found.mean, [20, 1.2]);
  assert.deepEqual(found.share, [1, 0.6]);
  const expected = (20 - 1.2) / Math.sqrt(100 / 3 + 1.7 / 5);
  assert.ok(Math.abs(found.t - expected) < 1e-9);
  assert.equal(selection.compareGene(values, 2, new Uint8Array(16), 255), null);
});

test("search finds equal names first, then beginnings", () => {
  const entries = searchEntries(ATLAS);
  const names = (text) => findEntries(entries, text).map((entry) => entry.name);
  assert.deepEqual(names("cd3"), ["CD3E", "CD3D"]);
  assert.deepEqual(names("1").slice(0, 2), ["1", "10"]);
  assert.deepEqual(names("co1"), ["MT-CO1"]);
  assert.deepEqual(names("onerror"), [HOSTILE]);
  assert.deepEqual(names("  "), []);
});

test("a link holds the state, with hostile names", () => {
  const state = {
    views: [
      { color: ATLAS.colour("column", "drug: a=b&c"), map: 0, only: null },
      {
        color: ATLAS.colour("gene", "CD3E"), map: 1,
        only: { column: "drug: a=b&c", level: HOSTILE },
      },
    ],
    hidden: new Map([["drug: a=b&c", new Set([HOSTILE, "__proto__"])]]),
    layer: "points",
    cameras: [{ x: 0.25, y: 0.75, zoom: 12.5 }, { x: 0.5, y: 0.5, zoom: 1 }],
    selection: { map: 1, outline: [[0, 1], [65535, 2], [-40, 3]] },
  };
  const text = writeLink(state);
  assert.ok(!/[<>"' ]/.test(text));
  const back = readLink(text, ATLAS);
  assert.deepEqual(back.views, state.views);
  assert.deepEqual(back.hidden, state.hidden);
  assert.deepEqual(back.selection, state.selection);
  assert.deepEqual(back.cameras[0], state.cameras[0]);
  assert.equal(back.layer, "points");
});

test("a link that somebody has changed shows what the atlas has", () => {
  const text = 'color=gene:NONE&only=["leiden","99"]&hide=%5B&at=1,x,2&lasso=0.zz&layer=all&map=7';
  const found = readLink(text, ATLAS);
  assert.deepEqual(found.views, []);
  assert.equal(found.hidden.size, 0);
  assert.equal(found.selection, null);
  assert.equal(found.layer, "auto");
  assert.deepEqual(found.cameras, []);
});

test("files have safe names and texts", () => {
  assert.equal(fileName("map", HOSTILE), "map-_img_src_x_onerror_1_");
  assert.equal(escapeXml("<a b='c'>\u0001&"), "&lt;a b=&#39;c&#39;&gt;\ufffd&amp;");
  const svg = legendSvg(HOSTILE, [{ name: HOSTILE, rgb: [255, 0, 10] }], null);
  assert.ok(svg.includes("#ff000a") && !svg.includes("<img"));
  assert.equal(cellsTsv(["cell"], [["a\tb\nc"], ["d"]]), "cell\na b c\nd\n");
});

test("a legend shows levels with cells that match", () => {
  const levels = ["apple", "Banana", "cherry", "none"];
  assert.deepEqual(legendRows(levels, [1, 5, 3, 0], "", true), [1, 2, 0]);
  assert.deepEqual(legendRows(levels, [1, 5, 3, 0], "AN", false), [1]);
});

test("effects have doses in their order, and genes with their signs", () => {
  const meta = {
    rows: ["b 5 uM", "other", "b 0.5 uM", HOSTILE], groups: ["x", "y"], shown: [1], steps: [200, 100],
    doses: [["b", 5, "5 uM"], null, ["b", 0.5, "0.5 uM"], ["c", 1, "1 uM"]],
  };
  const effects = new Effects(meta, Float64Array.of(0, 8, 1, 2, 3, 4, 5, 6), ["A", "B"]);
  assert.deepEqual([effects.number(0, 0), effects.number(0, 1), effects.top], [-1, 7, 7]);
  assert.deepEqual([0, 1, 3].map((row) => effects.dosesOf(row)), [[2, 0], [], []]);
  assert.deepEqual(effects.find("UM"), [0, 2]);
  assert.deepEqual(effects.cellOf(JSON.stringify([HOSTILE, "y"])), [3, 1]);
  for (const text of ["[", "3", '["none", "x"]', null]) assert.equal(effects.cellOf(text), null);
  const { genes, step } = effects.genesOf(Float64Array.of(1, 9, 1, 0, 401, 20, 350, 7));
  assert.equal(step, 9);
  assert.deepEqual(genes[0], { name: "B", fold: -1, height: 3.5, isSignificant: true });
  assert.deepEqual(genes[1], { name: "A", fold: 0.05, height: 0.035 * 2, isSignificant: false });
});

test("any first part of the drawing order is spread over all points", () => {
  for (const n of [1, 2, 7, 1000, 7362]) {
    assert.equal(new Set(spreadOrder(n)).size, n);
  }
  const first = spreadOrder(100_000).slice(0, 1000);
  const tenths = new Array(10).fill(0);
  first.forEach((i) => tenths[Math.floor(i / 10_000)]++);
  assert.ok(Math.min(...tenths) > 60 && Math.max(...tenths) < 140);
});
