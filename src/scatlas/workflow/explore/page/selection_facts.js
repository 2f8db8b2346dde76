// What the selected cells are: their number, composition and markers, beside the maps.
import { byId, element } from "./legend.js";
import { compositionTables, markerTable, markersOfSelection } from "./panel.js";
import { countOf, formatCount } from "./scales.js";
import { countCellsInside, countChosen } from "./selection.js";

/** Facts come one after the other, and end when another selection begins. */
export async function showSelection(explorer, mask, outline, i) {
  const { atlas, version } = explorer;
  const n = countChosen(mask);
  const texts = [`${countOf(n, "cell")} selected${atlas.isSampled ? " of the sample" : ""}.`];
  const state = explorer.states[i];
  if (atlas.isSampled && state.map === 0 && !state.only && !explorer.hidden.size) {
    const all = countCellsInside(await atlas.cells(), atlas.side, outline);
    texts.push(`About ${formatCount(all)} of all cells lie here.`);
  }
  byId("selection").hidden = false;
  byId("selected").textContent = texts.join(" ");
  byId("selected").dataset.cells = String(n);
  byId("markers").replaceChildren();
  byId("composition").replaceChildren();
  byId("save-cells").disabled = !n;
  if (!n) return;
  const onLevel = (column) =>
    explorer.setColour(explorer.active, atlas.colour("column", column.name));
  const tables = await compositionTables(atlas, mask, onLevel);
  if (version !== explorer.version) return;
  byId("composition").replaceChildren(...tables);
  byId("markers").replaceChildren(element("p", { class: "note" }, "comparing genes …"));
  const found = await markersOfSelection(atlas, mask, () => version !== explorer.version);
  if (!found) return;
  const onGene = (index) =>
    explorer.setColour(explorer.active, atlas.colour("gene", atlas.genes[index].name));
  byId("markers").replaceChildren(
    found.length
      ? markerTable(found, onGene)
      : element("p", { class: "note" }, "No gene of the page is higher here."),
  );
}
