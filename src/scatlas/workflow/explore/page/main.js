// Joins the parts of the page: state, maps, panel, pointer and keyboard.
import { Atlas, readBlock } from "./atlas.js";
import { Camera } from "./camera.js";
import { cellsTsv, fileName, legendSvg, saveFile } from "./export.js";
import { byId, element } from "./legend.js";
import {
  colourTitle, compositionTables, legendContent, markerTable, markersOfSelection, viewLegend,
  viewText,
} from "./panel.js";
import { readLink, writeLink } from "./permalink.js";
import { countOf, formatCount } from "./scales.js";
import { listenToMap, pressKey, SETTLE_MS } from "./pointer.js";
import { listenToSearch } from "./finder.js";
import { searchEntries } from "./search.js";
import {
  boxOutline, choosePoints, countCellsInside, countChosen, roundOutline,
} from "./selection.js";
import { View } from "./view.js";

const TOOLS = ["pan", "lasso", "box"];

class Explorer {
  constructor(atlas) {
    this.atlas = atlas;
    this.cameras = atlas.maps.map(() => new Camera());
    this.views = [];
    this.states = [{ color: this.firstColour(), map: 0, only: null }];
    this.hidden = new Map();
    this.layer = "auto";
    this.tool = "pan";
    this.selection = null;
    this.mask = null; // of the selected points
    this.active = 0;
    this.movedAt = 0;
    this.drawing = 0;
    this.loading = Promise.resolve();
    this.version = 0; // of the selection, whose facts come later
  }

  firstColour() {
    const { columns } = this.atlas;
    const first = columns.findIndex((column) => column.kind === "category");
    return first < 0 ? this.atlas.colour("cells") : this.atlas.colour("column", columns[first].name);
  }

  /** The first picture: before the points are there. */
  async start() {
    this.renderer = new URLSearchParams(location.search).get("renderer");
    const { atlas } = this;
    byId("facts").textContent = this.factsText();
    this.addView(0);
    this.views[0].resize();
    await this.views[0].showFirst();
    this.draw();
    performance.mark("first-picture");
    await pageIsThere();
    this.entries = searchEntries(atlas);
    this.fillColours();
    this.listen();
    await this.applyLink();
    document.documentElement.dataset.ready = "true";
    performance.mark("ready");
  }

  factsText() {
    const { n_cells: all, n_points: points } = this.atlas;
    const whole = countOf(all, "cell");
    return points < all ? `${whole}, ${formatCount(points)} of them as points` : whole;
  }

  addView(i) {
    const root = byId(`view-${i}`);
    root.hidden = false;
    if (!this.views[i]) this.views[i] = new View(root, this.atlas, this.renderer);
  }

  // State -----------------------------------------------------------------------------------------

  async applyLink() {
    const found = readLink(location.hash.slice(1), this.atlas);
    if (found.views.length) this.states = found.views;
    this.hidden = found.hidden;
    this.layer = found.layer;
    this.cameras.forEach((camera, i) => {
      camera.reset();
      Object.assign(camera, found.cameras[i] ?? {});
    });
    this.selection = null;
    this.mask = null;
    this.active = 0;
    await this.reload();
    if (found.selection) await this.select(found.selection.outline, found.selection.map);
    else this.clear();
  }

  /** Load what the views show, one change after the other. */
  reload() {
    this.loading = this.loading.then(async () => {
      byId("views").classList.toggle("two", this.states.length > 1);
      byId("view-1").hidden = this.states.length < 2;
      byId("two").setAttribute("aria-pressed", String(this.states.length > 1));
      for (let i = 0; i < this.states.length; i++) {
        this.addView(i);
        this.views[i].resize();
        this.views[i].chosen = this.mask;
        await this.views[i].load(this.states[i], this.hidden);
      }
      await this.showPanel();
      this.showOutline();
      this.draw();
      this.saveLink();
    });
    return this.loading;
  }

  saveLink() {
    const state = {
      views: this.states, hidden: this.hidden, layer: this.layer, cameras: this.cameras,
      selection: this.selection,
    };
    const hash = `#${writeLink(state)}`;
    if (hash === location.hash) return;
    this.ownHash = hash;
    history.replaceState(null, "", hash);
  }

  setColour(i, color) {
    if (!color) return this.loading;
    this.states[i] = { ...this.states[i], color };
    return this.reload();
  }

  setOnly(i, only) {
    this.states[i] = { ...this.states[i], only };
    return this.reload();
  }

  setHidden(column, names) {
    if (names.size) this.hidden.set(column, names);
    else this.hidden.delete(column);
    return this.reload();
  }

  setTwo(isTwo) {
    const [first] = this.states;
    const mixed = this.atlas.maps.length > 1;
    this.states = isTwo ? [first, { ...first, map: mixed ? 1 - first.map : first.map }] : [first];
    this.active = 0;
    return this.reload();
  }

  setTool(tool) {
    this.tool = tool;
    for (const name of TOOLS) byId(name).setAttribute("aria-pressed", String(name === tool));
    byId("views").dataset.tool = tool;
  }

