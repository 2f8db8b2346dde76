// One map: what it shows of the atlas, its layers, and how they are drawn.
import { clampTo } from "./camera.js";
import { openCanvas } from "./canvas.js";
import { levelColours, scheme } from "./colours.js";
import { pictureOfCounts } from "./density.js";
import { drawOverlay, labelsOf } from "./labels.js";
import { cellCounts, codesOf, paletteOf, pictureOf, spreadOrder } from "./layers.js";
import { openWebgl } from "./webgl.js";

// Up to this many cells are points from the start; of more, density until the reader zooms in.
const MAX_POINTS_FIRST = 200_000;
const ZOOM_OF_POINTS = 2.5;
// While the map moves: milliseconds per frame, and points at first and at least.
const SLOWEST_FRAME = 33;
const FIRST_MOVING = 100_000;
const MIN_MOVING = 5_000;

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
    this.outline = null; // the finished one, in steps of the positions
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
    const { counts, side } = await cellCounts(this.atlas);
    this.renderer.setPicture(pictureOfCounts(counts, side, scheme.plain));
  }

  /** Load what the view shows: `color`, `map`, `only` and the hidden levels. */
  async load(state, hidden) {
    const { atlas } = this;
    this.state = state;
    const column = atlas.columns[state.color.index];
    const isCategory = state.color.kind === "column" && column.kind === "category";
    const hiddenNames = (isCategory && hidden.get(column.name)) || new Set();
    this.positions = await atlas.positions(state.map);
    this.colours = isCategory ? levelColours(column) : [];
    this.isVisible = isCategory ? column.levels.map((name) => !hiddenNames.has(name)) : [];
    const codes = await codesOf(atlas, state);
    this.palette = paletteOf(state.color, this.colours, this.isVisible);
    this.codes = codes;
    this.nShown = 0;
    for (let i = 0; i < codes.length; i++) if (this.shows(i)) this.nShown++;
    this.upload();
    this.renderer.setPicture(await pictureOf(this, codes, isCategory));
    this.labels = isCategory ? await labelsOf(atlas, state.color.index, state.map) : [];
    this.ready = true;
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
    const positions = new Uint16Array(2 * n);
    const codes = new Uint16Array(n);
    for (let k = 0; k < n; k++) {
      const i = this.order[k];
      positions[2 * k] = this.positions[2 * i];
      positions[2 * k + 1] = this.positions[2 * i + 1];
      codes[k] = this.codes[i];
    }
    renderer.setPositions(positions);
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

  /** How the layers are mixed: opacity of the density, and points. */
  layers(camera, layer) {
    const { atlas } = this;
    if (!this.ready || layer === "density") return { opacity: 1, count: 0 };
    if (layer === "points") return { opacity: 0, count: atlas.n_points };
    const hasAllInPicture = atlas.isSampled && this.isOfAllCells;
    if (!hasAllInPicture && this.nShown <= MAX_POINTS_FIRST) {
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
    drawOverlay(this, camera);
  }

  countFrame(isMoving) {
    const now = performance.now();
    const took = now - this.lastFrame;
    const hasBefore = this.lastFrame > 0;
    this.lastFrame = isMoving ? now : 0;
    if (!isMoving || !hasBefore) return;
    if (took > SLOWEST_FRAME) {
      const factor = Math.max(0.3, (0.9 * SLOWEST_FRAME) / took);
      this.movingCount = Math.max(MIN_MOVING, this.movingCount * factor);
    } else if (took < 0.7 * SLOWEST_FRAME) {
      this.movingCount = Math.min(2 * this.atlas.n_points, this.movingCount * 1.15);
    }
  }

  /** The shown point nearest to a place of the canvas, within some pixels; -1: none. */
  nearest(px, py, camera, within = 8) {
    if (!this.ready) return -1;
    const [width, height] = this.size;
    const [x, y] = camera.toMap(px, py, width, height).map((value) => value * 65536);
    let best = -1;
    let least = ((within / camera.scale(width, height)) * 65536) ** 2;
    const { positions } = this;
    for (let i = 0; i < this.codes.length; i++) {
      const dx = positions[2 * i] - x;
      const dy = positions[2 * i + 1] - y;
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
