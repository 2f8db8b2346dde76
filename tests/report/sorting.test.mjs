// Order and search of rows: run by `node --test tests/report` (tests/explore/test_scripts.py).
import assert from "node:assert/strict";
import { test } from "node:test";

const { hasWords, nextDirection, numberOf, sortedOrder } = await import(
  "../../src/scatlas/workflow/report/page/sorting.js"
);

const sorted = (texts, isNumeric, direction) =>
  sortedOrder(texts, isNumeric, direction).map((i) => texts[i]);

test("numbers sort as numbers, and empty cells come last in both directions", () => {
  const texts = ["1,234.5", "", "9", "-3", "∞", "1e-7", "-∞", "0.02"];
  const up = ["-∞", "-3", "1e-7", "0.02", "9", "1,234.5", "∞"];
  assert.deepEqual(sorted(texts, true, "ascending"), [...up, ""]);
  assert.deepEqual(sorted(texts, true, "descending"), [...up.toReversed(), ""]);
  assert.deepEqual(sorted(texts, true, "none"), texts);
});

test("plate10 comes after plate9", () => {
  const texts = ["plate10", "Plate2", "", "plate9", "🧬", "<b>"];
  const up = sorted(texts, false, "ascending");
  assert.ok(up.indexOf("plate9") < up.indexOf("plate10"));
  assert.ok(up.indexOf("Plate2") < up.indexOf("plate9"));
  assert.equal(up.at(-1), "");
});

test("equal rows keep their order in both directions", () => {
  const texts = ["1", "2", "1", "2"];
  assert.deepEqual(sortedOrder(texts, true, "ascending"), [0, 2, 1, 3]);
  assert.deepEqual(sortedOrder(texts, true, "descending"), [1, 3, 0, 2]);
});

test("a third click brings the first order back", () => {
  assert.equal(nextDirection("none"), "ascending");
  assert.equal(nextDirection("ascending"), "descending");
  assert.equal(nextDirection("descending"), "none");
});

test("an empty cell is no zero", () => {
  assert.ok(Number.isNaN(numberOf("  ")));
  assert.equal(numberOf("1,000,000"), 1e6);
});

test("all words of a search, in any order and case; letters mean themselves", () => {
  assert.ok(hasWords("plate7 median counts", "COUNTS plate7"));
  assert.ok(!hasWords("plate7 median counts", "plate8"));
  assert.ok(hasWords("anything", ""));
  assert.ok(hasWords("a.b (c) [d]", "(c) [d"));
  assert.ok(!hasWords("axb", "a.b"));
});
