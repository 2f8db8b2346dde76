// Cells inside a lasso or box, and what they are. Outlines have whole numbers, as positions have.
import { NO_CODE, HIGHEST_EXPRESSION } from "./atlas.js";

export const CHOSEN = 255;
const MIN_MARKED = 3;

/** Corners of a box between two positions. */
export function boxOutline([x0, y0], [x1, y1]) {
  return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
}

/** Outline in the steps of the positions, from the map's 0 to 1. */
export function roundOutline(outline) {
  return outline.map((corner) => corner.map((value) => Math.round(value * 65536)));
}

/** Whether a place is inside an outline (even-odd rule). */
export function isInside(x, y, outline) {
  let inside = false;
  for (let i = 0, j = outline.length - 1; i < outline.length; j = i++) {
    const [xi, yi] = outline[i];
    const [xj, yj] = outline[j];
    if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) inside = !inside;
  }
  return inside;
}

function boundsOf(outline) {
  const xs = outline.map(([x]) => x);
  const ys = outline.map(([, y]) => y);
  return [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
}

/** Mask of the points inside an outline that a test lets pass: CHOSEN or 0. */
export function choosePoints(positions, outline, passes) {
  const mask = new Uint8Array(positions.length / 2);
  const [left, bottom, right, top] = boundsOf(outline);
  for (let i = 0; i < mask.length; i++) {
    const x = positions[2 * i];
    const y = positions[2 * i + 1];
    if (x < left || x > right || y < bottom || y > top) continue;
    if (passes(i) && isInside(x, y, outline)) mask[i] = CHOSEN;
  }
  return mask;
}

/** All cells whose pixels have their middle inside an outline; a level's alone if one is given. */
export function countCellsInside({ keys, counts }, side, outline, level = 0) {
  const step = 65536 / side;
  const [left, bottom, right, top] = boundsOf(outline);
  const first = level * side * side;
  let total = 0;
  for (let k = 0; k < keys.length; k++) {
    const pixel = keys[k] - first;
    if (pixel < 0 || pixel >= side * side) continue;
    const x = ((pixel % side) + 0.5) * step;
    const y = (Math.floor(pixel / side) + 0.5) * step;
    if (x < left || x > right || y < bottom || y > top) continue;
    if (isInside(x, y, outline)) total += counts[k];
  }
  return total;
}

/** Number of chosen points. */
export function countChosen(mask) {
  let n = 0;
  for (const value of mask) if (value) n++;
  return n;
}

/** Levels of the chosen points: number, share among them, share among all points; most first. */
export function compareLevels(codes, mask, nLevels) {
  const inside = new Float64Array(nLevels);
  const all = new Float64Array(nLevels);
  let nInside = 0;
  let nAll = 0;
  for (let i = 0; i < codes.length; i++) {
    if (codes[i] >= nLevels) continue;
    all[codes[i]]++;
    nAll++;
    if (mask[i]) {
      inside[codes[i]]++;
      nInside++;
    }
  }
  const rows = [];
  for (let level = 0; level < nLevels; level++) {
    if (!inside[level]) continue;
    const share = inside[level] / nInside;
    rows.push({ level, n: inside[level], share, whole: all[level] / nAll });
  }
  return rows.sort((a, b) => b.n - a.n || a.level - b.level);
}

/** Mean of the codes of chosen points and of all points with a number. */
export function compareNumbers(codes, mask) {
  let inside = 0;
  let nInside = 0;
  let all = 0;
  let nAll = 0;
  for (let i = 0; i < codes.length; i++) {
    if (codes[i] === NO_CODE) continue;
    all += codes[i];
    nAll++;
    if (mask[i]) {
      inside += codes[i];
      nInside++;
    }
  }
  return { inside: inside / nInside, whole: all / nAll, n: nInside };
}

/**
 * A gene in the chosen points and in all others: mean, share of cells with the gene, and t of
 * Welch's test. null: too few points.
 */
export function compareGene(values, stride, mask, high) {
  const n = [0, 0];
  const sum = [0, 0];
  const square = [0, 0];
  const expressed = [0, 0];
  for (let k = 0; k < values.length; k++) {
    const side = mask[k * stride] ? 0 : 1;
    const value = values[k];
    n[side]++;
    if (!value) continue;
    sum[side] += value;
    square[side] += value * value;
    expressed[side]++;
  }
  if (n[0] < MIN_MARKED || n[1] < MIN_MARKED) return null;
  const mean = [0, 1].map((side) => sum[side] / n[side]);
  const error = [0, 1].map((side) => {
    const variance = (square[side] - n[side] * mean[side] ** 2) / (n[side] - 1);
    return Math.max(variance, 0) / n[side];
  });
  const unit = high / HIGHEST_EXPRESSION;
  const spread = Math.sqrt(error[0] + error[1]);
  return {
    t: spread > 0 ? (mean[0] - mean[1]) / spread : 0,
    mean: mean.map((value) => value * unit),
    share: [expressed[0] / n[0], expressed[1] / n[1]],
  };
}
