// Names on the map, where most cells of a level are, and the outline of the selected cells.
import { scheme } from "./colours.js";

// Columns with more categories than colours tell apart have names on the map.
const FEW_LEVELS = 7;
const MAX_LABELS = 60;
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
    labels.push({ level, ...place, name: column.short[level], n: sizes[level] });
  }
  return labels.sort((a, b) => b.n - a.n).slice(0, MAX_LABELS);
}

function windowOf(key, windows) {
  const at = key % (windows * windows);
  return [at % windows, Math.floor(at / windows)];
}

/** Draw the names, and the outline or the one that the reader is drawing. */
export function drawOverlay(view, camera) {
  const context = view.overlay.getContext("2d");
  const { width, height } = view.overlay;
  context.clearRect(0, 0, width, height);
  const onScreen = (x, y) => camera.toScreen(x, y, width, height);
  drawLabels(view, context, onScreen);
  const path = view.path ?? view.outline?.map(([x, y]) => [x / 65536, y / 65536]);
  if (!path || path.length < 2) return;
  context.beginPath();
  path.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](...onScreen(x, y)));
  context.closePath();
  context.lineWidth = 2 * view.ratio;
  context.strokeStyle = scheme.ink;
  context.setLineDash([6 * view.ratio, 4 * view.ratio]);
  context.stroke();
  context.setLineDash([]);
  context.fillStyle = "rgba(128, 128, 128, 0.08)";
  context.fill();
}

function drawLabels(view, context, onScreen) {
  context.font = `600 ${12 * view.ratio}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  const drawn = [];
  for (const { level, x, y, name } of view.labels) {
    if (!view.isVisible[level]) continue;
    let [px, py] = onScreen(x, y);
    const half = [context.measureText(name).width / 2 + 3, 8 * view.ratio];
    const last = view.overlay.width - half[0];
    // Whole names of what is in view.
    if (px >= 0 && px <= view.overlay.width) px = Math.max(half[0], Math.min(px, last));
    const isFree = drawn.every(
      ([ox, oy, ow]) => Math.abs(ox - px) > ow + half[0] || Math.abs(oy - py) > 2 * half[1],
    );
    if (!isFree) continue;
    drawn.push([px, py, half[0]]);
    context.lineWidth = 3.5 * view.ratio;
    context.strokeStyle = scheme.halo;
    context.strokeText(name, px, py);
    context.fillStyle = scheme.ink;
    context.fillText(name, px, py);
  }
}
