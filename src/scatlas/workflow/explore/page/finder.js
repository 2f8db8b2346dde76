// The search box: what is found, and what choosing it does.
import { byId, element } from "./legend.js";
import { findEntries } from "./search.js";

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
  const kinds = { gene: "gene", column: "column", cells: "" };
  const kind = kinds[entry.kind] ?? explorer.atlas.columns[entry.index].name;
  return element(
    "li",
    { id: `found-${k}`, role: "option", onmousedown: () => choose(entry) },
    element("span", { class: "name" }, entry.name),
    element("span", { class: "kind" }, kind),
  );
}

/** Show what was found: a colour, or one level alone. */
function showEntry(explorer, entry) {
  const i = explorer.active;
  if (entry.kind !== "level") {
    const kind = entry.kind === "column" ? "column" : entry.kind;
    return explorer.setColour(i, explorer.atlas.colour(kind, entry.name));
  }
  const column = explorer.atlas.columns[entry.index].name;
  const color = explorer.atlas.colour("column", column);
  explorer.states[i] = { ...explorer.states[i], color, only: { column, level: entry.name } };
  return explorer.reload();
}
