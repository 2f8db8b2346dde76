// Names on the map, where most cells of a level are.
import { shortName } from "./scales.js";

// Of columns with more categories than colours tell apart.
const FEW_LEVELS = 7;
const MOST_LABELS = 60;
const NEAR_WINDOWS = 3; // of 32 across the map

/** Names of levels where most of their cells are. */
export async function labelsOf(atlas, index, map) {
  const column = atlas.columns[index];
  if (column.levels.length <= FEW_LEVELS || map !== 0) return [];
  const { keys, counts, sizes, side } = await atlas.levelCounts(index);
  const windows = Math.min(32, side);
  const step = side / windows;
  const best = new Map();
  const found = new Map();
  for (let k = 0; k < keys.length; k++) {
    const level = Math.floor(keys[k] / (side * side));
    const pixel = keys[k] % (side * side);
    const row = Math.floor(Math.floor(pixel / side) / step);
    const key = level * windows * windows + row * windows + Math.floor((pixel % side) / step);
    const n = (found.get(key) ?? 0) + counts[k];
    found.set(key, n);
    if (n > (best.get(level)?.n ?? 0)) best.set(level, { n, key });
  }
  const middles = new Map(); // of the cells near the window with most of them
  for (const [key, n] of found) {
    const level = Math.floor(key / (windows * windows));
    const [x, y] = windowOf(key, windows);
    const [x0, y0] = windowOf(best.get(level).key, windows);
    if (Math.max(Math.abs(x - x0), Math.abs(y - y0)) > NEAR_WINDOWS) continue;
    const sum = middles.get(level) ?? [0, 0, 0];
    middles.set(level, [sum[0] + n * x, sum[1] + n * y, sum[2] + n]);
  }
  const labels = [];
  for (const [level, [x, y, n]] of middles) {
    if (n < 0.25 * sizes[level]) continue; // spread over the map
    const place = { x: (x / n + 0.5) / windows, y: (y / n + 0.5) / windows };
    labels.push({ level, ...place, name: shortName(column.levels[level], 18), n: sizes[level] });
  }
  return labels.sort((a, b) => b.n - a.n).slice(0, MOST_LABELS);
}

function windowOf(key, windows) {
  const at = key % (windows * windows);
  return [at % windows, Math.floor(at / windows)];
}
