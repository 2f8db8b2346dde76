// One map: density, points, names on the map, and what the pointer does on it.
import { HIGHEST_EXPRESSION, HIGHEST_NUMBER, NO_CODE } from "./atlas.js";
import { openCanvas } from "./canvas.js";
import { clampTo } from "./camera.js";
import { categoryColours, expressionColour, MISSING, viridis } from "./colours.js";
import {
  countPoints, denseCounts, pictureOfCounts, pictureOfLevels, pictureOfMeans, pictureOfPoints,
  sideOfPicture,
} from "./density.js";
import { shortName } from "./scales.js";
import { openWebgl } from "./webgl.js";

// Code of points that a view does not show at all.
const NOT_SHOWN = 0xfffe;
const PLAIN = [60, 90, 130];
// Up to this many cells are points from the start; of more, density until the reader zooms in.
const MOST_POINTS_FIRST = 200_000;
const ZOOM_OF_POINTS = 2.5;
// Names on the map, of columns with more categories than colours tell apart.
const FEW_LEVELS = 7;
const MOST_LABELS = 60;
const NEAR_WINDOWS = 3; // of 32 across the map
// While the map moves: milliseconds per frame, and points at first and at least.
const SLOWEST_FRAME = 33;
const FIRST_MOVING = 100_000;
const FEWEST_MOVING = 5_000;

export class View {
  constructor(root, atlas, wanted) {
    this.atlas = atlas;
    this.canvas = root.querySelector("canvas.map");
    this.overlay = root.querySelector("canvas.overlay");
    const webgl = wanted === "canvas" ? null : openWebgl(this.canvas, wanted !== "webgl");
    this.renderer = webgl ?? openCanvas(this.canvas);
    this.order = null;
    this.chosen = null;
    this.labels = [];
    this.path = null; // a lasso or box that is being drawn, in units of the map
    this.outline = null; // the finished one, in steps of the places
    this.movingCount = FIRST_MOVING;
    this.lastFrame = 0;
    this.nShown = 0;
    this.ready = false;
  }

