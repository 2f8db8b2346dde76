"""Which elements of a file hold counts, by their first values."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import STRUCTURE, attribute, check_anndata, is_group
from scatlas.io.files.anndata_file import Store, load_filters
from scatlas.io.files.cell_files import CellFiles
from scatlas.io.files.read_errors import reading
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices.matrix_market import first_values
from scatlas.io.tables.cell_ranger import cell_ranger_matrices
from scatlas.io.tables.legacy_anndata import is_legacy
from scatlas.io.tables.loom import is_loom, loom_key

if TYPE_CHECKING:
    from pathlib import Path

    from scatlas.io.files.stored_nodes import StoredGroup

# Values, and rows of a dense matrix, by which to tell counts from other numbers.
_LOOK, _LOOK_ROWS = 10_000, 10
# Values of a dense matrix in memory at once, to find one that is not 0.
_MAX_VALUES = 2**22
# Share of whole numbers among expected counts, at least.
_WHOLE_SHARE = 0.1
# What an element holds, in words.
COUNTS, EXPECTED = "holds raw counts", "holds expected counts"


def what_elements_hold(path: Path | str) -> dict[str, str | InputError]:
    """What the elements of a file hold, by their first values.

    Returns
    -------
    By name, as ``source.counts`` names them: :data:`COUNTS`, :data:`EXPECTED` (positive numbers of
    which at least a tenth are whole; of normalised values hardly any is), other words that follow
    the name in a sentence, or the error that reading it raises. ``X`` is first; then
    ``layers/counts``, ``raw`` and other layers. A file of Cell Ranger has only ``X``, or
    ``genome/NAME`` for each genome, that with most cells first.
    """
    if CellFiles.find(path):
        return {"X": COUNTS}  # `load` looks at each value
    if text := TextMatrix.find(path):
        return {"X": _kind_of_values(first_values(text))}
    store = Store.find(path)
    with ExitStack() as stack, reading(store.path, STRUCTURE):
        root = store.open_on(stack)
        if found := cell_ranger_matrices(root):
            return {name: _held(store.path, root, group) for name, group in found.items()}
        if not is_loom(root) and not is_legacy(root):
            check_anndata(store.path, root)
        held = {name: _held(store.path, root, key) for key, name in matrices(root).items()}
    first = ["X", "layers/counts", "raw"]
    names = sorted(held, key=lambda name: first.index(name) if name in first else len(first))
    return {name: held[name] for name in names}


def layers(root: StoredGroup) -> list[str]:
    """Layers of a file, as ``source.counts`` names them."""
    return [f"layers/{name}" for name in sorted(root.get("layers", {}))]


def with_counts(path: str, root: StoredGroup, *, without: str = "") -> list[str]:
    """Elements but the key ``without`` that begin with counts, as ``source.counts`` names them."""
    elements = matrices(root)
    elements.pop(without, None)
    return [name for key, name in elements.items() if _held(path, root, key) == COUNTS]


def matrices(root: StoredGroup) -> dict[str, str]:
    """Matrices of a file by their keys, as ``source.counts`` names them."""
    names = {name: name for name in layers(root)}
    names |= {key: "raw" for key in ("raw/X", "raw.X") if key in root}
    x = loom_key("X") if is_loom(root) else "X"
    names |= {x: "X"} if x in root else {}
    return {k: v for k, v in names.items() if attribute(root[k], "encoding-type") != "null"}


def _held(path: str, root: StoredGroup, key: str) -> str | InputError:
    try:
        with reading(path, key):
            load_filters(path, root[key])
            return _kind_of_values(_first_values(root[key], by_column=is_loom(root)))
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


def _kind_of_values(values: np.ndarray) -> str:
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
