// Search of genes, columns and their levels by name.

/** Everything that can be found: { kind, name, ...}. */
export function searchEntries(atlas) {
  const entries = [{ kind: "cells", name: "all cells, no colour", column: "" }];
  atlas.columns.forEach((column, index) => {
    entries.push({ kind: "column", name: column.name, index });
  });
  atlas.genes.forEach((gene, index) => entries.push({ kind: "gene", name: gene.name, index }));
  atlas.columns.forEach((column, index) => {
    column.levels.forEach((name, level) => entries.push({ kind: "level", name, index, level }));
  });
  for (const entry of entries) entry.lower = entry.name.toLowerCase();
  return entries;
}

/** The best entries: equal names first, then beginnings, words, and parts. */
export function findEntries(entries, text, most = 40) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return [];
  const ranks = [[], [], [], []];
  for (const entry of entries) {
    const at = entry.lower.indexOf(wanted);
    if (at < 0) continue;
    let rank = 3;
    if (entry.lower === wanted) rank = 0;
    else if (at === 0) rank = 1;
    else if (/[^\p{L}\p{N}]/u.test(entry.lower[at - 1])) rank = 2;
    if (ranks[rank].length < most) ranks[rank].push(entry);
  }
  return ranks.flat().slice(0, most);
}
