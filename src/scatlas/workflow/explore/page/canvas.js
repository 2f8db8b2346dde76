// Draws the same as webgl.js without a graphics card, into the pixels of a 2-D canvas.
import { hexOfRgb, scheme } from "./colours.js";

/** A renderer for browsers without WebGL 2 on a graphics card. */
export function openCanvas(canvas) {
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  return new CanvasRenderer(context);
}

class CanvasRenderer {
  constructor(context) {
    this.context = context;
    this.name = "2-D canvas";
    this.picture = null;
    this.nPoints = 0;
  }

  setPositions(positions) {
    this.positions = positions;
    this.nPoints = positions.length / 2;
  }

  setCodes(codes) {
    this.codes = codes;
  }

  setChosen(chosen) {
    this.chosen = chosen;
  }

  /** Colours by code; points are opaque or not drawn. */
  setPalette(rgba) {
    this.palette = new Uint32Array(rgba.length / 4);
    for (let code = 0; code < this.palette.length; code++) {
      const [red, green, blue, alpha] = rgba.subarray(4 * code, 4 * code + 4);
      if (alpha) this.palette[code] = bytesOf([red, green, blue]);
    }
  }

  setPicture({ side, rgba }) {
    this.picture = new OffscreenCanvas(side, side);
    const flipped = new Uint8ClampedArray(rgba.length);
    for (let row = 0; row < side; row++) {
      flipped.set(rgba.subarray(4 * row * side, 4 * (row + 1) * side), 4 * (side - 1 - row) * side);
    }
    this.picture.getContext("2d").putImageData(new ImageData(flipped, side, side), 0, 0);
  }

  draw(camera, { opacity, count, size, dims }) {
    const { context } = this;
    const { width, height } = context.canvas;
    context.fillStyle = hexOfRgb(scheme.paper);
    context.fillRect(0, 0, width, height);
    if (this.picture && opacity > 0) {
      const scale = camera.scale(width, height);
      const [left, top] = camera.toScreen(0, 1, width, height);
      context.globalAlpha = opacity;
      context.drawImage(this.picture, left, top, scale, scale);
      context.globalAlpha = 1;
    }
    const shown = Math.min(count, this.nPoints);
    if (!shown) return;
    const image = context.getImageData(0, 0, width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const diameter = Math.max(1, Math.round(size));
    const faded = bytesOf(scheme.faded);
    if (dims) this.drawPoints(pixels, camera, shown, diameter, (i) => !this.chosen[i], faded);
    const isDrawn = dims ? (i) => this.chosen[i] : null;
    this.drawPoints(pixels, camera, shown, diameter, isDrawn, 0);
    context.putImageData(image, 0, 0);
  }

  /** Draw the points that a test lets pass (null: all), in their colours or in one. */
  drawPoints(pixels, camera, count, size, isDrawn, oneColour) {
    const { positions, codes, palette } = this;
    const { width, height } = this.context.canvas;
    const scale = camera.scale(width, height);
    const step = scale / 65535;
    const half = size / 2;
    const left = width / 2 - camera.x * scale - half;
    const bottom = height / 2 + camera.y * scale - half;
    const [right, top] = [width - size, height - size];
    const insets = discInsets(size);
    for (let i = 0; i < count; i++) {
      const x = (left + positions[2 * i] * step) | 0;
      const y = (bottom - positions[2 * i + 1] * step) | 0;
      if (x < 0 || y < 0 || x > right || y > top) continue;
      const own = palette[codes[i]];
      if (!own || (isDrawn && !isDrawn(i))) continue;
      const colour = oneColour || own;
      for (let row = 0; row < size; row++) {
        const first = (y + row) * width + x + insets[row];
        const end = first + size - 2 * insets[row];
        for (let at = first; at < end; at++) pixels[at] = colour;
      }
    }
  }

  finish() {}
}

/** An opaque colour as a pixel: alpha, blue, green, red. */
function bytesOf([red, green, blue]) {
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Pixels that each row of a disc is shorter on either side. */
export function discInsets(size) {
  const radius = size / 2;
  return Array.from({ length: size }, (_, row) => {
    const away = row + 0.5 - radius;
    return size < 4 ? 0 : Math.round(radius - Math.sqrt(radius * radius - away * away));
  });
}
