// Numbers and names as people read them.

/** Whole number with thousands separators. */
export function formatCount(n) {
  return Math.round(n).toLocaleString("en-US");
}

/** Number with three digits. */
export function formatNumber(x) {
  if (!Number.isFinite(x)) return "none";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size >= 10000) return formatCount(x);
  if (size < 0.001) return x.toExponential(1);
  return String(Number(x.toPrecision(3)));
}

/** Share from 0 to 1 in per cent. */
export function formatShare(share) {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.1) return "<0.1%";
  return `${percent.toFixed(percent < 10 ? 1 : 0)}%`;
}

/** Singular or plural with its number. */
export function countOf(n, one, many = `${one}s`) {
  return `${formatCount(n)} ${n === 1 ? one : many}`;
}
