// Unpacking, colours and pictures: run by `node --test tests/explore/page` (test_scripts.py).
import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";
import { PAGE } from "./page.mjs";

const colours = await PAGE("colours");
const { categoryColours, expressionColour, hexOfRgb, setScheme, viridis } = colours;
const density = await PAGE("density");
const { discInsets } = await PAGE("canvas");
const { Camera } = await PAGE("camera");
const { formatCount, formatNumber, formatShare } = await PAGE("scales");
const {
  Atlas, bytesOfBase64, inflate, joinPlanes, NO_CODE, readCounts, readVarints, sumGaps,
} = await PAGE("atlas");

test("bytes survive base 64 and deflate", async () => {
  const bytes = Uint8Array.from({ length: 1000 }, (_, i) => (i * i) % 256);
  const text = deflateRawSync(bytes).toString("base64");
  assert.deepEqual(await inflate(bytesOfBase64(text)), bytes);
});

test("planes are joined", () => {
  assert.deepEqual([...joinPlanes(Uint8Array.of(1, 255, 2, 254))], [258, 65534]);
});

test("variable-length integers above 32 bits", () => {
  const bytes = Uint8Array.of(0, 1, 0x7f, 0x80, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f);
  assert.deepEqual([...readVarints(bytes)], [0, 1, 127, 128, 2 ** 46 - 1]);
});

test("counts have keys from gaps", () => {
  const found = readCounts(Uint8Array.of(3, 5, 1, 10, 7, 8, 9));
  assert.deepEqual([...found.keys], [5, 6, 16]);
  assert.deepEqual([...found.counts], [7, 8, 9]);
  assert.deepEqual([...sumGaps(Float64Array.of(2, 3, 4))], [2, 5, 9]);
});

test("few categories have the colours of Okabe and Ito, many differ", () => {
  assert.equal(hexOfRgb(categoryColours(2)[1]), "#e69f00");
  const many = categoryColours(60).map(hexOfRgb);
  assert.equal(new Set(many).size, 60);
  // The same as scatlas.pl._style.colours(8).
  assert.deepEqual(many.slice(0, 3), categoryColours(8).map(hexOfRgb).slice(0, 3));
});

test("scales of numbers end where they should", () => {
  assert.equal(hexOfRgb(viridis(0)), "#440154");
  assert.equal(hexOfRgb(viridis(7)), "#fde725");
  assert.deepEqual(expressionColour(0), colours.scheme.missing);
});

test("colours are seen on a light page and on a dark one", () => {
  const linear = (v) => (v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = (rgb) => 0.05 + rgb.reduce((sum, v, i) => sum + [0.2126, 0.7152, 0.0722][i] * linear(v), 0);
  const contrast = (rgb) => {
    const ratio = luminance(rgb) / luminance(colours.scheme.paper);
    return Math.max(ratio, 1 / ratio);
  };
  for (const name of ["dark", "light"]) {
    setScheme(name);
    for (const n of [7, 60, 380]) assert.ok(Math.min(...categoryColours(n).map(contrast)) > 2, name);
    assert.ok(contrast(expressionColour(1)) > 10, `${name}: many counts stand out`);
    assert.ok(contrast(expressionColour(0)) < contrast(expressionColour(0.5)));
    assert.ok(contrast(colours.scheme.plain) > 4.5);
  }
});

test("a picture of levels has the mean colour of the visible ones", () => {
  const counts = Float64Array.of(0, 4, 0, 0);
  const histogram = { side: 2, keys: Uint32Array.of(1, 5), counts: Float64Array.of(3, 1) };
  const levels = [[200, 0, 0], [0, 100, 0]];
  const all = density.pictureOfLevels(counts, 2, histogram, levels, () => true);
  assert.deepEqual([...all.rgba.slice(4, 7)], [150, 25, 0]);
  assert.equal(all.rgba[3], 0, "a pixel without cells is empty");
  const one = density.pictureOfLevels(counts, 2, histogram, levels, (level) => level === 1);
  assert.deepEqual([...one.rgba.slice(4, 7)], [0, 100, 0]);
});

test("wider pixels keep the number of cells", () => {
  const sparse = { keys: Uint32Array.of(0, 5, 63), counts: Float64Array.of(2, 3, 4) };
  const dense = density.denseCounts(sparse, 8, 4);
  assert.equal(dense.reduce((a, b) => a + b), 9);
  assert.equal(dense[15], 4);
  assert.equal(dense[2], 3);
});

test("a picture of points leaves out codes without a colour", () => {
  const places = Uint16Array.of(0, 0, 65535, 65535, 40000, 0);
  const rgba = Uint8Array.of(60, 90, 130, 160, 200, 0, 0, 0);
  const made = density.pictureOfPoints(places, 2, Uint16Array.of(0, 1, 0), rgba).rgba;
  assert.deepEqual([0, 1, 2, 3].map((pixel) => made[4 * pixel + 3] > 0), [true, true, false, false]);
  assert.deepEqual([...made.slice(4, 7)], [60, 90, 130]);
});

test("few cells get wide pixels, many fine ones", () => {
  assert.equal(density.sideOfPicture(1e8, 512), 512);
  assert.equal(density.sideOfPicture(100, 512), 64);
});

test("zoom keeps the place under the pointer", () => {
  const camera = new Camera();
  const before = camera.toMap(30, 70, 200, 100);
  camera.zoomAt(3, 30, 70, 200, 100);
  const after = camera.toMap(30, 70, 200, 100);
  before.forEach((value, i) => assert.ok(Math.abs(value - after[i]) < 1e-12));
  const [x, y] = camera.toScreen(...before, 200, 100);
  assert.ok(Math.abs(x - 30) < 1e-9 && Math.abs(y - 70) < 1e-9);
});

test("numbers are written for people", () => {
  assert.equal(formatCount(95624334), "95,624,334");
  assert.equal(formatNumber(0.00012), "1.2e-4");
  assert.equal(formatNumber(12345.6), "12,346");
  assert.equal(formatNumber(NaN), "none");
  assert.equal(formatShare(0.0004), "<0.1%");
});

test("cells without a value are a grey level, those without a number NO_CODE", async () => {
  const meta = {
    n_cells: 3, n_points: 3, genes: [{ name: "A" }], gene_stride: 2, side: 4, means_side: 2,
    columns: [
      { name: "n", kind: "number", levels: [], low: 0, high: 254 },
      { name: "many", kind: "category", levels: Array.from({ length: 300 }, (_, i) => `l${i}`), no_value: "unknown" },
    ],
  };
  const blocks = {
    "column-0": Uint8Array.of(0, 254, 255),
    "column-1": Uint8Array.of(0, 1, 1, 7, 43, 44),
    "gene-0": Uint8Array.of(9, 8),
  };
  const atlas = new Atlas(meta, async (name) => blocks[name]);
  assert.deepEqual([...(await atlas.codes(0))], [0, 254, NO_CODE]);
  assert.deepEqual([...(await atlas.codes(1))], [7, 299, 300]);
  assert.equal(atlas.columns[1].levels[300], "unknown");
  assert.deepEqual(colours.levelColours(atlas.columns[1])[300], colours.scheme.missing);
  assert.deepEqual([...(await atlas.geneCodes(0))], [9, NO_CODE, 8]);
  assert.equal(atlas.numberOf(0, 100), 100);
  assert.equal(atlas.colour("gene", "B"), null);
});

test("large points are discs", () => {
  assert.deepEqual(discInsets(2), [0, 0]);
  assert.deepEqual(discInsets(6), [1, 0, 0, 0, 0, 1]);
  assert.equal(discInsets(9)[4], 0);
});
