// The state of the page: what the views show, the selection, and the address that keeps both.
import { Atlas, readBlock } from "./atlas.js";
import { Camera } from "./camera.js";
import { setScheme } from "./colours.js";
import { fillColours, listenToControls, SETTLE_MS, TOOLS } from "./controls.js";
import { searchEntries } from "./finder.js";
import { byId } from "./legend.js";
import { showLegends, showSelection } from "./panel.js";
import { readLink, writeLink } from "./permalink.js";
import { countOf, formatCount } from "./scales.js";
import { boxOutline, choosePoints, roundOutline } from "./selection.js";
import { View } from "./view.js";

export class Explorer {
  constructor(atlas) {
    this.atlas = atlas;
    this.cameras = atlas.maps.map(() => new Camera());
    this.views = [];
    this.states = [{ color: this.firstColour(), map: 0, only: null }];
    this.hidden = new Map();
    this.layer = "auto";
    this.theme = null; // that the reader chose on this page
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
    this.setTheme(readLink(location.hash.slice(1), atlas).theme);
    this.addView(0);
    this.views[0].resize();
    await this.views[0].showFirst();
    this.draw();
    performance.mark("first-picture");
    await pageIsThere();
    this.entries = searchEntries(atlas, await atlas.measuredGenes());
    fillColours(this);
    listenToControls(this);
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
    this.setTheme(found.theme);
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
      await showLegends(this);
      this.showOutline();
      this.draw();
      this.saveLink();
    });
    return this.loading;
  }

  saveLink() {
    const state = {
      views: this.states, hidden: this.hidden, layer: this.layer, cameras: this.cameras,
      selection: this.selection, theme: this.theme,
    };
    const hash = `#${writeLink(state)}`;
    if (hash === location.hash) return;
    this.ownHash = hash;
    history.replaceState(null, "", hash);
  }

  /** Change what a view shows: `color`, `map` or `only`. */
  change(i, state) {
    this.states[i] = { ...this.states[i], ...state };
    return this.reload();
  }

  setColour(i, color) {
    return color ? this.change(i, { color }) : this.loading;
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

  /** Colours of the page: those chosen, or (null) those of the reader's system. */
  setTheme(theme) {
    const name = theme ?? systemTheme();
    this.theme = theme;
    setScheme(name);
    document.documentElement.dataset.theme = name;
    byId("dark").setAttribute("aria-pressed", String(name === "dark"));
  }

  switchTheme() {
    const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    this.setTheme(name === systemTheme() ? null : name);
    return this.reload();
  }

  /** Do something with the views in the colours of a light page: for files, whose ground is white. */
  async onPaper(action) {
    const name = document.documentElement.dataset.theme;
    const recolour = async (scheme) => {
      setScheme(scheme);
      for (const [i, state] of this.states.entries()) await this.views[i].load(state, this.hidden);
    };
    await this.loading;
    if (name === "dark") await recolour("light");
    await action();
    if (name === "dark") await recolour(name);
    this.draw();
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

  // Selection -------------------------------------------------------------------------------------

  async select(outline, map) {
    const { atlas } = this;
    const i = Math.max(0, this.states.findIndex((state) => state.map === map));
    const view = this.views[i];
    const positions = await atlas.positions(map);
    const mask = choosePoints(positions, outline, (k) => view.shows(k));
    this.selection = { map, outline };
    this.mask = mask;
    this.version++;
    for (const one of this.views) one.setChosen(mask);
    this.showOutline();
    this.draw();
    this.saveLink();
    await showSelection(this, mask, outline, i);
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
}

function systemTheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Resolves when the browser has read the whole page. */
function pageIsThere() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("DOMContentLoaded", resolve, { once: true });
  });
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
