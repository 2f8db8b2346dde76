// The text beside the maps: legends, and facts about the selected cells.
import { HIGHEST_NUMBER } from "./atlas.js";
import { categoryColours } from "./colours.js";
import { categoryLegend, element, scaleColours, scaleLegend } from "./legend.js";
import { countOf, formatCount, formatNumber, formatShare, shortName } from "./scales.js";
import { compareGene, compareLevels, compareNumbers } from "./selection.js";

const MOST_LEVELS_SHOWN = 6;
const MOST_GENES_SHOWN = 20;

/** Cells of each level of a column: all of them, or the points of the level that a view shows. */
async function levelSizes(atlas, index, only) {
  if (!only) return (await atlas.levelCounts(index)).sizes;
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
    colours: categoryColours(column.levels.length),
    sizes: await levelSizes(atlas, color.index, isElsewhere(view) ? view.only : null),
    sizesOf: isElsewhere(view) ? `points with ${view.only.column}: ${view.only.level}` : "",
    hidden: hidden.get(column.name) ?? new Set(),
    onlyLevel: view.only?.column === column.name ? view.only.level : null,
    markersOf: (level) => markers.get(level) ?? [],
    ...actions(column),
  });
}

/** Whether a view shows one level of another column than that of its colours. */
function isElsewhere({ color, only }) {
  return Boolean(only) && only.column !== color.name;
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
  const sizes = await levelSizes(atlas, color.index, isElsewhere(view) ? view.only : null);
  const colours = categoryColours(column.levels.length);
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
    const sizes = await levelSizes(atlas, color.index, isElsewhere(view) ? only : null);
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
  for (const { level, n, share, whole } of rows.slice(0, MOST_LEVELS_SHOWN)) {
    const name = column.levels[level];
    const times = share / whole;
    const bar = element("span", { class: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    const choose = () => onLevel(column, name);
    body.append(
      element(
        "tr",
        {},
        element(
          "th",
          { scope: "row" },
          element("button", { type: "button", class: "link", title: name, onclick: choose },
            shortName(name, 22)),
        ),
        element("td", {}, formatCount(n)),
        element("td", { class: "share" }, bar, formatShare(share)),
        element("td", {}, `${formatShare(whole)}, ×${times >= 10 ? times.toFixed(0) : times.toFixed(1)}`),
      ),
    );
  }
  const more = rows.length - MOST_LEVELS_SHOWN;
  const title = more > 0 ? `${column.name} (and ${countOf(more, "more value")})` : column.name;
  return element(
    "table",
    { class: "composition" },
    element("caption", {}, title),
    headRow(["value", "cells", "share", "of all cells"]),
    body,
  );
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
  return found.sort((a, b) => b.t - a.t || a.index - b.index).slice(0, MOST_GENES_SHOWN);
}

/** Table of these genes. */
export function markerTable(found, onGene) {
  const body = element("tbody");
  for (const { index, name, t, mean, share } of found) {
    const choose = () => onGene(index);
    body.append(
      element(
        "tr",
        {},
        element("th", { scope: "row" },
          element("button", { type: "button", class: "link", onclick: choose }, name)),
        element("td", {}, t.toFixed(1)),
        element("td", {}, `${formatNumber(mean[0])} / ${formatNumber(mean[1])}`),
        element("td", {}, `${formatShare(share[0])} / ${formatShare(share[1])}`),
      ),
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
