// The controls of the page: pointer and keys on the maps, lists, buttons, the address, the window.
import { saveCells, saveLegend, savePicture } from "./export.js";
import { listenToSearch } from "./finder.js";
import { byId, element } from "./legend.js";
import { boxOutline, roundOutline } from "./selection.js";

export const SETTLE_MS = 160; // without a move, all points are drawn
const MAX_OUTLINE = 400; // corners of a lasso

export function listenToMap(explorer, i) {
  const surface = byId(`view-${i}`).querySelector("canvas.overlay");
  const held = new Map(); // pointers that are down
  const at = (event) => {
    const box = surface.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const size = () => [surface.clientWidth, surface.clientHeight];
  surface.addEventListener("pointerdown", (event) => {
    surface.setPointerCapture(event.pointerId);
    surface.focus({ preventScroll: true });
    explorer.active = i;
    held.set(event.pointerId, at(event));
    const tool = event.shiftKey ? "lasso" : explorer.tool;
    explorer.views[i].path = null;
    if (tool !== "pan" && held.size === 1) {
      const start = explorer.camera(i).toMap(...at(event), ...size());
      explorer.views[i].path = [start];
      explorer.drawn = { tool, start, last: at(event) };
    }
  });
  surface.addEventListener("pointermove", (event) => {
    const now = at(event);
    const before = held.get(event.pointerId);
    if (!before) return hoverMap(explorer, i, ...now);
    const camera = explorer.camera(i);
    const view = explorer.views[i];
    if (view.path) {
      const place = camera.toMap(...now, ...size());
      if (explorer.drawn.tool === "box") view.path = boxOutline(explorer.drawn.start, place);
      else if (Math.hypot(now[0] - explorer.drawn.last[0], now[1] - explorer.drawn.last[1]) > 3) {
        if (view.path.length < MAX_OUTLINE) view.path.push(place);
        explorer.drawn.last = now;
      }
      explorer.draw();
      return;
    }
    if (held.size === 2) {
      const [, other] = [...held].find(([id]) => id !== event.pointerId);
      const spread = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
      const middle = [(now[0] + other[0]) / 2, (now[1] + other[1]) / 2];
      camera.zoomAt(spread(now) / Math.max(1, spread(before)), ...middle, ...size());
      camera.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2, ...size());
    } else {
      camera.pan(now[0] - before[0], now[1] - before[1], ...size());
    }
    held.set(event.pointerId, now);
    explorer.moved();
  });
  const release = (event) => {
    if (!held.delete(event.pointerId)) return;
    const { path } = explorer.views[i];
    explorer.views[i].path = null;
    if (path && path.length > 2) explorer.select(roundOutline(path), explorer.states[i].map);
    else explorer.draw();
  };
  surface.addEventListener("pointerup", release);
  surface.addEventListener("pointercancel", release);
  surface.addEventListener("pointerleave", () => (byId("tip").hidden = true));
  surface.addEventListener("focus", () => (explorer.active = i));
  surface.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 16 : 1;
      explorer.camera(i).zoomAt(Math.exp(-0.0015 * lines * event.deltaY), ...at(event), ...size());
      explorer.moved();
    },
    { passive: false },
  );
  surface.addEventListener("dblclick", (event) => {
    explorer.camera(i).zoomAt(2, ...at(event), ...size());
    explorer.moved();
  });
}

/** The name of the point under the pointer. */
function hoverMap(explorer, i, px, py) {
  if (explorer.hovering || performance.now() - explorer.movedAt < SETTLE_MS) return;
  explorer.hovering = requestAnimationFrame(async () => {
    const view = explorer.views[i];
    const isDrawn = view.layers(explorer.camera(i), explorer.layer).count > 0;
    const found = isDrawn ? view.nearest(px, py, explorer.camera(i)) : -1;
    byId("tip").hidden = found < 0;
    if (found >= 0) await showTip(explorer, view, i, found, px, py);
    explorer.hovering = 0;
  });
}

async function showTip(explorer, view, i, point, px, py) {
  const { atlas } = explorer;
  const { color } = explorer.states[i];
  const code = view.codes[point];
  const column = atlas.columns[color.index];
  let value = "";
  if (color.kind === "gene") {
    value = ((code / 255) * atlas.genes[color.index].high).toFixed(2);
  } else if (color.kind === "column" && column.kind === "category") {
    value = column.levels[code];
  } else if (color.kind === "column") {
    value = code > 254 ? "no value" : String(Number(atlas.numberOf(color.index, code).toPrecision(3)));
  }
  const name = (await atlas.names())[point];
  const tip = byId("tip");
  tip.textContent = value === "" ? name : `${color.name}: ${value}\n${name}`;
  const box = byId(`view-${i}`).getBoundingClientRect();
  const right = Math.min(box.left + px + 14, window.innerWidth - 220);
  tip.style.left = `${Math.max(4, right)}px`;
  tip.style.top = `${box.top + py + 14 + byId(`view-${i}`).querySelector(".bar-of-view").offsetHeight}px`;
}

