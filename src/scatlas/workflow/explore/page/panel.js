// The text beside the maps: legends, and facts about the selected cells.
import { HIGHEST_NUMBER } from "./atlas.js";
import { levelColours } from "./colours.js";
import { button, byId, categoryLegend, element, scaleColours, scaleLegend } from "./legend.js";
import { countOf, formatCount, formatNumber, formatShare } from "./scales.js";
import {
  compareGene, compareLevels, compareNumbers, countCellsInside, countChosen,
} from "./selection.js";

const MAX_LEVELS_SHOWN = 6;
const MAX_GENES_SHOWN = 20;

/** Whether a view shows one level of another column than that of its colours. */
function isElsewhere({ color, only }) {
  return Boolean(only) && only.column !== color.name;
}

/** Cells of each level of a view's column: all of them, or the points of the level that it shows. */
async function levelSizes(atlas, view) {
  const { index } = view.color;
  if (!isElsewhere(view)) return (await atlas.levelCounts(index)).sizes;
  const { only } = view;
  const other = atlas.columnOf.get(only.column);
  const level = atlas.columns[other].levels.indexOf(only.level);
  const [codes, others] = [await atlas.codes(index), await atlas.codes(other)];
  const sizes = new Float64Array(atlas.columns[index].levels.length);
  codes.forEach((code, i) => others[i] === level && code < sizes.length && sizes[code]++);
  return sizes;
}

/** Title of a view's colour. */
export function colourTitle(color) {
  if (color.kind === "cells") return "number of cells";
  return color.kind === "gene" ? `expression of ${color.name}` : color.name;
}

/** Legend of a view. */
export async function viewLegend(atlas, view, hidden, actions) {
  const { color } = view;
  if (color.kind === "cells") {
    return element("p", { class: "note" }, "The darker, the more cells (logarithm).");
  }
  if (color.kind === "gene") {
    const { high, mean_high: highest } = atlas.genes[color.index];
    const units = "log(1 + normalised counts); grey: no count.";
    const density = `Density: means of all cells, from 0 to ${formatNumber(highest)} and more.`;
    return scaleLegend("gene", 0, high, atlas.isSampled ? `${units} ${density}` : units);
  }
  const column = atlas.columns[color.index];
  if (column.kind === "number") {
    const note = "0.1% of the cells lie beyond each end. Grey: no number.";
    return scaleLegend("number", column.low, column.high, note);
  }
  const markers = new Map(
    atlas.markers
      .filter(([index]) => index === color.index)
      .map(([, level, genes]) => [level, genes.map((gene) => [gene, atlas.genes[gene].name])]),
  );
  return categoryLegend({
    column,
    colours: levelColours(column),
    sizes: await levelSizes(atlas, view),
    sizesOf: isElsewhere(view) ? `points with ${view.only.column}: ${view.only.level}` : "",
    hidden: hidden.get(column.name) ?? new Set(),
    onlyLevel: view.only?.column === column.name ? view.only.level : null,
    markersOf: (level) => markers.get(level) ?? [],
    ...actions(column),
  });
}

/** What the SVG legend of a view has: rows, and a scale of numbers. */
export async function legendContent(atlas, view, hidden) {
  const { color } = view;
  if (color.kind === "cells") return { rows: [], scale: null };
  if (color.kind === "gene") {
    const high = formatNumber(atlas.genes[color.index].high);
    return { rows: [], scale: { low: "0", high, colours: scaleColours("gene") } };
  }
  const column = atlas.columns[color.index];
  if (column.kind === "number") {
    const [low, high] = [column.low, column.high].map(formatNumber);
    return { rows: [], scale: { low, high, colours: scaleColours("number") } };
  }
  const sizes = await levelSizes(atlas, view);
  const colours = levelColours(column);
  const names = hidden.get(column.name) ?? new Set();
  const rows = column.levels
    .map((name, level) => ({ name, rgb: colours[level], n: sizes[level] }))
    .filter(({ name, n }) => n > 0 && !names.has(name));
  return { rows, scale: null };
}

