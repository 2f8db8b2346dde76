"""Join data, style and scripts into ``explore.html``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas._util.names import short_names
from scatlas.io import atomic_path
from scatlas.matrix.map_pixels import FIXED_POINT, MEANS_SIDE, SIDE, box_of
from scatlas.workflow.explore._choose import read_markers
from scatlas.workflow.explore._pack import (
    Points,
    block_tags,
    coarsen,
    deflate,
    in_threads,
    pack_counts,
    pack_json,
    page_bytes,
    same_cells,
)
from scatlas.workflow.inline_page import content_policy, joined_scripts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scatlas.workflow.explore._cells import MapCells, MapPixels
    from scatlas.workflow.explore._choose import PageColumn

_PAGE = Path(__file__).parent / "page"
# Largest shares of the page's bytes; what one part leaves over goes to the next.
_COUNTS_SHARE, _POINTS_SHARE = 0.3, 0.8
# A module follows those that it imports.
SCRIPTS = (
    *("colours", "scales", "density", "atlas", "camera", "webgl", "canvas", "layers", "labels"),
    *("selection", "legend", "permalink", "view", "panel", "export", "finder", "controls"),
    "explorer",
)
_HIGH_MEAN = 99  # per cent of the pixels
_MAX_PAIRS_PER_BYTE = 1.5  # of level and pixel: more never fit
_MAX_LETTERS = 18  # of a level's name on the map and beside it
_MARKERS_SHOWN = 4  # of each group, beside its name


def build(
    page: Path,
    total: MapPixels,
    sample: MapCells,
    *,
    mixed: MapCells | None,
    columns: Sequence[PageColumn],
    genes: Sequence[str],
    markers: Path | None,
    n_points: int,
    max_bytes: int,
    **sizes: Any,
) -> dict[str, Any]:
    """Write the page, complete or not at all; return its numbers of cells, points, genes and bytes.

    ``total`` has the pixels of all cells, ``sample`` is ``umap.h5ad``, ``mixed``
    ``integrated.h5ad``. The same input gives the same bytes. ``sizes`` are options of
    :func:`scatlas.io.read_matrix`.
    """
    n_cells = int(total.wide_cells.sum())
    code = _code()
    left = max_bytes - len(code.encode()) - 1000
    mixed = mixed if same_cells(sample, mixed) else None
    points = Points(sample, mixed, columns, genes)
    counts, sides = _counts(total, columns, int(_COUNTS_SHARE * left))
    means, mean_highs = _means(total)
    left -= page_bytes(counts) + page_bytes(means)
    # The names of levels and genes, whatever the numbers beside them are.
    described = {"columns": [_described(column) for column in columns], "genes": list(genes)}
    left -= 2 * page_bytes({"meta": pack_json(described)}) + 4000 + 40 * len(genes)
    point_blocks, rows = points.blocks(n_points, int(_POINTS_SHARE * left))
    left -= page_bytes(point_blocks)
    gene_blocks, highs, stride = points.gene_blocks(rows, left, **sizes)
    box = box_of(sample.coordinates())
    meta = {
        "n_cells": n_cells,
        "n_points": rows.size,
        "n_sample": sample.n_cells,
        "box": list(box),
        "side": SIDE,
        "means_side": MEANS_SIDE,
        "gene_stride": stride,
        "maps": ["UMAP", "UMAP after Harmony"][: 1 + (mixed is not None)],
        "columns": [
            {**_described(column), "side": side}
            for column, side in zip(columns, sides, strict=True)
        ],
        "genes": [
            {"name": name, "high": round(float(high), 4), "mean_high": round(float(mean), 4)}
            for name, high, mean in zip(genes, highs, mean_highs, strict=True)
        ],
        "markers": _markers(markers, columns, genes),
    }
    blocks = {"meta": pack_json(meta), **counts, **means, **point_blocks, **gene_blocks}
    text = code.replace("<!-- first -->", block_tags({k: blocks.pop(k) for k in _FIRST}))
    text = text.replace("<!-- data -->", block_tags(blocks))
    with atomic_path(page) as partial:
        partial.write_text(text, "utf-8")
    return {
        "n_cells": n_cells,
        "n_points": int(rows.size),
        "n_gene_points": -(-rows.size // stride),
        "n_genes": len(genes),
        "n_columns": len(columns),
        "bytes": len(text.encode()),
    }


def _described(column: PageColumn) -> dict[str, Any]:
    """A column for the page, with short names of its levels if any of them is long."""
    short = short_names(column.levels, _MAX_LETTERS)
    return column._asdict() | ({} if short == column.levels else {"short": short})


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


def _means(total: MapPixels) -> tuple[dict[str, bytes], np.ndarray]:
    """Blocks of means by pixel, in the order of the pixels with cells, and the end of each scale,
    below the extreme means of pixels of few cells.
    """
    used = np.flatnonzero(total.wide_cells)
    genes = total.genes[used] * FIXED_POINT / total.wide_cells[used, None]
    if used.size:
        highs = np.percentile(genes, _HIGH_MEAN, axis=0)
        highs = np.where(highs > 0, highs, genes.max(axis=0))
    else:
        highs = np.zeros(genes.shape[1])
    scaled = genes / np.where(highs > 0, highs, 1)
    codes = np.rint(255 * scaled.clip(0, 1)).astype(np.uint8)
    numbers = [
        np.where(known > 0, np.rint(sums / np.maximum(known, 1)), 255).astype(np.uint8)[used]
        for sums, known in total.numbers
    ]
    tasks = {
        "gene-means": lambda: deflate(codes.T.tobytes()),
        "number-means": lambda: deflate(b"".join(part.tobytes() for part in numbers)),
    }
    return in_threads(tasks), highs


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


def _code() -> str:
    """The page without its data; its policy allows its style and script alone, and no network."""
    script = joined_scripts(_PAGE, SCRIPTS)
    style = (_PAGE / "explore.css").read_text("utf-8")
    policy = content_policy(script, style, "data: blob:")
    text = (_PAGE / "explore.html").read_text("utf-8")
    text = text.replace("{{ policy }}", policy).replace("{{ style }}", style)
    return text.replace("{{ script }}", script)