  // Pictures --------------------------------------------------------------------------------------

  camera(i) {
    return this.cameras[this.states[i].map];
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      const isMoving = performance.now() - this.movedAt < SETTLE_MS;
      this.states.forEach((_, i) => this.views[i]?.draw(this.camera(i), this.layer, isMoving));
      if (isMoving) this.settle();
    });
  }

  moved() {
    this.movedAt = performance.now();
    this.draw();
  }

  settle() {
    clearTimeout(this.settling);
    this.settling = setTimeout(() => {
      this.draw();
      this.saveLink();
    }, SETTLE_MS + 20);
  }

  // Panel -----------------------------------------------------------------------------------------

  fillColours() {
    const { atlas } = this;
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

  async showPanel() {
    const parts = [];
    const texts = [];
    for (let i = 0; i < this.states.length; i++) {
      const state = this.states[i];
      byId(`color-${i}`).value = `${state.color.kind}:${state.color.name}`;
      byId(`map-${i}`).value = state.map;
      const chip = byId(`only-${i}`);
      chip.hidden = !state.only;
      chip.textContent = state.only ? `only ${state.only.column}: ${state.only.level} ×` : "";
      const name = this.states.length > 1 ? `${"AB"[i]}: ` : "";
      const legend = await viewLegend(this.atlas, state, this.hidden, (c) => this.actions(i, c));
      parts.push(
        element("section", { class: "of-view" },
          element("h2", {}, `${name}${colourTitle(state.color)}`), legend),
      );
      texts.push(`${name}${await viewText(this.atlas, state, this.hidden)}`);
      byId(`view-${i}`).querySelector("canvas.overlay").setAttribute("aria-label", texts[i]);
    }
    keepFocus(byId("legends"), parts);
    byId("description").textContent = texts.join(" ");
    byId("layer").value = this.layer;
  }

  actions(i, column) {
    const hidden = () => new Set(this.hidden.get(column.name) ?? []);
    return {
      toggle: (name) => {
        const names = hidden();
        if (!names.delete(name)) names.add(name);
        this.setHidden(column.name, names);
      },
      hideAll: (names) => this.setHidden(column.name, new Set(names)),
      showAll: () => this.setHidden(column.name, new Set()),
      only: (level) => this.setOnly(i, level === null ? null : { column: column.name, level }),
      gene: (index) => this.setColour(i, this.atlas.colour("gene", this.atlas.genes[index].name)),
    };
  }

  // Selection -------------------------------------------------------------------------------------

  async select(outline, map) {
    const { atlas } = this;
    const i = Math.max(0, this.states.findIndex((state) => state.map === map));
    const view = this.views[i];
    const places = await atlas.places(map);
    const mask = choosePoints(places, outline, (k) => view.shows(k));
    this.selection = { map, outline };
    this.mask = mask;
    this.version++;
    for (const one of this.views) one.setChosen(mask);
    this.showOutline();
    this.draw();
    this.saveLink();
    await this.showSelection(mask, outline, i);
  }

  clear() {
    this.selection = null;
    this.mask = null;
    this.version++;
    for (const view of this.views) {
      view.setChosen(null);
      view.outline = null;
    }
    byId("selection").hidden = true;
    this.draw();
    this.saveLink();
  }

  showOutline() {
    this.states.forEach((state, i) => {
      const isHere = this.selection && this.selection.map === state.map;
      this.views[i].outline = isHere ? this.selection.outline : null;
    });
  }

  async showSelection(mask, outline, i) {
    const { atlas, version } = this;
    const n = countChosen(mask);
    const texts = [`${countOf(n, "cell")} selected${atlas.isSampled ? " of the sample" : ""}.`];
    const state = this.states[i];
    if (atlas.isSampled && state.map === 0 && !state.only && !this.hidden.size) {
      const all = countCellsInside(await atlas.cells(), atlas.side, outline);
      texts.push(`About ${formatCount(all)} of all cells lie here.`);
    }
    byId("selection").hidden = false;
    byId("selected").textContent = texts.join(" ");
    byId("selected").dataset.cells = String(n);
    byId("markers").replaceChildren();
    byId("composition").replaceChildren();
    byId("save-cells").disabled = !n;
    if (!n) return;
    const onLevel = (column) => this.setColour(this.active, atlas.colour("column", column.name));
    const tables = await compositionTables(atlas, mask, onLevel);
    if (version !== this.version) return;
    byId("composition").replaceChildren(...tables);
    byId("markers").replaceChildren(element("p", { class: "note" }, "comparing genes …"));
    const found = await markersOfSelection(atlas, mask, () => version !== this.version);
    if (!found) return;
    const onGene = (index) =>
      this.setColour(this.active, atlas.colour("gene", atlas.genes[index].name));
    byId("markers").replaceChildren(
      found.length
        ? markerTable(found, onGene)
        : element("p", { class: "note" }, "No gene of the page is higher here."),
    );
  }

  async saveCells() {
    const names = await this.atlas.names();
    const plate = this.atlas.columnOf.get("plate");
    const codes = plate === undefined ? null : await this.atlas.codes(plate);
    const levels = codes ? this.atlas.columns[plate].levels : [];
    const rows = [];
    this.mask.forEach((chosen, i) => {
      if (chosen) rows.push(codes ? [names[i], levels[codes[i]] ?? ""] : [names[i]]);
    });
    const header = codes ? ["cell", "plate"] : ["cell"];
    saveFile("selected-cells.tsv", cellsTsv(header, rows), "text/tab-separated-values");
  }

  // Pointer and keyboard --------------------------------------------------------------------------

  listen() {
    for (const i of [0, 1]) {
      listenToMap(this, i);
      byId(`color-${i}`).addEventListener("change", (event) => {
        const [, kind, name] = /^(\w+):(.*)$/s.exec(event.target.value);
        this.setColour(i, this.atlas.colour(kind, name));
      });
      byId(`map-${i}`).addEventListener("change", (event) => {
        this.states[i] = { ...this.states[i], map: Number(event.target.value) };
        this.reload();
      });
      byId(`only-${i}`).addEventListener("click", () => this.setOnly(i, null));
    }
    for (const tool of TOOLS) byId(tool).addEventListener("click", () => this.setTool(tool));
    const clicks = {
      two: () => this.setTwo(this.states.length < 2),
      home: () => this.home(),
      clear: () => this.clear(),
      "save-cells": () => this.saveCells(),
      "save-png": () => this.savePicture(),
      "save-svg": () => this.saveLegend(),
      help: () => byId("keys").showModal(),
    };
    for (const [id, action] of Object.entries(clicks)) byId(id).addEventListener("click", action);
    byId("layer").addEventListener("change", (event) => {
      this.layer = event.target.value;
      this.draw();
      this.saveLink();
    });
    listenToSearch(this);
    window.addEventListener("keydown", (event) => pressKey(this, event));
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.ownHash) this.applyLink();
    });
    new ResizeObserver(() => {
      this.states.forEach((_, i) => this.views[i]?.resize());
      this.draw();
    }).observe(byId("views"));
  }

  home() {
    for (const camera of this.cameras) camera.reset();
    this.moved();
    this.settle();
  }

  selectWhatIsInView() {
    const [left, bottom, right, top] = this.camera(this.active).bounds(...this.views[this.active].size);
    const outline = roundOutline(boxOutline([left, bottom], [right, top]));
    return this.select(outline, this.states[this.active].map);
  }

  // Files -----------------------------------------------------------------------------------------

  savePicture() {
    const parts = this.states.map((_, i) => this.views[i].snapshot(this.camera(i), this.layer));
    const whole = document.createElement("canvas");
    whole.width = parts.reduce((sum, part) => sum + part.width, 0);
    whole.height = Math.max(...parts.map((part) => part.height));
    const context = whole.getContext("2d");
    let left = 0;
    for (const part of parts) {
      context.drawImage(part, left, 0);
      left += part.width;
    }
    const name = fileName("map", ...this.states.map((state) => state.color.name));
    whole.toBlob((blob) => saveFile(`${name}.png`, blob), "image/png");
  }

  async saveLegend() {
    const state = this.states[this.active];
    const { rows, scale } = await legendContent(this.atlas, state, this.hidden);
    const svg = legendSvg(colourTitle(state.color), rows, scale);
    saveFile(`${fileName("legend", state.color.name)}.svg`, svg, "image/svg+xml");
  }
}

