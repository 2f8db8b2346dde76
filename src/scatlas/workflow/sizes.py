"""Sizes of plates, estimated without opening them, and of the sample."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas._util.numbers import parse_bytes
from scatlas.compute.memory import map_bytes
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scatlas.workflow.config.atlas_sections import Map, Subset
    from scatlas.workflow.config.plate_sheet import Plate

# Values and bytes per cell of Tahoe-100M's plates, in gzip: denser files than most, so the estimate
# for others is too large. UNKNOWN_BYTES: an address, or a folder that is not a Zarr store.
VALUES_PER_CELL = 1451
BYTES_PER_CELL = 3000
UNKNOWN_BYTES = 10e9


@dataclass(frozen=True)
class Size:
    """Cells and stored values of one plate or several."""

    cells: float
    values: float


def plate_size(plate: Plate) -> Size:
    """Size of a plate: ``n_cells`` of the sheet, else a Zarr store's shape, else by its bytes."""
    if plate.is_simulated:
        return Size(2000, 2000 * 3000)
    path = Path(plate.path)
    shape = None if plate.is_remote else zarr_shape(path)
    if shape:
        return Size(plate.n_cells or shape.cells, shape.values)
    if plate.n_cells:
        return Size(plate.n_cells, plate.n_cells * VALUES_PER_CELL)
    # A folder of Cell Ranger holds text, which is larger than the same counts as h5ad.
    files = path.iterdir() if path.is_dir() else [path]
    sizes = [] if plate.is_remote else [file.stat().st_size for file in files if file.is_file()]
    n_bytes = sum(sizes) or UNKNOWN_BYTES
    cells = n_bytes / BYTES_PER_CELL
    return Size(cells, cells * VALUES_PER_CELL)


def zarr_shape(store: Path) -> Size | None:
    """Size of X by the metadata of a store; None if they lack its shape."""
    dense, values, offsets = (_array_shape(store / name) for name in ("X", "X/data", "X/indptr"))
    if values and offsets:
        return Size(offsets[0] - 1, values[0])
    return Size(dense[0], dense[0] * dense[1]) if dense and len(dense) == 2 else None


def _array_shape(array: Path) -> list[int] | None:
    for name in ("zarr.json", ".zarray"):
        try:
            return json.loads((array / name).read_text(encoding="utf-8")).get("shape")
        except (OSError, ValueError, AttributeError):
            continue  # missing or damaged: `load` refuses a damaged store with a message
    return None


def total(sizes: Iterable[Size]) -> Size:
    sizes = list(sizes)
    return Size(sum(size.cells for size in sizes), sum(size.values for size in sizes))


# Cells of a sample whose size is not given, if it cannot have all cells.
SAMPLE_CELLS = 1_000_000
# Cells up to which igraph finds the clusters, on one core. Its memory and time grow by copies of
# the graph; beyond, the rounds use all threads, or a GPU.
IGRAPH_CELLS = 1_000_000


def sample_size(n_cells: int, n_comps: int, subset: Subset, of_map: Map) -> int:
    """Number of cells to sample: all, if the map is computed with all of them. It is an error if
    ``map.method`` is full and that takes more memory than ``map.memory``.
    """
    if subset.n_cells is not None:
        return min(subset.n_cells, n_cells)
    needed, memory = map_bytes(n_cells, n_comps), parse_bytes(of_map.memory)
    if of_map.method == "full" and needed > memory:
        raise InputError(
            f"a map computed with all {n_cells:,} cells takes about {needed / 1e9:,.1f} GB, but "
            f"map.memory is {of_map.memory}: raise it, or set map.method to project"
        )
    if of_map.method != "project" and needed <= memory:
        return n_cells
    return min(SAMPLE_CELLS, n_cells)