/** Sentences about a view, for readers who do not see it. */
export async function viewText(atlas, view, hidden) {
  const { color, only } = view;
  const parts = [`${atlas.maps[view.map]} of ${countOf(atlas.n_cells, "cell")}`];
  if (atlas.isSampled) parts.push(`${formatCount(atlas.n_points)} of them as points`);
  if (only) parts.push(`only ${only.column} ${only.level}`);
  const column = atlas.columns[color.index];
  let detail = "";
  if (color.kind === "column" && column.kind === "category") {
    const sizes = await levelSizes(atlas, view);
    const used = column.levels.map((name, level) => [name, sizes[level]]).filter(([, n]) => n > 0);
    used.sort((a, b) => b[1] - a[1]);
    const total = used.reduce((sum, [, n]) => sum + n, 0);
    const largest = used.slice(0, 3).map(([name, n]) => `${name} (${formatShare(n / total)})`);
    const n = hidden.get(column.name)?.size ?? 0;
    const hiddenText = n ? `, ${n} hidden` : "";
    detail = ` ${countOf(used.length, "value")}${hiddenText}; largest: ${largest.join(", ")}.`;
  } else if (color.kind === "column") {
    detail = ` From ${formatNumber(column.low)} to ${formatNumber(column.high)}.`;
  }
  return `${parts.join(", ")}, coloured by ${colourTitle(color)}.${detail}`;
}

/** Facts about the selection: composition by each column. */
export async function compositionTables(atlas, mask, onLevel) {
  const tables = [];
  for (let i = 0; i < atlas.columns.length; i++) {
    const column = atlas.columns[i];
    const codes = await atlas.codes(i);
    if (column.kind === "category") {
      const rows = compareLevels(codes, mask, column.levels.length);
      if (rows.length) tables.push(levelTable(column, rows, onLevel));
    } else {
      const { inside, whole, n } = compareNumbers(codes, mask);
      if (!n) continue;
      const unit = (column.high - column.low) / HIGHEST_NUMBER;
      const [mean, all] = [inside, whole].map((code) => formatNumber(column.low + code * unit));
      tables.push({ column, text: `mean ${mean}, of all cells ${all}` });
    }
  }
  const numbers = tables.filter((table) => table.text);
  const list = element("dl", { class: "numbers" });
  for (const { column, text } of numbers) {
    list.append(element("dt", {}, column.name), element("dd", {}, text));
  }
  return [...tables.filter((table) => !table.text), list];
}

function levelTable(column, rows, onLevel) {
  const body = element("tbody");
  for (const { level, n, share, whole } of rows.slice(0, MAX_LEVELS_SHOWN)) {
    const name = column.levels[level];
    const times = share / whole;
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    const factor = times >= 10 ? times.toFixed(0) : times.toFixed(1);
    body.append(
      linkedRow(column.short[level], { title: name, onclick: () => onLevel(column, name) }, [
        formatCount(n),
        element("td", { class: "share" }, bar, formatShare(share)),
        `${formatShare(whole)}, ×${factor}`,
      ]),
    );
  }
  const more = rows.length - MAX_LEVELS_SHOWN;
  const title = more > 0 ? `${column.name} (and ${countOf(more, "more value")})` : column.name;
  return element(
    "table",
    { class: "composition" },
    element("caption", {}, title),
    headRow(["value", "cells", "share", "of all cells"]),
    body,
  );
}

/** Row of a table, of which the first cell is a button; the others are cells or their texts. */
function linkedRow(name, attributes, cells) {
  const first = element("th", { scope: "row" }, button(name, { class: "link", ...attributes }));
  const others = cells.map((cell) => (typeof cell === "string" ? element("td", {}, cell) : cell));
  return element("tr", {}, first, ...others);
}

function headRow(names) {
  const cells = names.map((name) => element("th", { scope: "col" }, name));
  return element("thead", {}, element("tr", {}, ...cells));
}

