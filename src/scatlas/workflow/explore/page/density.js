// Pictures of all cells: a pixel has the mean colour of its cells, and is the more opaque the more
// cells it has (by the logarithm). The first row is at the bottom.
import { scheme } from "./colours.js";

// Opacity of a pixel with one cell: a rare group is still seen.
const FAINTEST = 0.4;
// Cells per pixel on average, below which pixels become wider.
const MIN_PER_PIXEL = 1.5;

/** Pixels per side that show this many cells, at most `finest`. */
export function sideOfPicture(nCells, finest) {
  let side = finest;
  while (side > 64 && nCells < MIN_PER_PIXEL * side * side * 0.25) side /= 2;
  return side;
}

/** Dense counts of sparse ones, with wider pixels. */
export function denseCounts({ keys, counts }, side, wanted) {
  const out = new Float64Array(wanted * wanted);
  const step = side / wanted;
  for (let k = 0; k < keys.length; k++) {
    const row = Math.floor(Math.floor(keys[k] / side) / step);
    out[row * wanted + Math.floor((keys[k] % side) / step)] += counts[k];
  }
  return out;
}

/** Picture of counts in one colour. */
export function pictureOfCounts(counts, side, rgb) {
  return paint(counts, side, () => rgb);
}

/**
 * Picture of the visible levels of a column. `histogram` has wider pixels, whose colours the finer
 * pixels of `counts` take.
 */
export function pictureOfLevels(counts, side, histogram, colours, isVisible) {
  const coarse = histogram.side;
  const nPixels = coarse * coarse;
  const sums = new Float64Array(nPixels * 4); // red, green, blue, visible cells
  const whole = new Float64Array(nPixels);
  for (let k = 0; k < histogram.keys.length; k++) {
    const level = Math.floor(histogram.keys[k] / nPixels);
    const pixel = histogram.keys[k] % nPixels;
    const n = histogram.counts[k];
    whole[pixel] += n;
    if (!isVisible(level)) continue;
    const at = 4 * pixel;
    const rgb = colours[level];
    for (let c = 0; c < 3; c++) sums[at + c] += n * rgb[c];
    sums[at + 3] += n;
  }
  const visible = new Float64Array(counts.length);
  const pixelOf = coarsePixel(side, coarse);
  for (let p = 0; p < counts.length; p++) {
    const q = pixelOf(p);
    if (counts[p] && whole[q]) visible[p] = (counts[p] * sums[4 * q + 3]) / whole[q];
  }
  return paint(visible, side, (p) => {
    const at = 4 * pixelOf(p);
    const n = sums[at + 3] || 1;
    return [sums[at] / n, sums[at + 1] / n, sums[at + 2] / n];
  });
}

/** The pixel of a coarser (or finer) grid at the same place. */
function coarsePixel(side, coarse) {
  const factor = coarse / side;
  return (p) => {
    const row = Math.floor((Math.floor(p / side) + 0.5) * factor);
    return row * coarse + Math.floor(((p % side) + 0.5) * factor);
  };
}

/** Picture of means, which `colourOf` translates; 255 of numbers is for none. */
export function pictureOfMeans(counts, side, pixels, means, meansSide, colourOf) {
  const value = new Int16Array(meansSide * meansSide).fill(-1);
  pixels.forEach((pixel, k) => (value[pixel] = means[k]));
  const pixelOf = coarsePixel(side, meansSide);
  return paint(counts, side, (p) => {
    const found = value[pixelOf(p)];
    return found < 0 ? scheme.missing : colourOf(found);
  }, 0.75);
}

/** Picture of points: the mean colour of those in each pixel. */
export function pictureOfPoints(positions, side, codes, rgba) {
  const sums = new Float64Array(side * side * 4);
  const shift = 16 - Math.log2(side);
  for (let i = 0; i < codes.length; i++) {
    const from = 4 * codes[i];
    if (!rgba[from + 3]) continue;
    const at = 4 * ((positions[2 * i + 1] >> shift) * side + (positions[2 * i] >> shift));
    for (let c = 0; c < 3; c++) sums[at + c] += rgba[from + c];
    sums[at + 3]++;
  }
  const counts = Float64Array.from({ length: side * side }, (_, p) => sums[4 * p + 3]);
  return paint(counts, side, (p) => [0, 1, 2].map((c) => sums[4 * p + c] / counts[p]));
}

function paint(counts, side, colourOf, faintest = FAINTEST) {
  const rgba = new Uint8ClampedArray(side * side * 4);
  const dense = Math.log(Math.max(2, highCount(counts)));
  for (let p = 0; p < counts.length; p++) {
    if (counts[p] <= 0) continue;
    const rgb = colourOf(p);
    const share = Math.min(1, Math.max(0, Math.log(Math.max(1, counts[p])) / dense));
    for (let c = 0; c < 3; c++) rgba[4 * p + c] = rgb[c];
    rgba[4 * p + 3] = 255 * (faintest + (1 - faintest) * share) * Math.min(1, counts[p] + 0.3);
  }
  return { side, rgba };
}

/** The count that one per cent of the pixels with cells exceeds. */
function highCount(counts) {
  const used = counts.filter((n) => n > 0).sort();
  return used.length ? used[Math.floor(0.99 * (used.length - 1))] : 1;
}
