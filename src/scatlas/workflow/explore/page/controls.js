// The controls of the page: lists of colours and maps, buttons, keys, the address and the window.
import { saveCells, saveLegend, savePicture } from "./files.js";
import { listenToSearch } from "./finder.js";
import { byId, element } from "./legend.js";
import { listenToMap, pressKey } from "./pointer.js";

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
      explorer.states[i] = { ...explorer.states[i], map: Number(event.target.value) };
      explorer.reload();
    });
    byId(`only-${i}`).addEventListener("click", () => explorer.setOnly(i, null));
  }
  for (const tool of TOOLS) byId(tool).addEventListener("click", () => explorer.setTool(tool));
  const clicks = {
    two: () => explorer.setTwo(explorer.states.length < 2),
    home: () => explorer.home(),
    clear: () => explorer.clear(),
    "save-cells": () => saveCells(explorer),
    "save-png": () => savePicture(explorer),
    "save-svg": () => saveLegend(explorer),
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
  new ResizeObserver(() => {
    explorer.states.forEach((_, i) => explorer.views[i]?.resize());
    explorer.draw();
  }).observe(byId("views"));
}
