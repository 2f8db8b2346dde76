// Files that the reader saves: names of the selected cells, the picture and its legend.
import { cellsTsv, fileName, legendSvg, saveFile } from "./export.js";
import { colourTitle, legendContent } from "./panel.js";

export async function saveCells({ atlas, mask }) {
  const names = await atlas.names();
  const plate = atlas.columnOf.get("plate");
  const codes = plate === undefined ? null : await atlas.codes(plate);
  const levels = codes ? atlas.columns[plate].levels : [];
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
