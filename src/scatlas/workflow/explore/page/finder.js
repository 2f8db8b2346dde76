// Search of genes, columns and their levels by name, and what choosing one does.
import { byId, element } from "./legend.js";

/** Everything that can be found: { kind, name, ...}. */
export function searchEntries(atlas, measured = []) {
  const entries = [{ kind: "cells", name: "all cells, no colour", column: "" }];
  atlas.columns.forEach((column, index) => {
    entries.push({ kind: "column", name: column.name, index });
  });
  atlas.genes.forEach(({ name, symbol }, index) => {
    entries.push({ kind: "gene", name, index });
    if (symbol) entries.push({ kind: "gene", name, index, shown: symbol });
  });
  atlas.columns.forEach((column, index) => {
    column.levels.forEach((name, level) => entries.push({ kind: "level", name, index, level }));
  });
  for (const name of measured) entries.push({ kind: "measured", name });
  for (const entry of entries) entry.lower = (entry.shown ?? entry.name).toLowerCase();
  return entries;
}

/** The best entries: equal names first, then beginnings, words, and parts; of genes that are not on
 * the page equal names alone come before others. */
export function findEntries(entries, text, most = 40) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const ranks = [[], [], [], [], [], [], [], []];
  for (const entry of entries) {
    const at = entry.lower.indexOf(wanted);
    if (at < 0) continue;
    let rank = 4;
    if (entry.lower === wanted) rank = 0;
    else if (at === 0) rank = 2;
    else if (/[^\p{L}\p{N}]/u.test(entry.lower[at - 1])) rank = 3;
    if (entry.kind === "measured") rank += rank ? 3 : 1;
    if (ranks[rank].length < most) ranks[rank].push(entry);
  }
  return ranks.flat().slice(0, most);
}

export function listenToSearch(explorer) {
  const input = byId("search");
  const list = byId("found");
  let current = -1;
  const mark = (next) => {
    const rows = [...list.children];
    current = rows.length ? (next + rows.length) % rows.length : -1;
    rows.forEach((row, k) => row.setAttribute("aria-selected", String(k === current)));
    if (current >= 0) {
      input.setAttribute("aria-activedescendant", rows[current].id);
      rows[current].scrollIntoView({ block: "nearest" });
    } else {
      input.removeAttribute("aria-activedescendant");
    }
  };
  const close = () => {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
  };
  const choose = (entry) => {
    if (entry.kind === "measured") {
      list.replaceChildren(element("li", { class: "note" }, howToAdd(entry.name)));
      return;
    }
    close();
    input.value = "";
    showEntry(explorer, entry);
  };
  input.addEventListener("input", () => {
    const found = findEntries(explorer.entries, input.value);
    list.replaceChildren(...found.map((entry, k) => foundRow(explorer, entry, k, choose)));
    list.hidden = !input.value.trim();
    if (!found.length) list.append(element("li", { class: "note" }, "nothing found"));
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark(found.length ? 0 : -1);
    explorer.found = found;
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(current + 1);
    else if (event.key === "ArrowUp") mark(current - 1);
    else if (event.key === "Enter" && explorer.found?.[current]) choose(explorer.found[current]);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  input.addEventListener("blur", () => setTimeout(close, 150));
}

function foundRow(explorer, entry, k, choose) {
  const kinds = { gene: "gene", column: "column", cells: "", measured: "not on this page" };
  if (entry.shown) kinds.gene += ` ${entry.name}`;
  const kind = kinds[entry.kind] ?? explorer.atlas.columns[entry.index].name;
  const pick = (event) => {
    if (entry.kind === "measured") event.preventDefault(); // the list stays
    choose(entry);
  };
  return element(
    "li",
    { id: `found-${k}`, role: "option", onmousedown: pick },
    element("span", { class: "name" }, entry.shown ?? entry.name),
    element("span", { class: "kind" }, kind),
  );
}

/** The commands that add a measured gene to the page. */
export function howToAdd(name) {
  const word = /^[\w.@:-]+$/.test(name) ? name : `'${name.replaceAll("'", "'\\''")}'`;
  return `${name} is measured, but not on this page. To add it: scatlas gene ${word} --add, then `
    + "scatlas run. Or name it in the config, under explore: genes.";
}

/** Show what was found: a colour, or one level alone. */
function showEntry(explorer, entry) {
  const i = explorer.active;
  if (entry.kind !== "level") {
    return explorer.setColour(i, explorer.atlas.colour(entry.kind, entry.name));
  }
  const column = explorer.atlas.columns[entry.index].name;
  const color = explorer.atlas.colour("column", column);
  return explorer.change(i, { color, only: { column, level: entry.name } });
}
