// The picture under the points: density of all cells, or of the points that a view shows.
import { HIGHEST_EXPRESSION, HIGHEST_NUMBER } from "./atlas.js";
import { expressionColour, MISSING, viridis } from "./colours.js";
import {
  countPoints, denseCounts, pictureOfCounts, pictureOfLevels, pictureOfMeans, pictureOfPoints,
  sideOfPicture,
} from "./density.js";
import { PLAIN } from "./points.js";

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
    if (color.kind === "cells") return pictureOfCounts(counts, side, PLAIN);
    if (isCategory) {
      const histogram = await atlas.levelCounts(color.index);
      const isVisible = (level) => view.isVisible[level];
      return pictureOfLevels(counts, side, histogram, view.colours, isVisible);
    }
    const isGene = color.kind === "gene";
    // Means are far below the highest values: their scale ends at the highest mean.
    const colourOf = isGene
      ? (mean) => expressionColour(mean / HIGHEST_EXPRESSION)
      : (mean) => (mean === 255 ? MISSING : viridis(mean / HIGHEST_NUMBER));
    const [pixels, means] = [await atlas.meanPixels(), await atlas.means(color)];
    return pictureOfMeans(counts, side, pixels, means, atlas.means_side, colourOf);
  }
  if (map === 0 && color.kind === "cells") {
    const index = atlas.columnOf.get(only.column);
    const wanted = atlas.columns[index].levels.indexOf(only.level);
    const { counts, side } = await cellCounts(atlas);
    const histogram = await atlas.levelCounts(index);
    const colours = atlas.columns[index].levels.map(() => PLAIN);
    return pictureOfLevels(counts, side, histogram, colours, (level) => level === wanted);
  }
  view.isOfAllCells = false;
  const side = sideOfPicture(view.nShown, 256);
  if (color.kind === "cells") {
    const counts = countPoints(view.places, side, (i) => codes[i] === 0);
    return pictureOfCounts(counts, side, PLAIN);
  }
  return pictureOfPoints(view.places, side, codes, view.palette);
}