/** Resolves when the browser has read the whole page. */
function pageIsThere() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("DOMContentLoaded", resolve, { once: true });
  });
}

/** Replace the children; the control that had the focus, or a search text, stays as it was. */
function keepFocus(parent, children) {
  const label = (one) => one.getAttribute("aria-label") ?? one.parentElement.title;
  const focused = parent.contains(document.activeElement) ? label(document.activeElement) : null;
  const scrolled = [...parent.querySelectorAll(".levels")].map((list) => list.scrollTop);
  const texts = new Map([...parent.querySelectorAll("input[type=search]")]
    .map((input) => [label(input), input.value]));
  parent.replaceChildren(...children);
  for (const input of parent.querySelectorAll("input[type=search]")) {
    const text = texts.get(label(input));
    if (!text) continue;
    input.value = text;
    input.dispatchEvent(new Event("input"));
  }
  [...parent.querySelectorAll(".levels")].forEach((list, i) => (list.scrollTop = scrolled[i] ?? 0));
  if (!focused) return;
  const controls = parent.querySelectorAll("input, button");
  [...controls].find((one) => label(one) === focused)?.focus();
}

async function openPage() {
  try {
    const explorer = new Explorer(await Atlas.open(readBlock));
    window.explorer = explorer; // for the console, and for tests
    await explorer.start();
  } catch (error) {
    const message = byId("message");
    message.hidden = false;
    message.textContent = `The page cannot be shown: ${error.message} It needs Chrome or Edge 103, `
      + "Firefox 113, or Safari 16.4, or a newer one.";
    throw error;
  }
}

openPage();
