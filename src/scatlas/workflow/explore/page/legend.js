// The legend of a view: categories that can be searched and hidden, or a scale of numbers.
import { expressionColour, hexOfRgb, viridis } from "./colours.js";
import { formatCount, formatNumber, formatShare } from "./scales.js";

// Rows at a time. Of more categories the search finds the others.
const MAX_ROWS = 250;

/** Element of the page. */
export function byId(id) {
  return document.getElementById(id);
}

/** Element with text alone: names of the data are never read as HTML. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function button(text, attributes) {
  return element("button", { type: "button", ...attributes }, text);
}

/** Rows of a legend: levels with cells, most cells first or in their own order. */
export function legendRows(levels, sizes, text, bySize) {
  const wanted = text.trim().toLowerCase();
  const rows = [];
  levels.forEach((name, level) => {
    if (sizes[level] > 0 && name.toLowerCase().includes(wanted)) rows.push(level);
  });
  return bySize ? rows.sort((a, b) => sizes[b] - sizes[a] || a - b) : rows;
}

/** Colours of a scale, from its low end to its high one. */
export function scaleColours(kind, n = 24) {
  const colourOf = kind === "gene" ? expressionColour : viridis;
  return Array.from({ length: n }, (_, i) => colourOf(i / (n - 1)));
}

/**
 * Legend of categories.
 *
 * `given`: column, colours, sizes, sizesOf (whose they are), hidden (a Set of names), onlyLevel (a
 * name or null), markersOf(level), and the functions toggle(name), hideAll(names), showAll(), only(name),
 * gene(index).
 */
export function categoryLegend(given) {
  const { column, sizes } = given;
  const total = sizes.reduce((sum, n) => sum + n, 0);
  const list = element("ul", { class: "levels" });
  const note = element("p", { class: "note" });
  const find = element("input", {
    type: "search",
    placeholder: `Search ${formatCount(column.levels.length)} values`,
    "aria-label": `Search the values of ${column.name}`,
  });
  const fill = () => {
    const rows = legendRows(column.levels, sizes, find.value, column.levels.length > 60);
    list.replaceChildren(...rows.slice(0, MAX_ROWS).map((level) => levelRow(given, level, total)));
    const more = rows.length - MAX_ROWS;
    note.textContent = more > 0 ? `and ${formatCount(more)} more: search for them` : "";
    note.hidden = more <= 0;
  };
  find.addEventListener("input", fill);
  const buttons = element(
    "div",
    { class: "row" },
    button("Show all", { onclick: given.showAll }),
    button("Hide all", { onclick: () => given.hideAll(column.levels) }),
  );
  fill();
  const few = column.levels.length <= 8;
  const whose = given.sizesOf ? element("p", { class: "note" }, given.sizesOf) : null;
  return element("div", { class: "legend" }, few ? null : find, buttons, whose, list, note);
}

function levelRow(given, level, total) {
  const { column, colours, sizes, hidden } = given;
  const name = column.levels[level];
  const box = element("input", { type: "checkbox" });
  box.checked = !hidden.has(name);
  box.addEventListener("change", () => given.toggle(name));
  const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = hexOfRgb(colours[level]);
  const share = `${formatCount(sizes[level])} (${formatShare(sizes[level] / total)})`;
  const label = element(
    "label",
    { title: name },
    box,
    swatch,
    element("span", { class: "name" }, column.short[level] || "(empty)"),
    element("span", { class: "size" }, share),
  );
  const isOnly = given.onlyLevel === name;
  const only = button("only", {
    class: "only",
    "aria-pressed": String(isOnly),
    "aria-label": `Show only ${name}`,
    onclick: () => given.only(isOnly ? null : name),
  });
  const markers = given.markersOf(level);
  const genes = markers.map(([index, gene]) =>
    button(gene, { class: "gene", onclick: () => given.gene(index) }),
  );
  const below = genes.length
    ? element("div", { class: "markers" }, element("span", {}, "markers: "), ...genes)
    : null;
  return element("li", {}, element("div", { class: "level" }, label, only), below);
}

/** Legend of numbers or expression: a bar from low to high. */
export function scaleLegend(kind, low, high, note) {
  const bar = element("div", { class: "scale", "aria-hidden": "true" });
  const stops = scaleColours(kind).map(hexOfRgb).join(", ");
  bar.style.background = `linear-gradient(to right, ${stops})`;
  const ends = element(
    "div",
    { class: "ends" },
    element("span", {}, formatNumber(low)),
    element("span", {}, formatNumber(high)),
  );
  return element("div", { class: "legend" }, bar, ends, element("p", { class: "note" }, note));
}