export function pressKey(explorer, event) {
  const isTyping = event.target.closest("input, select, textarea, dialog");
  if (event.key === "Escape" && !isTyping) return explorer.clear();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const isOnMap = event.target.matches("canvas.overlay");
  const [width, height] = explorer.views[explorer.active].size;
  const camera = explorer.camera(explorer.active);
  const zoom = (factor) => {
    camera.zoomAt(factor, width / 2, height / 2, width, height);
    explorer.moved();
  };
  const pan = (dx, dy) => {
    camera.pan(dx * 0.1 * width, dy * 0.1 * height, width, height);
    explorer.moved();
  };
  const ofMap = {
    ArrowLeft: () => pan(1, 0), ArrowRight: () => pan(-1, 0),
    ArrowUp: () => pan(0, 1), ArrowDown: () => pan(0, -1),
  };
  const everywhere = {
    "+": () => zoom(1.4), "=": () => zoom(1.4), "-": () => zoom(1 / 1.4), 0: () => explorer.home(),
    p: () => explorer.setTool("pan"), l: () => explorer.setTool("lasso"), b: () => explorer.setTool("box"),
    v: () => explorer.selectWhatIsInView(), 2: () => explorer.setTwo(explorer.states.length < 2),
    "/": () => byId("search").focus(), "?": () => byId("keys").showModal(),
  };
  const action = everywhere[event.key] ?? (isOnMap ? ofMap[event.key] : undefined);
  if (!action) return;
  event.preventDefault();
  action();
}

export const TOOLS = ["pan", "lasso", "box"];

/** Fill the lists of colours and maps. */
export function fillColours(explorer) {
  const { atlas } = explorer;
  const option = (kind, name) => element("option", { value: `${kind}:${name}` }, name);
  const group = (label, options) => element("optgroup", { label }, ...options);
  const names = (kind) =>
    atlas.columns.filter((c) => c.kind === kind).map((c) => option("column", c.name));
  const genes = () => atlas.genes.map((gene) => option("gene", gene.name));
  for (const i of [0, 1]) {
    byId(`color-${i}`).append(
      element("option", { value: "cells:cells" }, "number of cells"),
      group("Categories", names("category")),
      group("Numbers", names("number")),
      group("Genes", genes()),
    );
    const maps = byId(`map-${i}`);
    maps.append(...atlas.maps.map((name, k) => element("option", { value: k }, name)));
    maps.parentElement.hidden = atlas.maps.length < 2;
  }
}

export function listenToControls(explorer) {
  for (const i of [0, 1]) {
    listenToMap(explorer, i);
    byId(`color-${i}`).addEventListener("change", (event) => {
      const [, kind, name] = /^(\w+):(.*)$/s.exec(event.target.value);
      explorer.setColour(i, explorer.atlas.colour(kind, name));
    });
    byId(`map-${i}`).addEventListener("change", (event) => {
      explorer.change(i, { map: Number(event.target.value) });
    });
    byId(`only-${i}`).addEventListener("click", () => explorer.change(i, { only: null }));
  }
  for (const tool of TOOLS) byId(tool).addEventListener("click", () => explorer.setTool(tool));
  const clicks = {
    two: () => explorer.setTwo(explorer.states.length < 2),
    home: () => explorer.home(),
    clear: () => explorer.clear(),
    "save-cells": () => saveCells(explorer),
    "save-png": () => explorer.onPaper(() => savePicture(explorer)),
    "save-svg": () => explorer.onPaper(() => saveLegend(explorer)),
    dark: () => explorer.switchTheme(),
    more: () => {
      const isOpen = byId("more").getAttribute("aria-expanded") === "true";
      byId("more").setAttribute("aria-expanded", String(!isOpen));
    },
    help: () => byId("keys").showModal(),
  };
  for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
  byId("layer").addEventListener("change", (event) => {
    explorer.layer = event.target.value;
    explorer.draw();
    explorer.saveLink();
  });
  listenToSearch(explorer);
  window.addEventListener("keydown", (event) => pressKey(explorer, event));
  window.addEventListener("hashchange", () => {
    if (location.hash !== explorer.ownHash) explorer.applyLink();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    explorer.setTheme(explorer.theme);
    explorer.reload();
  });
  new ResizeObserver(() => {
    explorer.states.forEach((_, i) => explorer.views[i]?.resize());
    explorer.draw();
  }).observe(byId("views"));
}
