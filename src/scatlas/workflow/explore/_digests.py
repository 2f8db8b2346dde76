"""Digests of what the pixels of a plate depend on: a change of them reruns its job.

The values and the labels of a plate's cells are those of its ``selected.zarr``, whose checksum is
in a manifest. The atlas adds places and clusters, the page its box, columns and genes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.io.files.checksums import json_bytes, text_digest
from scatlas.matrix.map_pixels import box_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scatlas.workflow.explore._cells import MapCells
    from scatlas.workflow.explore._choose import PageColumn

_CLUSTERS = "leiden"


def digest_of_page(sample: MapCells, columns: Sequence[PageColumn], genes: Sequence[str]) -> str:
    """Digest of what all plates share: the box of the map, columns and genes of the page."""
    shared = {
        "box": list(box_of(sample.coordinates(0, sample.n_cells))),
        "columns": [list(column) for column in columns],
        "genes": list(genes),
    }
    return text_digest(json_bytes(shared))


def digests_of_plates(cells: MapCells) -> dict[str, str]:
    """Digest of the places and clusters of each plate's cells, by plate.

    Of a sample it is also one of which cells are in it.
    """
    return {plate: _digest(cells, lo, hi) for plate, (lo, hi) in cells.rows_by_plate().items()}


def _digest(cells: MapCells, lo: int, hi: int) -> str:
    parts = [cells.coordinates(lo, hi).astype("<f4").tobytes()]
    if _CLUSTERS in cells.columns:
        # Names, because their codes may change without them.
        codes, names = _codes_and_names(cells, lo, hi)
        parts += [codes.astype("<i4").tobytes(), json_bytes({_CLUSTERS: names})]
    if cells.is_sample:
        parts.append("\n".join(cells.names(np.arange(lo, hi))).encode("utf-8"))
    return text_digest(b"".join(parts))


def _codes_and_names(cells: MapCells, lo: int, hi: int) -> tuple[np.ndarray, list[str]]:
    """Cluster of each cell, numbered among those that the plate has."""
    clusters = cells.values(_CLUSTERS, lo, hi).remove_unused_categories()
    return clusters.codes, clusters.categories.astype(str).tolist()
