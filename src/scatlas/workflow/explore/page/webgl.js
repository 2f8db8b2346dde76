// Draws a picture of the density and the points with WebGL 2.
import { NO_CODE } from "./atlas.js";
import { scheme } from "./colours.js";

const PALETTE_WIDTH = 256;

const POINTS_VERTEX = `#version 300 es
layout(location = 0) in vec2 place;
layout(location = 1) in uint code;
layout(location = 2) in float chosen;
uniform vec2 centre, scale;
uniform float size, dims;
uniform vec3 faded;
uniform highp sampler2D palette;
flat out vec4 colour;
flat out float diameter;
void main() {
  vec4 found = texelFetch(palette, ivec2(int(code & 255u), int(code >> 8u)), 0);
  bool shown = found.a > 0.0;
  float grey = dims * (1.0 - chosen);
  colour = vec4(mix(found.rgb, faded, grey * 0.85), found.a * (1.0 - 0.7 * grey));
  diameter = size * (1.0 + 0.3 * dims * chosen);
  gl_PointSize = diameter > 1.6 ? diameter + 1.0 : diameter;
  gl_Position = shown ? vec4((place - centre) * scale, 0.0, 1.0) : vec4(9.0, 9.0, 9.0, 1.0);
}`;

const POINTS_FRAGMENT = `#version 300 es
precision mediump float;
flat in vec4 colour;
flat in float diameter;
out vec4 pixel;
void main() {
  float alpha = colour.a;
  if (diameter > 1.6) { // round, with a soft edge
    float away = length(gl_PointCoord - 0.5) * (diameter + 1.0);
    alpha *= clamp(diameter * 0.5 - away + 0.5, 0.0, 1.0);
  }
  pixel = vec4(colour.rgb * alpha, alpha);
}`;

const PICTURE_VERTEX = `#version 300 es
layout(location = 0) in vec2 corner;
uniform vec2 centre, scale;
out vec2 at;
void main() {
  at = corner;
  gl_Position = vec4((corner - centre) * scale, 0.0, 1.0);
}`;

const PICTURE_FRAGMENT = `#version 300 es
precision mediump float;
uniform sampler2D picture;
uniform float opacity;
in vec2 at;
out vec4 pixel;
void main() {
  vec4 found = texture(picture, at);
  pixel = found * opacity;
}`;

/**
 * A renderer, or null if the browser has no WebGL 2. With `needsCard` also if it has no graphics
 * card for it: without one canvas.js is ten times as fast.
 */
export function openWebgl(canvas, needsCard) {
  // A canvas with one kind of context never gets another: ask a spare one.
  if (needsCard) {
    const spare = document.createElement("canvas");
    const gl = spare.getContext("webgl2", { failIfMajorPerformanceCaveat: true });
    if (!gl || isSoftware(gl)) return null;
  }
  const gl = canvas.getContext("webgl2", { antialias: false, alpha: true, depth: false });
  return gl ? new WebglRenderer(gl) : null;
}

