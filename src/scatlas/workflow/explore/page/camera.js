// What part of the map a view shows. The map is the square from 0 to 1, y upwards.

const MAX_ZOOM = 2000;

export class Camera {
  constructor() {
    this.reset();
  }

  reset() {
    this.x = 0.5;
    this.y = 0.5;
    this.zoom = 1;
  }

  /** Pixels of the canvas per unit of the map. */
  scale(width, height) {
    return this.zoom * Math.min(width, height);
  }

  toMap(px, py, width, height) {
    const scale = this.scale(width, height);
    return [this.x + (px - width / 2) / scale, this.y - (py - height / 2) / scale];
  }

  toScreen(x, y, width, height) {
    const scale = this.scale(width, height);
    return [width / 2 + (x - this.x) * scale, height / 2 - (y - this.y) * scale];
  }

  pan(dx, dy, width, height) {
    const scale = this.scale(width, height);
    this.x = clampTo(this.x - dx / scale, -0.2, 1.2);
    this.y = clampTo(this.y + dy / scale, -0.2, 1.2);
  }

  /** Zoom around a place of the canvas, which stays where it is. */
  zoomAt(factor, px, py, width, height) {
    const before = this.toMap(px, py, width, height);
    this.zoom = clampTo(this.zoom * factor, 0.5, MAX_ZOOM);
    const after = this.toMap(px, py, width, height);
    this.x += before[0] - after[0];
    this.y += before[1] - after[1];
  }

  /** Share of the map that is in view: left, bottom, right, top. */
  bounds(width, height) {
    return [...this.toMap(0, height, width, height), ...this.toMap(width, 0, width, height)];
  }
}

export function clampTo(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
