// Draws the same as webgl.js without a graphics card's help, into the pixels of a 2-D canvas.

/** A renderer for browsers without WebGL 2. */
export function openCanvas(canvas) {
  return new CanvasRenderer(canvas.getContext("2d", { alpha: false }));
}

class CanvasRenderer {
  constructor(context) {
    this.context = context;
    this.name = "2-D canvas";
    this.picture = null;
    this.nPoints = 0;
  }

  setPlaces(places) {
    this.places = places;
    this.nPoints = places.length / 2;
  }

  setCodes(codes) {
    this.codes = codes;
  }

  setChosen(chosen) {
    this.chosen = chosen;
  }

  setPalette(rgba) {
    this.palette = rgba;
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
    context.fillStyle = "white";
    context.fillRect(0, 0, width, height);
    if (this.picture && opacity > 0) {
      const scale = camera.scale(width, height);
      const [left, top] = camera.toScreen(0, 1, width, height);
      context.globalAlpha = opacity;
      context.drawImage(this.picture, left, top, scale, scale);
      context.globalAlpha = 1;
    }
    const shown = Math.min(count, this.nPoints);
    if (shown > 0) this.drawPoints(camera, shown, Math.max(1, Math.round(size)), dims);
  }

  drawPoints(camera, count, size, dims) {
    const { context, places, codes, palette, chosen } = this;
    const { width, height } = context.canvas;
    const image = context.getImageData(0, 0, width, height);
    const pixels = image.data;
    const scale = camera.scale(width, height);
    const step = scale / 65535;
    const left = width / 2 - camera.x * scale;
    const bottom = height / 2 + camera.y * scale;
    const half = size >> 1;
    for (let i = 0; i < count; i++) {
      const from = 4 * codes[i];
      if (!palette[from + 3]) continue;
      const x = Math.round(left + places[2 * i] * step) - half;
      const y = Math.round(bottom - places[2 * i + 1] * step) - half;
      if (x < 0 || y < 0 || x + size > width || y + size > height) continue;
      const grey = dims && !chosen[i];
      for (let row = y; row < y + size; row++) {
        for (let at = 4 * (row * width + x), end = at + 4 * size; at < end; at += 4) {
          pixels[at] = grey ? 215 : palette[from];
          pixels[at + 1] = grey ? 215 : palette[from + 1];
          pixels[at + 2] = grey ? 215 : palette[from + 2];
        }
      }
    }
    context.putImageData(image, 0, 0);
  }

  finish() {}
}