  resize() {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const { clientWidth, clientHeight } = this.canvas;
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.max(1, Math.round(clientWidth * ratio));
      canvas.height = Math.max(1, Math.round(clientHeight * ratio));
    }
    this.ratio = ratio;
  }

  get size() {
    return [this.canvas.clientWidth, this.canvas.clientHeight];
  }

  /** The picture of all cells alone, before the rest of the page is there. */
  async showFirst() {
    const { counts, side } = await this.cellCounts();
    this.renderer.setPicture(pictureOfCounts(counts, side, PLAIN));
  }

  async cellCounts() {
    const side = sideOfPicture(this.atlas.n_cells, this.atlas.side);
    const counts = await this.atlas.once(`dense-${side}`, async () =>
      denseCounts(await this.atlas.cells(), this.atlas.side, side),
    );
    return { counts, side };
  }

  /** Load what the view shows: `color`, `map`, `only` and the hidden levels. */
  async load(view, hidden) {
    const { atlas } = this;
    this.view = view;
    const column = atlas.columns[view.color.index];
    const isCategory = view.color.kind === "column" && column.kind === "category";
    const hiddenNames = (isCategory && hidden.get(column.name)) || new Set();
    this.places = await atlas.places(view.map);
    this.colours = isCategory ? categoryColours(column.levels.length) : [];
    this.isVisible = isCategory ? column.levels.map((name) => !hiddenNames.has(name)) : [];
    const codes = await this.codesOf(view);
    this.palette = this.paletteOf(view.color, isCategory);
    this.codes = codes;
    this.nShown = 0;
    for (let i = 0; i < codes.length; i++) if (this.shows(i)) this.nShown++;
    this.upload();
    this.renderer.setPicture(await this.pictureOf(view, codes, isCategory));
    this.labels = isCategory ? await this.labelsOf(view.color.index, column) : [];
    this.ready = true;
  }

  async codesOf({ color, only }) {
    const { atlas } = this;
    let codes;
    if (color.kind === "gene") codes = await atlas.geneCodes(color.index);
    else if (color.kind === "column") codes = await atlas.codes(color.index);
    else codes = new Uint16Array(atlas.n_points);
    if (!only) return codes;
    const index = atlas.columnOf.get(only.column);
    const level = atlas.columns[index].levels.indexOf(only.level);
    const others = await atlas.codes(index);
    return codes.map((code, i) => (others[i] === level ? code : NOT_SHOWN));
  }

  paletteOf(color, isCategory) {
    const rgba = new Uint8Array(4 * (NO_CODE + 1));
    const set = (code, rgb, alpha) => rgba.set([...rgb, alpha], 4 * code);
    if (color.kind === "gene") {
      for (let code = 0; code <= HIGHEST_EXPRESSION; code++) {
        set(code, expressionColour(code / HIGHEST_EXPRESSION), 220);
      }
    } else if (isCategory) {
      this.colours.forEach((rgb, level) => this.isVisible[level] && set(level, rgb, 220));
      if (this.isVisible.every(Boolean)) set(NO_CODE, MISSING, 160);
    } else if (color.kind === "column") {
      for (let code = 0; code <= HIGHEST_NUMBER; code++) {
        set(code, viridis(code / HIGHEST_NUMBER), 220);
      }
      set(NO_CODE, MISSING, 160);
    } else {
      set(0, PLAIN, 160);
    }
    return rgba;
  }

  /** Whether a point is shown; a selection takes these alone. */
  shows(i) {
    return this.palette[4 * this.codes[i] + 3] > 0;
  }

  upload() {
    const { atlas, renderer } = this;
    const n = atlas.n_points;
    this.order ??= atlas.kept.get("order") ?? spreadOrder(n);
    atlas.kept.set("order", this.order);
    const places = new Uint16Array(2 * n);
    const codes = new Uint16Array(n);
    for (let k = 0; k < n; k++) {
      const i = this.order[k];
      places[2 * k] = this.places[2 * i];
      places[2 * k + 1] = this.places[2 * i + 1];
      codes[k] = this.codes[i];
    }
    renderer.setPlaces(places);
    renderer.setCodes(codes);
    renderer.setPalette(this.palette);
    this.setChosen(this.chosen);
  }

  /** Mask of the selected points; null: none. */
  setChosen(mask) {
    this.chosen = mask;
    const chosen = new Uint8Array(this.atlas.n_points);
    if (mask) for (let k = 0; k < chosen.length; k++) chosen[k] = mask[this.order[k]];
    this.renderer.setChosen(chosen);
  }

  /** Density of all cells where the page has their counts, else of the points. */
  async pictureOf({ color, map, only }, codes, isCategory) {
    const { atlas } = this;
    this.isOfAllCells = true;
    if (map === 0 && !only) {
      const { counts, side } = await this.cellCounts();
      if (color.kind === "cells") return pictureOfCounts(counts, side, PLAIN);
      if (isCategory) {
        const histogram = await atlas.levelCounts(color.index);
        const isVisible = (level) => this.isVisible[level];
        return pictureOfLevels(counts, side, histogram, this.colours, isVisible);
      }
      const isGene = color.kind === "gene";
      // Means are far below the highest values: their scale ends at the highest mean.
      const colourOf = isGene
        ? (mean) => expressionColour(mean / HIGHEST_EXPRESSION)
        : (mean) => (mean === 255 ? MISSING : viridis(mean / HIGHEST_NUMBER));
      const [pixels, means] = [await atlas.meanPixels(), await atlas.means(color)];
      return pictureOfMeans(counts, side, pixels, means, atlas.means_side, colourOf);
    }
    if (map === 0 && color.kind === "cells") {
      const index = atlas.columnOf.get(only.column);
      const wanted = atlas.columns[index].levels.indexOf(only.level);
      const { counts, side } = await this.cellCounts();
      const histogram = await atlas.levelCounts(index);
      const colours = atlas.columns[index].levels.map(() => PLAIN);
      return pictureOfLevels(counts, side, histogram, colours, (level) => level === wanted);
    }
    this.isOfAllCells = false;
    const side = sideOfPicture(this.nShown, 256);
    if (color.kind === "cells") {
      const counts = countPoints(this.places, side, (i) => codes[i] === 0);
      return pictureOfCounts(counts, side, PLAIN);
    }
    return pictureOfPoints(this.places, side, codes, this.palette);
  }

  /** Names of levels where most of their cells are. */
  async labelsOf(index, column) {
    if (column.levels.length <= FEW_LEVELS || this.view.map !== 0) return [];
    const { keys, counts, sizes, side } = await this.atlas.levelCounts(index);
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

  /** How the layers are mixed: opacity of the density, and points. */
  layers(camera, layer) {
    const { atlas } = this;
    if (!this.ready || layer === "density") return { opacity: 1, count: 0 };
    if (layer === "points") return { opacity: 0, count: atlas.n_points };
    const hasAllInPicture = atlas.isSampled && this.isOfAllCells;
    if (!hasAllInPicture && this.nShown <= MOST_POINTS_FIRST) {
      return { opacity: 0, count: atlas.n_points };
    }
    const count = camera.zoom >= ZOOM_OF_POINTS ? atlas.n_points : 0;
    return { opacity: count ? 0.45 : 1, count };
  }

  pointSize(camera) {
    const [width, height] = this.size;
    const area = (0.3 * width * height) / Math.max(this.nShown, 1);
    return clampTo(Math.sqrt(area) * Math.sqrt(camera.zoom), 1.3, 7) * this.ratio;
  }

  /** Draw; fewer points while the reader moves the map, so that it follows the hand. */
  draw(camera, layer, isMoving) {
    const { opacity, count } = this.layers(camera, layer);
    const shown = isMoving ? Math.min(count, this.movingCount) : count;
    this.renderer.draw(camera, {
      opacity, count: shown, size: this.pointSize(camera), dims: Boolean(this.chosen),
    });
    this.countFrame(isMoving && count > 0);
    this.drawOverlay(camera);
  }

  countFrame(isMoving) {
    const now = performance.now();
    const took = now - this.lastFrame;
    const hasBefore = this.lastFrame > 0;
    this.lastFrame = isMoving ? now : 0;
    if (!isMoving || !hasBefore) return;
    if (took > SLOWEST_FRAME) {
      const factor = Math.max(0.3, (0.9 * SLOWEST_FRAME) / took);
      this.movingCount = Math.max(FEWEST_MOVING, this.movingCount * factor);
    } else if (took < 0.7 * SLOWEST_FRAME) {
      this.movingCount = Math.min(2 * this.atlas.n_points, this.movingCount * 1.15);
    }
  }

  drawOverlay(camera) {
    const context = this.overlay.getContext("2d");
    const { width, height } = this.overlay;
    context.clearRect(0, 0, width, height);
    const onScreen = (x, y) => camera.toScreen(x, y, width, height);
    this.drawLabels(context, onScreen);
    const path = this.path ?? this.outline?.map(([x, y]) => [x / 65536, y / 65536]);
    if (!path || path.length < 2) return;
    context.beginPath();
    path.forEach(([x, y], i) => context[i ? "lineTo" : "moveTo"](...onScreen(x, y)));
    context.closePath();
    context.lineWidth = 2 * this.ratio;
    context.strokeStyle = "#222";
    context.setLineDash([6 * this.ratio, 4 * this.ratio]);
    context.stroke();
    context.setLineDash([]);
    context.fillStyle = "rgba(0, 0, 0, 0.04)";
    context.fill();
  }

  drawLabels(context, onScreen) {
    context.font = `600 ${12 * this.ratio}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    const drawn = [];
    for (const { level, x, y, name } of this.labels) {
      if (!this.isVisible[level]) continue;
      const [px, py] = onScreen(x, y);
      const half = [context.measureText(name).width / 2 + 3, 8 * this.ratio];
      const isFree = drawn.every(
        ([ox, oy, ow]) => Math.abs(ox - px) > ow + half[0] || Math.abs(oy - py) > 2 * half[1],
      );
      if (!isFree) continue;
      drawn.push([px, py, half[0]]);
      context.lineWidth = 3.5 * this.ratio;
      context.strokeStyle = "rgba(255, 255, 255, 0.9)";
      context.strokeText(name, px, py);
      context.fillStyle = "#111";
      context.fillText(name, px, py);
    }
  }

  /** The shown point nearest to a place of the canvas, within some pixels; -1: none. */
  nearest(px, py, camera, within = 8) {
    if (!this.ready) return -1;
    const [width, height] = this.size;
    const [x, y] = camera.toMap(px, py, width, height).map((value) => value * 65536);
    let best = -1;
    let least = ((within / camera.scale(width, height)) * 65536) ** 2;
    const { places } = this;
    for (let i = 0; i < this.codes.length; i++) {
      const dx = places[2 * i] - x;
      const dy = places[2 * i + 1] - y;
      const away = dx * dx + dy * dy;
      if (away < least && this.shows(i)) {
        least = away;
        best = i;
      }
    }
    return best;
  }

  /** The picture with the names on it, as a canvas. */
  snapshot(camera, layer) {
    this.draw(camera, layer, false); // the pixels of WebGL last until this task ends
    const copy = document.createElement("canvas");
    copy.width = this.canvas.width;
    copy.height = this.canvas.height;
    const context = copy.getContext("2d");
    context.drawImage(this.canvas, 0, 0);
    context.drawImage(this.overlay, 0, 0);
    return copy;
  }
}

function windowOf(key, windows) {
  const at = key % (windows * windows);
  return [at % windows, Math.floor(at / windows)];
}

/** A random order, the same each time: any first part of it is a sample of all points. */
export function spreadOrder(n) {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  let state = 1;
  for (let k = n - 1; k > 0; k--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // Numerical Recipes
    const other = Math.floor((state / 2 ** 32) * (k + 1));
    [order[k], order[other]] = [order[other], order[k]];
  }
  return order;
}
