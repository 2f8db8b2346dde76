// What a view draws: points with their codes and colours, and the picture under them, the density
// of all cells or of the points that the view shows.
import { HIGHEST_EXPRESSION, HIGHEST_NUMBER, NO_CODE } from "./atlas.js";
import { expressionColour, scheme, viridis } from "./colours.js";
import {
  denseCounts, pictureOfCounts, pictureOfLevels, pictureOfMeans, pictureOfPoints,
  sideOfPicture,
} from "./density.js";

// Code of points that a view does not show at all.
const NOT_SHOWN = 0xfffe;

/** Code of each point; `NOT_SHOWN` outside the one level that is shown. */
export async function codesOf(atlas, { color, only }) {
  let codes;
  if (color.kind === "gene") codes = await atlas.geneCodes(color.index);
  else if (color.kind === "column") codes = await atlas.codes(color.index);
  else codes = new Uint16Array(atlas.n_points);
  if (!only) return codes;
  const index = atlas.columnOf.get(only.column);
  const level = atlas.columns[index].levels.indexOf(only.level);
  const others = await atlas.codes(index);
  return codes.map((code, i) => (others[i] === level ? code : NOT_SHOWN));
}

/** Colours by code, as bytes; of categories `colours` and `isVisible` by level, else these are empty. */
export function paletteOf(color, colours, isVisible) {
  const rgba = new Uint8Array(4 * (NO_CODE + 1));
  const set = (code, rgb, alpha) => rgba.set([...rgb, alpha], 4 * code);
  if (color.kind === "gene") {
    for (let code = 0; code <= HIGHEST_EXPRESSION; code++) {
      set(code, expressionColour(code / HIGHEST_EXPRESSION), 220);
    }
  } else if (colours.length) {
    colours.forEach((rgb, level) => isVisible[level] && set(level, rgb, 220));
  } else if (color.kind === "column") {
    for (let code = 0; code <= HIGHEST_NUMBER; code++) {
      set(code, viridis(code / HIGHEST_NUMBER), 220);
    }
    set(NO_CODE, scheme.missing, 160);
  } else {
    set(0, scheme.plain, 160);
  }
  return rgba;
}

/** A random order, the same each time: any first part of it is a sample of all points. */
export function spreadOrder(n) {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  let state = 1;
  for (let k = n - 1; k > 0; k--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0; // Numerical Recipes
    const other = Math.floor((state / 2 ** 32) * (k + 1));
    [order[k], order[other]] = [order[other], order[k]];
  }
  return order;
}

/** All cells by pixel of the picture. */
export async function cellCounts(atlas) {
  const side = sideOfPicture(atlas.n_cells, atlas.side);
  const counts = await atlas.once(`dense-${side}`, async () =>
    denseCounts(await atlas.cells(), atlas.side, side),
  );
  return { counts, side };
}

/** Density of all cells where the page has their counts, else of the points. */
export async function pictureOf(view, codes, isCategory) {
  const { atlas } = view;
  const { color, map, only } = view.state;
  view.isOfAllCells = true;
  if (map === 0 && !only) {
    const { counts, side } = await cellCounts(atlas);
    if (color.kind === "cells") return pictureOfCounts(counts, side, scheme.plain);
    if (isCategory) {
      const histogram = await atlas.levelCounts(color.index);
      const isVisible = (level) => view.isVisible[level];
      return pictureOfLevels(counts, side, histogram, view.colours, isVisible);
    }
    const isGene = color.kind === "gene";
    // Means are far below the highest values: their scale ends at the highest mean.
    const colourOf = isGene
      ? (mean) => expressionColour(mean / HIGHEST_EXPRESSION)
      : (mean) => (mean === 255 ? scheme.missing : viridis(mean / HIGHEST_NUMBER));
    const [pixels, means] = [await atlas.meanPixels(), await atlas.means(color)];
    return pictureOfMeans(counts, side, pixels, means, atlas.means_side, colourOf);
  }
  if (map === 0 && color.kind === "cells") {
    const index = atlas.columnOf.get(only.column);
    const wanted = atlas.columns[index].levels.indexOf(only.level);
    const { counts, side } = await cellCounts(atlas);
    const histogram = await atlas.levelCounts(index);
    const colours = atlas.columns[index].levels.map(() => scheme.plain);
    return pictureOfLevels(counts, side, histogram, colours, (level) => level === wanted);
  }
  view.isOfAllCells = false;
  return pictureOfPoints(view.positions, sideOfPicture(view.nShown, 256), codes, view.palette);
}