/** Genes of the page that are higher in the selection than in all other points, the best first. */
export async function markersOfSelection(atlas, mask, isStale) {
  const found = [];
  for (let i = 0; i < atlas.genes.length; i++) {
    const values = await atlas.gene(i);
    if (isStale()) return null;
    const facts = compareGene(values, atlas.gene_stride, mask, atlas.genes[i].high);
    if (facts && facts.t > 0) found.push({ index: i, name: atlas.genes[i].name, ...facts });
  }
  return found.sort((a, b) => b.t - a.t || a.index - b.index).slice(0, MAX_GENES_SHOWN);
}

/** Table of these genes. */
export function markerTable(found, onGene) {
  const body = element("tbody");
  for (const { index, name, t, mean, share } of found) {
    body.append(
      linkedRow(name, { onclick: () => onGene(index) }, [
        t.toFixed(1),
        `${formatNumber(mean[0])} / ${formatNumber(mean[1])}`,
        `${formatShare(share[0])} / ${formatShare(share[1])}`,
      ]),
    );
  }
  return element(
    "table",
    { class: "genes" },
    element("caption", {}, "Genes that are higher here than in the other points"),
    headRow(["gene", "t", "mean here / others", "cells with it here / others"]),
    body,
  );
}

/** Show what the views show: their legends, lists and texts. */
export async function showLegends(explorer) {
  const parts = [];
  const texts = [];
  for (let i = 0; i < explorer.states.length; i++) {
    const state = explorer.states[i];
    byId(`color-${i}`).value = `${state.color.kind}:${state.color.name}`;
    byId(`map-${i}`).value = state.map;
    const chip = byId(`only-${i}`);
    chip.hidden = !state.only;
    chip.textContent = state.only ? `only ${state.only.column}: ${state.only.level} ×` : "";
    const name = explorer.states.length > 1 ? `${"AB"[i]}: ` : "";
    const actions = (column) => actionsOf(explorer, i, column);
    const legend = await viewLegend(explorer.atlas, state, explorer.hidden, actions);
    parts.push(
      element("section", { class: "of-view" },
        element("h2", {}, `${name}${colourTitle(state.color)}`), legend),
    );
    texts.push(`${name}${await viewText(explorer.atlas, state, explorer.hidden)}`);
    byId(`view-${i}`).querySelector("canvas.overlay").setAttribute("aria-label", texts[i]);
  }
  keepFocus(byId("legends"), parts);
  byId("description").textContent = texts.join(" ");
  byId("layer").value = explorer.layer;
}

function actionsOf(explorer, i, column) {
  const { atlas } = explorer;
  const hidden = () => new Set(explorer.hidden.get(column.name) ?? []);
  return {
    toggle: (name) => {
      const names = hidden();
      if (!names.delete(name)) names.add(name);
      explorer.setHidden(column.name, names);
    },
    hideAll: (names) => explorer.setHidden(column.name, new Set(names)),
    showAll: () => explorer.setHidden(column.name, new Set()),
    only: (level) => explorer.change(i, { only: level === null ? null : { column: column.name, level } }),
    gene: (index) => explorer.setColour(i, atlas.colour("gene", atlas.genes[index].name)),
  };
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

/** Facts come one after the other, and end when another selection begins. */
export async function showSelection(explorer, mask, outline, i) {
  const { atlas, version } = explorer;
  const n = countChosen(mask);
  const texts = [`${countOf(n, "cell")} selected${atlas.isSampled ? " of the sample" : ""}.`];
  const state = explorer.states[i];
  if (atlas.isSampled && state.map === 0 && !state.only && !explorer.hidden.size) {
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
  const onLevel = (column) =>
    explorer.setColour(explorer.active, atlas.colour("column", column.name));
  const tables = await compositionTables(atlas, mask, onLevel);
  if (version !== explorer.version) return;
  byId("composition").replaceChildren(...tables);
  byId("markers").replaceChildren(element("p", { class: "note" }, "comparing genes …"));
  const found = await markersOfSelection(atlas, mask, () => version !== explorer.version);
  if (!found) return;
  const onGene = (index) =>
    explorer.setColour(explorer.active, atlas.colour("gene", atlas.genes[index].name));
  byId("markers").replaceChildren(
    found.length
      ? markerTable(found, onGene)
      : element("p", { class: "note" }, "No gene of the page is higher here."),
  );
}
