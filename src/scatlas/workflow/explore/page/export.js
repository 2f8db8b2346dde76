// Files that the reader saves: names of the selected cells, the picture and its legend.
import { hexOfRgb } from "./colours.js";
import { colourTitle, legendContent } from "./panel.js";

/** Save a text or a Blob as a file. */
export function saveFile(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** A name that all file systems take. */
export function fileName(...parts) {
  return parts.join("-").replace(/[^\p{L}\p{N}.-]+/gu, "_").slice(0, 100);
}

/** Legend as SVG: rows of { name, rgb }, or the ends of a scale of numbers. */
export function legendSvg(title, rows, scale) {
  const lines = [`<text x="8" y="20" font-weight="bold">${escapeXml(title)}</text>`];
  let y = 40;
  if (scale) {
    const stops = scale.colours.map((rgb, i) => {
      const offset = i / (scale.colours.length - 1);
      return `<stop offset="${offset.toFixed(3)}" stop-color="${hexOfRgb(rgb)}"/>`;
    });
    lines.push(`<defs><linearGradient id="scale">${stops.join("")}</linearGradient></defs>`);
    lines.push(`<rect x="8" y="${y - 8}" width="200" height="12" fill="url(#scale)"/>`);
    lines.push(`<text x="8" y="${y + 20}">${escapeXml(scale.low)}</text>`);
    lines.push(`<text x="208" y="${y + 20}" text-anchor="end">${escapeXml(scale.high)}</text>`);
    y += 36;
  }
  for (const { name, rgb } of rows) {
    lines.push(`<circle cx="14" cy="${y - 4}" r="5" fill="${hexOfRgb(rgb)}"/>`);
    lines.push(`<text x="26" y="${y}">${escapeXml(name)}</text>`);
    y += 18;
  }
  const longest = Math.max(title.length, 28, ...rows.map((row) => row.name.length + 3));
  const size = `width="${longest * 8 + 20}" height="${y}"`;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="sans-serif" font-size="13">` +
    `<rect width="100%" height="100%" fill="white"/>${lines.join("\n")}</svg>\n`
  );
}

// XML 1.0 has no control characters but tab and line breaks.
export function escapeXml(text) {
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  return text
    .replace(/[&<>"']/g, (letter) => entities[letter])
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd");
}

/** Table of cells as TSV; tabs and line breaks of names become spaces. */
export function cellsTsv(header, rows) {
  const clean = (text) => String(text).replace(/[\t\r\n]+/g, " ");
  return [header, ...rows].map((row) => row.map(clean).join("\t")).join("\n") + "\n";
}

export async function saveCells({ atlas, mask }) {
  const names = await atlas.names();
  const plate = atlas.columnOf.get("plate");
  const codes = plate === undefined ? null : await atlas.codes(plate);
  const levels = codes ? atlas.columns[plate].levels.slice(0, atlas.columns[plate].n_named) : [];
  const rows = [];
  mask.forEach((chosen, i) => {
    if (chosen) rows.push(codes ? [names[i], levels[codes[i]] ?? ""] : [names[i]]);
  });
  const header = codes ? ["cell", "plate"] : ["cell"];
  saveFile("selected-cells.tsv", cellsTsv(header, rows), "text/tab-separated-values");
}

export function savePicture(explorer) {
  const { states, views, layer } = explorer;
  const parts = states.map((_, i) => views[i].snapshot(explorer.camera(i), layer));
  const whole = document.createElement("canvas");
  whole.width = parts.reduce((sum, part) => sum + part.width, 0);
  whole.height = Math.max(...parts.map((part) => part.height));
  const context = whole.getContext("2d");
  let left = 0;
  for (const part of parts) {
    context.drawImage(part, left, 0);
    left += part.width;
  }
  const name = fileName("map", ...states.map((state) => state.color.name));
  whole.toBlob((blob) => saveFile(`${name}.png`, blob), "image/png");
}

export async function saveLegend(explorer) {
  const state = explorer.states[explorer.active];
  const { rows, scale } = await legendContent(explorer.atlas, state, explorer.hidden);
  const svg = legendSvg(colourTitle(state.color), rows, scale);
  saveFile(`${fileName("legend", state.color.name)}.svg`, svg, "image/svg+xml");
}
