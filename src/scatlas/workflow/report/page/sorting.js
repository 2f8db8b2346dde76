// Order and search of the rows of a table, by the texts of their cells.

const COLLATOR = new Intl.Collator("en", { numeric: true });
const DIRECTIONS = ["none", "ascending", "descending"];

/** Number of a cell: "1,234.5", "∞"; NaN for an empty one. */
export function numberOf(text) {
  const plain = text.trim().replaceAll(",", "").replace("∞", "Infinity");
  return plain === "" ? NaN : Number(plain);
}

/** The direction that follows another one. */
export function nextDirection(direction) {
  return DIRECTIONS[(DIRECTIONS.indexOf(direction) + 1) % DIRECTIONS.length];
}

/**
 * Order of rows: indices into `texts`. Equal rows stay in their first order, and cells without a value
 * come last in both directions. "plate10" comes after "plate9".
 */
export function sortedOrder(texts, isNumeric, direction) {
  const order = texts.map((_, i) => i);
  if (direction === "none") return order;
  const sign = direction === "descending" ? -1 : 1;
  const keys = isNumeric ? texts.map(numberOf) : texts;
  const isEmpty = keys.map((key) => (isNumeric ? Number.isNaN(key) : key === ""));
  const compare = isNumeric
    ? (a, b) => (a < b ? -1 : a > b ? 1 : 0) // infinities have no difference
    : (a, b) => COLLATOR.compare(a, b);
  return order.sort((i, j) => {
    if (isEmpty[i] || isEmpty[j]) return isEmpty[i] - isEmpty[j] || i - j;
    return sign * compare(keys[i], keys[j]) || i - j;
  });
}

/** Whether a row has all words of a search, in any order and case. */
export function hasWords(text, search) {
  const row = text.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => row.includes(word));
}