/** Whether WebGL runs on the processor. Some browsers do not count that as a caveat. */
function isSoftware(gl) {
  const info = gl.getExtension("WEBGL_debug_renderer_info");
  const name = gl.getParameter(info ? info.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  return /swiftshader|llvmpipe|softpipe|software|basic render/i.test(String(name));
}

class WebglRenderer {
  constructor(gl) {
    this.gl = gl;
    this.name = "WebGL 2";
    this.points = linkProgram(gl, POINTS_VERTEX, POINTS_FRAGMENT);
    this.picture = linkProgram(gl, PICTURE_VERTEX, PICTURE_FRAGMENT);
    this.corners = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, this.corners);
    gl.bufferData(gl.ARRAY_BUFFER, new Float32Array([0, 0, 1, 0, 0, 1, 1, 1]), gl.STATIC_DRAW);
    this.buffers = [gl.createBuffer(), gl.createBuffer(), gl.createBuffer()];
    this.textures = { picture: gl.createTexture(), palette: gl.createTexture() };
    this.nPoints = 0;
    this.hasPicture = false;
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA); // colours are multiplied by their opacity
  }

  setPositions(positions) {
    this.nPoints = positions.length / 2;
    this.fill(0, positions);
  }

  setCodes(codes) {
    this.fill(1, codes);
  }

  setChosen(chosen) {
    this.fill(2, chosen);
  }

  fill(i, array) {
    const gl = this.gl;
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[i]);
    gl.bufferData(gl.ARRAY_BUFFER, array, gl.STATIC_DRAW);
  }

  /** Colours by code, red, green, blue and opacity; code NO_CODE is in it, too. */
  setPalette(rgba) {
    this.upload("palette", PALETTE_WIDTH, (NO_CODE + 1) / PALETTE_WIDTH, rgba, this.gl.NEAREST);
  }

  /** A picture, whose empty pixels stay empty beside others. */
  setPicture({ side, rgba }) {
    const multiplied = new Uint8Array(rgba.length);
    for (let p = 0; p < rgba.length; p += 4) {
      const alpha = rgba[p + 3];
      for (let c = 0; c < 3; c++) multiplied[p + c] = (rgba[p + c] * alpha) / 255;
      multiplied[p + 3] = alpha;
    }
    this.upload("picture", side, side, multiplied, this.gl.LINEAR);
    this.hasPicture = true;
  }

  upload(name, width, height, rgba, filter) {
    const gl = this.gl;
    gl.bindTexture(gl.TEXTURE_2D, this.textures[name]);
    gl.texImage2D(
      gl.TEXTURE_2D, 0, gl.RGBA8, width, height, 0, gl.RGBA, gl.UNSIGNED_BYTE, rgba,
    );
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, filter);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MAG_FILTER, filter);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
  }

  /**
   * Draw the picture with an opacity, then the first `count` points of this diameter; `dims` greys
   * the points that are not chosen.
   */
  draw(camera, { opacity, count, size, dims }) {
    const gl = this.gl;
    const { width, height } = gl.canvas;
    gl.viewport(0, 0, width, height);
    gl.clearColor(...scheme.paper.map((value) => value / 255), 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    const scale = camera.scale(width, height);
    const toClip = [(2 * scale) / width, (2 * scale) / height];
    if (this.hasPicture && opacity > 0) this.drawPicture(camera, toClip, opacity);
    if (this.nPoints && count > 0) this.drawPoints(camera, toClip, { count, size, dims });
  }

  drawPicture(camera, toClip, opacity) {
    const { gl, picture } = this;
    gl.useProgram(picture.program);
    gl.uniform2f(picture.at("centre"), camera.x, camera.y);
    gl.uniform2f(picture.at("scale"), ...toClip);
    gl.uniform1f(picture.at("opacity"), opacity);
    gl.bindTexture(gl.TEXTURE_2D, this.textures.picture);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.corners);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 2, gl.FLOAT, false, 0, 0);
    gl.disableVertexAttribArray(1);
    gl.disableVertexAttribArray(2);
    gl.drawArrays(gl.TRIANGLE_STRIP, 0, 4);
  }

  drawPoints(camera, toClip, { count, size, dims }) {
    const { gl, points } = this;
    gl.useProgram(points.program);
    gl.uniform2f(points.at("centre"), camera.x, camera.y);
    gl.uniform2f(points.at("scale"), ...toClip);
    gl.uniform1f(points.at("size"), size);
    gl.uniform1f(points.at("dims"), dims ? 1 : 0);
    gl.uniform3f(points.at("faded"), ...scheme.faded.map((value) => value / 255));
    gl.bindTexture(gl.TEXTURE_2D, this.textures.palette);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[0]);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 2, gl.UNSIGNED_SHORT, true, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[1]);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribIPointer(1, 1, gl.UNSIGNED_SHORT, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[2]);
    gl.enableVertexAttribArray(2);
    gl.vertexAttribPointer(2, 1, gl.UNSIGNED_BYTE, false, 0, 0);
    gl.drawArrays(gl.POINTS, 0, Math.min(count, this.nPoints));
  }

  /** Wait until the picture is there: a measurement of time needs it. */
  finish() {
    const pixel = new Uint8Array(4);
    this.gl.readPixels(0, 0, 1, 1, this.gl.RGBA, this.gl.UNSIGNED_BYTE, pixel);
  }
}

function linkProgram(gl, vertex, fragment) {
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, vertex], [gl.FRAGMENT_SHADER, fragment]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) {
      throw new Error(`WebGL: ${gl.getShaderInfoLog(shader)}`);
    }
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  const found = new Map();
  const at = (name) => {
    if (!found.has(name)) found.set(name, gl.getUniformLocation(program, name));
    return found.get(name);
  };
  return { program, at };
}
