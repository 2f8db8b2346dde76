// The state of the page as the text after # of its address, and back.

/** Text of a state. Names are as in the data, so that a link survives a new order of columns. */
export function writeLink(state) {
  const out = new URLSearchParams();
  state.views.forEach((view, i) => {
    const suffix = i ? "2" : "";
    out.set(`color${suffix}`, `${view.color.kind}:${view.color.name}`);
    if (view.map) out.set(`map${suffix}`, String(view.map));
    if (view.only) out.set(`only${suffix}`, pairText(view.only.column, view.only.level));
  });
  for (const [column, levels] of state.hidden) {
    for (const level of levels) out.append("hide", pairText(column, level));
  }
  if (state.layer !== "auto") out.set("layer", state.layer);
  if (state.theme) out.set("theme", state.theme);
  state.cameras.forEach((camera, i) => {
    if (camera.x === 0.5 && camera.y === 0.5 && camera.zoom === 1) return;
    const numbers = [camera.x.toFixed(5), camera.y.toFixed(5), camera.zoom.toPrecision(5)];
    out.set(`at${i ? i + 1 : ""}`, numbers.map(Number).join(","));
  });
  if (state.selection) {
    const { map, outline } = state.selection;
    out.set("lasso", [map, ...outline.flat()].map((value) => value.toString(36)).join("."));
  }
  return out.toString();
}

/** State of a text: only what the atlas has, whatever the text holds. */
export function readLink(text, atlas) {
  const given = new URLSearchParams(text);
  const state = { views: [], hidden: new Map(), layer: "auto", cameras: [], selection: null, theme: null };
  for (const suffix of ["", "2"]) {
    const color = readColour(given.get(`color${suffix}`), atlas);
    if (!color && !(suffix === "" && given.has("color2"))) continue;
    const map = Number(given.get(`map${suffix}`)) === 1 && atlas.maps.length > 1 ? 1 : 0;
    const only = readPair(given.get(`only${suffix}`), atlas);
    state.views.push({ color: color ?? { kind: "cells", name: "cells", index: 0 }, map, only });
  }
  for (const text of given.getAll("hide")) {
    const pair = readPair(text, atlas);
    if (!pair) continue;
    if (!state.hidden.has(pair.column)) state.hidden.set(pair.column, new Set());
    state.hidden.get(pair.column).add(pair.level);
  }
  const layer = given.get("layer");
  if (layer === "points" || layer === "density") state.layer = layer;
  const theme = given.get("theme");
  if (theme === "light" || theme === "dark") state.theme = theme;
  ["at", "at2"].forEach((name, i) => {
    const numbers = (given.get(name) ?? "").split(",").map(Number);
    if (numbers.length !== 3 || !numbers.every(Number.isFinite)) return;
    state.cameras[i] = { x: numbers[0], y: numbers[1], zoom: numbers[2] };
  });
  const [map, ...flat] = (given.get("lasso") ?? "").split(".").map((part) => parseInt(part, 36));
  if (flat.length >= 6 && flat.length % 2 === 0 && flat.every(Number.isInteger)) {
    const outline = [];
    for (let i = 0; i < flat.length; i += 2) outline.push([flat[i], flat[i + 1]]);
    state.selection = { map: map === 1 && atlas.maps.length > 1 ? 1 : 0, outline };
  }
  return state;
}

function pairText(column, level) {
  return JSON.stringify([column, level]);
}

function readPair(text, atlas) {
  let pair;
  try {
    pair = JSON.parse(text ?? "null");
  } catch {
    return null; // a link that somebody has changed
  }
  if (!Array.isArray(pair)) return null;
  const [column, level] = pair;
  const index = atlas.columnOf.get(column);
  if (index === undefined || !atlas.columns[index].levels.includes(level)) return null;
  return { column, level };
}

function readColour(text, atlas) {
  const found = /^(column|gene|cells):(.*)$/s.exec(text ?? "");
  return found && atlas.colour(found[1], found[2]);
}
