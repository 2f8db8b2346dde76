// Tables that sort by a click or a key on a column's name, and that can be searched.
import { hasWords, nextDirection, sortedOrder } from "./sorting.js";

// Tables of more rows have a field for words.
const SEARCHED_FROM = 12;

/** Element with text alone: names of the data are never read as HTML. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Text of a cell without the links behind it. */
function keyOf(cell) {
  return cell.dataset.key ?? cell.textContent;
}

class SortedTable {
  constructor(box) {
    this.box = box;
    this.table = box.querySelector("table");
    this.body = this.table.tBodies[0];
    this.total = this.body.querySelector("tr.total");
    this.rows = [...this.body.rows].filter((row) => row !== this.total);
    this.heads = [...this.table.tHead.rows[0].cells];
    if (this.rows.length > 1) this.heads.forEach((head, column) => this.addButton(head, column));
    if (this.rows.length > SEARCHED_FROM) this.addSearch();
  }

  addButton(head, column) {
    const button = element("button", { type: "button", class: "sort" });
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => this.sort(column));
  }

  sort(column) {
    const head = this.heads[column];
    const direction = nextDirection(head.getAttribute("aria-sort"));
    for (const other of this.heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
    const texts = this.rows.map((row) => keyOf(row.cells[column]));
    const order = sortedOrder(texts, head.classList.contains("number"), direction);
    const last = this.total ? [this.total] : [];
    this.body.append(...order.map((i) => this.rows[i]), ...last);
  }

  addSearch() {
    const title = this.box.querySelector("h3").textContent;
    this.search = element("input", {
      type: "search",
      placeholder: `Search ${this.rows.length.toLocaleString("en")} rows`,
      "aria-label": `Search the rows of: ${title}`,
      autocomplete: "off",
    });
    this.found = element("span", { class: "found", role: "status" });
    this.search.addEventListener("input", () => this.filter());
    const scroll = this.box.querySelector(".scroll");
    scroll.before(element("p", { class: "search" }, this.search, this.found));
  }

  filter() {
    const text = this.search.value.trim();
    // At the first letter and not before: most tables are never searched.
    this.texts ??= this.rows.map((row) => [...row.cells].map(keyOf).join(" "));
    let n = 0;
    this.rows.forEach((row, i) => {
      row.hidden = !hasWords(this.texts[i], text);
      n += !row.hidden;
    });
    if (this.total) this.total.hidden = text !== "";
    const all = this.rows.length.toLocaleString("en");
    this.found.textContent = text ? `${n.toLocaleString("en")} of ${all} rows` : "";
  }

  /** Show all rows again. */
  clear() {
    if (!this.search?.value) return;
    this.search.value = "";
    this.filter();
  }
}

/** Make all tables of the page sort and search. */
export function startTables() {
  const tables = [...document.querySelectorAll(".table")].map((box) => new SortedTable(box));
  // Before the browser goes to a row that a search may have hidden.
  document.addEventListener("click", (event) => {
    const address = event.target.closest("a")?.getAttribute("href");
    if (!address?.startsWith("#")) return;
    const target = document.getElementById(address.slice(1));
    if (target?.hidden) tables.find((table) => table.box.contains(target)).clear();
  });
}
