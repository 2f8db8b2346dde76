// The legends of the views, beside the maps, and what a click on them does.
import { byId, element } from "./legend.js";
import { colourTitle, viewLegend, viewText } from "./panel.js";

/** Show what the views show: their legends, lists and texts. */
export async function showLegends(explorer) {
  const parts = [];
  const texts = [];
  for (let i = 0; i < explorer.states.length; i++) {
    const state = explorer.states[i];
    byId(`color-${i}`).value = `${state.color.kind}:${state.color.name}`;
    byId(`map-${i}`).value = state.map;
    const chip = byId(`only-${i}`);
    chip.hidden = !state.only;
    chip.textContent = state.only ? `only ${state.only.column}: ${state.only.level} ×` : "";
    const name = explorer.states.length > 1 ? `${"AB"[i]}: ` : "";
    const actions = (column) => actionsOf(explorer, i, column);
    const legend = await viewLegend(explorer.atlas, state, explorer.hidden, actions);
    parts.push(
      element("section", { class: "of-view" },
        element("h2", {}, `${name}${colourTitle(state.color)}`), legend),
    );
    texts.push(`${name}${await viewText(explorer.atlas, state, explorer.hidden)}`);
    byId(`view-${i}`).querySelector("canvas.overlay").setAttribute("aria-label", texts[i]);
  }
  keepFocus(byId("legends"), parts);
  byId("description").textContent = texts.join(" ");
  byId("layer").value = explorer.layer;
}

function actionsOf(explorer, i, column) {
  const { atlas } = explorer;
  const hidden = () => new Set(explorer.hidden.get(column.name) ?? []);
  return {
    toggle: (name) => {
      const names = hidden();
      if (!names.delete(name)) names.add(name);
      explorer.setHidden(column.name, names);
    },
    hideAll: (names) => explorer.setHidden(column.name, new Set(names)),
    showAll: () => explorer.setHidden(column.name, new Set()),
    only: (level) => explorer.setOnly(i, level === null ? null : { column: column.name, level }),
    gene: (index) => explorer.setColour(i, atlas.colour("gene", atlas.genes[index].name)),
  };
}

/** Replace the children; the control that had the focus, or a search text, stays as it was. */
function keepFocus(parent, children) {
  const label = (one) => one.getAttribute("aria-label") ?? one.parentElement.title;
  const focused = parent.contains(document.activeElement) ? label(document.activeElement) : null;
  const scrolled = [...parent.querySelectorAll(".levels")].map((list) => list.scrollTop);
  const texts = new Map([...parent.querySelectorAll("input[type=search]")]
    .map((input) => [label(input), input.value]));
  parent.replaceChildren(...children);
  for (const input of parent.querySelectorAll("input[type=search]")) {
    const text = texts.get(label(input));
    if (!text) continue;
    input.value = text;
    input.dispatchEvent(new Event("input"));
  }
  [...parent.querySelectorAll(".levels")].forEach((list, i) => (list.scrollTop = scrolled[i] ?? 0));
  if (!focused) return;
  const controls = parent.querySelectorAll("input, button");
  [...controls].find((one) => label(one) === focused)?.focus();
}
