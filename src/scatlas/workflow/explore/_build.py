"""Join data, style and scripts into ``explore.html``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas._util.names import short_names
from scatlas.columns import name_of_gaps
from scatlas.io import atomic_path
from scatlas.matrix.map_pixels import MEANS_SIDE, SIDE, box_of
from scatlas.workflow.explore._cells import read_genes
from scatlas.workflow.explore._choose import read_markers
from scatlas.workflow.explore._effects import effect_blocks
from scatlas.workflow.explore._pack import (
    Points,
    block_tags,
    coarsen,
    deflate,
    gene_blocks,
    gene_stride,
    pack_counts,
    pack_json,
    pack_names,
    page_bytes,
    second_map,
)
from scatlas.workflow.inline_page import content_policy, joined_scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scatlas.matrix.measured_genes import MeasuredGenes
    from scatlas.workflow.explore._cells import MapCells, MapPixels
    from scatlas.workflow.explore._choose import PageColumn, PageGene

_PAGE = Path(__file__).parent / "page"
# Largest shares of the page's bytes; what one part leaves over goes to the next.
_COUNTS_SHARE, _POINTS_SHARE = 0.3, 0.8
_EFFECTS_SHARE = 1 / 6  # of the whole page
# A module follows those that it imports.
SCRIPTS = (
    *("colours", "scales", "density", "atlas", "camera", "webgl", "canvas", "layers", "labels"),
    *("selection", "legend", "permalink", "view", "panel", "export", "finder", "controls"),
    "explorer",
)
OF_EFFECTS = ("effects", "conditions")  # on pages with effects: the others keep their bytes
_MEANS_BYTES = 0.8  # on the page, per gene and pixel with cells
_HIGH_MEAN = 99  # per cent of the pixels
_MAX_PAIRS_PER_BYTE = 1.5  # of level and pixel: more never fit
_MAX_LETTERS = 24  # of a level's name on the map and beside it
_MARKERS_SHOWN = 4  # of each group, beside its name


def build(
    page: Path,
    total: MapPixels,
    cells: MapCells,
    sample: MapCells,
    *,
    mixed: MapCells | None,
    columns: Sequence[PageColumn],
    genes: Sequence[PageGene],
    markers: Path | None,
    n_points: int,
    max_bytes: int,
    measured: MeasuredGenes | None = None,
    effects: Path | None = None,
    **sizes: Any,
) -> dict[str, Any]:
    """Write the page, complete or not at all; return its numbers of cells, points, genes and bytes.

    ``total`` has the pixels of all ``cells``, ``sample`` is ``umap.h5ad``, ``mixed``
    ``integrated.h5ad``, ``effects`` is ``effects.h5ad``. The same input gives the same bytes.
    ``sizes`` are options of :func:`scatlas.io.read_matrix`.
    """
    n_cells = int(total.wide_cells.sum())
    names = [gene.name for gene in genes]
    code = _code(SCRIPTS + (OF_EFFECTS if effects else ()))
    left = max_bytes - len(code.encode()) - 1000
    second = second_map(sample, mixed)
    described_columns = [_described(column, total, cells.columns) for column in columns]
    counts, sides = _counts(total, columns, int(_COUNTS_SHARE * left))
    blocks = {**counts, "number-means": _number_means(total)}
    if measured:
        shown = {name for gene in genes for name in gene}
        blocks["measured"] = pack_names({*measured.genes, *measured.symbols} - shown)
    if effects:
        blocks |= effect_blocks(effects, int(_EFFECTS_SHARE * max_bytes))
    left -= page_bytes(blocks)
    # The names of levels and genes, whatever the numbers beside them are.
    described = {"columns": described_columns, "genes": [gene._asdict() for gene in genes]}
    left -= 2 * page_bytes({"meta": pack_json(described)}) + 4000 + 40 * len(genes)
    # What the means of the genes take if they cannot be compressed by more.
    reserved = int(_MEANS_BYTES * len(genes) * np.count_nonzero(total.wide_cells))
    points = Points(sample, second and second[1], columns)
    point_blocks, rows = points.blocks(n_points, int(_POINTS_SHARE * max(left - reserved, 0)))
    stride = gene_stride(rows.size, len(genes))
    values = read_genes(cells, sample, names, total.wide_pixel, rows[::stride], measured, **sizes)
    blocks["gene-means"], mean_highs = _gene_means(values.means)
    left -= page_bytes(point_blocks) + page_bytes({"gene-means": blocks["gene-means"]})
    gene_points, highs, step = gene_blocks(values.points, left)
    meta = {
        "n_cells": n_cells,
        "n_points": rows.size,
        "n_sample": sample.n_cells,
        "box": list(box_of(sample.coordinates())),
        "side": SIDE,
        "means_side": MEANS_SIDE,
        "gene_stride": stride * step,
        "maps": ["UMAP", *([second[0]] if second else [])],
        "columns": [
            {**column, "side": side} for column, side in zip(described_columns, sides, strict=True)
        ],
        "genes": [
            {**gene._asdict(), "high": round(float(high), 4), "mean_high": round(float(mean), 4)}
            for gene, high, mean in zip(genes, highs, mean_highs, strict=True)
        ],
        "markers": _markers(markers, columns, names),
    }
    blocks = {"meta": pack_json(meta), **blocks, **point_blocks, **gene_points}
    text = code.replace("<!-- first -->", block_tags({k: blocks.pop(k) for k in _FIRST}))
    text = text.replace("<!-- data -->", block_tags(blocks))
    with atomic_path(page) as partial:
        partial.write_text(text, "utf-8")
    return {
        "n_cells": n_cells,
        "n_points": int(rows.size),
        "n_gene_points": -(-rows.size // (stride * step)),
        "n_genes": len(genes),
        "n_columns": len(columns),
        "bytes": len(text.encode()),
    }


def _described(column: PageColumn, total: MapPixels, stored: Sequence[str]) -> dict[str, Any]:
    """A column for the page, with short names of its levels if any of them is long, and the name of
    cells without one if there are any.
    """
    facts, short = column._asdict(), short_names(column.levels, _MAX_LETTERS)
    if short != column.levels:
        facts["short"] = short
    if column.kind == "category":
        keys = total.levels[column.name].keys  # ascending
        if keys.size and keys[-1] >= len(column.levels) * column.side**2:
            facts["no_value"] = name_of_gaps(column.name, stored, set(column.levels))
    return facts


# Before the script, which draws them at once.
_FIRST = ("meta", "cells")


def _counts(
    total: MapPixels, columns: Sequence[PageColumn], max_bytes: int
) -> tuple[dict[str, bytes], list[int]]:
    """Blocks of the histograms, and the pixels per side of those of each column."""
    blocks, sides = {"cells": pack_counts(total.cells)}, []
    left = max_bytes - page_bytes(blocks)
    for i, column in enumerate(columns):
        side = column.side if column.kind == "category" else 0
        if side:
            counts = total.levels.pop(column.name)  # large, and not needed again
            share = left // (len(columns) - i)
            while counts.keys.size > _MAX_PAIRS_PER_BYTE * share and side > 8:
                counts, side = coarsen(counts, side), side // 2
            packed = {f"counts-{i}": pack_counts(counts)}
            while page_bytes(packed) > share and side > 8:
                counts, side = coarsen(counts, side), side // 2
                packed = {f"counts-{i}": pack_counts(counts)}
            blocks |= packed
            left -= page_bytes(packed)
        sides.append(side)
    return blocks, sides


def _gene_means(means: NDArray[np.float64]) -> tuple[bytes, NDArray[np.float64]]:
    """Means by pixel, in the order of the pixels with cells, and the end of each scale, below the
    extreme means of pixels of few cells.
    """
    highs = np.zeros(len(means))
    if means.size:
        highs = np.percentile(means, _HIGH_MEAN, axis=1)
        highs = np.where(highs > 0, highs, means.max(axis=1))
    scaled = means / np.where(highs > 0, highs, 1)[:, None]
    return deflate(np.rint(255 * scaled.clip(0, 1)).astype(np.uint8).tobytes()), highs


def _number_means(total: MapPixels) -> bytes:
    """The same of the columns of numbers."""
    used = np.flatnonzero(total.wide_cells)
    numbers = [
        np.where(known > 0, np.rint(sums / np.maximum(known, 1)), 255).astype(np.uint8)[used]
        for sums, known in total.numbers
    ]
    return deflate(b"".join(part.tobytes() for part in numbers))


def _markers(
    markers: Path | None, columns: Sequence[PageColumn], genes: Sequence[str]
) -> list[list[Any]]:
    """Column, level and genes of each group whose markers are on the page."""
    if markers is None:
        return []
    table = read_markers(markers)
    gene_of = {name: i for i, name in enumerate(genes)}
    groups = []
    for i, column in enumerate(columns):
        level_of = {name: j for j, name in enumerate(column.levels)}
        for group, rows in table[table["by"] == column.name].groupby("group", sort=False):
            known = [gene_of[name] for name in rows["names"] if name in gene_of]
            if known and group in level_of:
                groups.append([i, level_of[group], known[:_MARKERS_SHOWN]])
    return groups


def _code(names: Sequence[str]) -> str:
    """The page without its data; its policy allows its style and script alone, and no network."""
    script = joined_scripts(_PAGE, names)
    files = [_PAGE / f"{name}.css" for name in ("explore", *names)]
    style = "".join(file.read_text("utf-8") for file in files if file.exists())
    policy = content_policy(script, style, "data: blob:")
    text = (_PAGE / "explore.html").read_text("utf-8")
    text = text.replace("{{ policy }}", policy).replace("{{ style }}", style)
    return text.replace("{{ script }}", script)
