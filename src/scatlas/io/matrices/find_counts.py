"""Which elements of a file hold counts, by their first values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import attribute, check_anndata, is_group
from scatlas.io.files.anndata_file import load_filters
from scatlas.io.files.read_errors import reading
from scatlas.io.tables.cell_ranger import cell_ranger_matrices
from scatlas.io.tables.legacy_anndata import is_legacy
from scatlas.io.tables.loom import is_loom, loom_key

if TYPE_CHECKING:
    from scatlas.io.files.local_zarr import StoredGroup

# Values, and rows of a dense matrix, by which to tell counts from other numbers.
_LOOK, _LOOK_ROWS = 10_000, 10
# Values of a dense matrix in memory at once, to find one that is not 0.
_MAX_VALUES = 2**22
# Share of whole numbers among expected counts, at least.
_WHOLE_SHARE = 0.1
# What an element holds, in words.
COUNTS, EXPECTED = "holds raw counts", "holds expected counts"


def what_matrices_hold(path: str, root: StoredGroup) -> dict[str, str | InputError]:
    """What the matrices of an opened file hold, see `what_elements_hold`."""
    if found := cell_ranger_matrices(root):
        return {name: _held(path, root, group) for name, group in found.items()}
    if not is_loom(root) and not is_legacy(root):
        check_anndata(path, root)
    held = {name: _held(path, root, key) for key, name in matrices(root).items()}
    first = ["X", "layers/counts", "raw"]
    names = sorted(held, key=lambda name: first.index(name) if name in first else len(first))
    return {name: held[name] for name in names}


def matrices(root: StoredGroup) -> dict[str, str]:
    """Matrices of a file by their keys, as ``source.counts`` names them."""
    names = {f"layers/{name}": f"layers/{name}" for name in sorted(root.get("layers", {}))}
    names |= {key: "raw" for key in ("raw/X", "raw.X") if key in root}
    x = loom_key("X") if is_loom(root) else "X"
    names |= {x: "X"} if x in root else {}
    return {k: v for k, v in names.items() if attribute(root[k], "encoding-type") != "null"}


def _held(path: str, root: StoredGroup, key: str) -> str | InputError:
    try:
        with reading(path, key):
            load_filters(path, root[key])
            return kind_of_values(_first_values(root[key], by_column=is_loom(root)))
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return error


def _first_values(matrix: Any, *, by_column: bool) -> np.ndarray:
    """Values of the first rows (columns in Loom) that are not all 0."""
    values = matrix["data"] if is_group(matrix) else matrix
    n_rows = values.shape[1 if by_column else 0]
    width = max(1, math.prod(values.shape) // max(1, n_rows))
    first, step = 0, _LOOK if is_group(matrix) else _LOOK_ROWS
    while first < n_rows:
        rows = slice(first, first + step)
        part = np.asarray(values[:, rows] if by_column else values[rows])
        if part.any():
            return part
        first, step = first + step, max(min(2 * step, _MAX_VALUES // width), step)
    return np.empty(0)


def kind_of_values(values: np.ndarray) -> str:
    """What values are, in words; expected counts are those of which some are whole numbers."""
    values = values[values != 0]
    if not values.size:
        return "holds no value but 0"
    if not np.isfinite(values).all():
        return "holds NaN or infinite values"
    if (values < 0).any():
        return "holds negative values"
    share = float((values == np.rint(values)).mean())
    if share == 1:
        return COUNTS
    return EXPECTED if share > _WHOLE_SHARE else "holds fractional values"
