"""Cells and stored values of plates, estimated without opening them.

A plate's size is that of its file, or the shape in the metadata of a Zarr store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Sum of the sizes of several plates."""
    sizes = list(sizes)
    return Size(sum(size.cells for size in sizes), sum(size.values for size in sizes))
