"""Which elements of a file hold counts, by their first values."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import STRUCTURE, check_anndata, is_group
from scatlas.io.files.anndata_file import Store, load_filters
from scatlas.io.files.cell_files import CellFiles
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.matrix_market import first_values, is_matrix_market
from scatlas.io.tables.cell_ranger import cell_ranger_matrices
from scatlas.io.tables.legacy_anndata import is_legacy
from scatlas.io.tables.loom import is_loom, loom_key

if TYPE_CHECKING:
    from scatlas.io.files.stored_nodes import StoredGroup

# Values, and rows of a dense matrix, by which to tell counts from other numbers.
_LOOK, _LOOK_ROWS = 10_000, 10
# Share of whole numbers among expected counts, at least.
_WHOLE_SHARE = 0.1


def elements_with_counts(path: Path | str, *, fractional: bool = False) -> list[str]:
    """Elements of a file whose first values are whole numbers, as ``source.counts`` names them.

    Parameters
    ----------
    path
        File of AnnData or Cell Ranger, as for :func:`open_counts`.
    fractional
        Look for expected counts instead: positive numbers of which at least a tenth are whole, but
        not all. Of normalised values hardly any is whole.

    Returns
    -------
    ``X`` first, if its values are; then ``layers/counts``, ``raw`` and other layers. A file of Cell
    Ranger has only ``X``, or ``genome/NAME`` for each genome, that with most cells first.

    Raises
    ------
    InputError
        The file does not exist, is no AnnData file, or is damaged.
    """
    if CellFiles.find(path):
        return [] if fractional else ["X"]  # `load` looks at each value
    if is_matrix_market(path):
        values = first_values(Path(path))
        return ["X"] if _are_counts(values, fractional) else []
    store = Store.find(path)
    with ExitStack() as stack, reading(store.path, STRUCTURE):
        root = store.open_on(stack)
        if matrices := cell_ranger_matrices(root):
            return [
                name
                for name, group in matrices.items()
                if _begins_with_counts(store.path, root, group, fractional)
            ]
        if not is_loom(root) and not is_legacy(root):
            check_anndata(store.path, root)
        found = with_counts(store.path, root, fractional=fractional)
    first = ["X", "layers/counts", "raw"]
    return sorted(found, key=lambda name: first.index(name) if name in first else len(first))


def layers(root: StoredGroup) -> list[str]:
    """Layers of a file, as ``source.counts`` names them."""
    return [f"layers/{name}" for name in sorted(root.get("layers", {}))]


def with_counts(
    path: str, root: StoredGroup, *, without: str = "", fractional: bool = False
) -> list[str]:
    """Elements that begin with counts, as ``source.counts`` names them: layers, raw, X.

    Parameters
    ----------
    path, root
        File, and the same opened.
    without
        Element to pass over, by its key in the file.
    fractional
        As for :func:`elements_with_counts`.
    """
    keys = {name: name for name in layers(root)}
    if "raw" in root and "X" in root["raw"]:
        keys["raw/X"] = "raw"
    if "raw.X" in root:
        keys["raw.X"] = "raw"
    if "X" in root or is_loom(root):
        keys[loom_key("X") if is_loom(root) else "X"] = "X"
    keys.pop(without, None)
    return [name for key, name in keys.items() if _begins_with_counts(path, root, key, fractional)]


def _begins_with_counts(path: str, root: StoredGroup, key: str, fractional: bool) -> bool:
    try:
        with reading(path, key):
            load_filters(path, root[key])
            matrix = root[key]
            if is_loom(root):
                values = matrix[:, :_LOOK_ROWS]
            else:
                values = matrix["data"][:_LOOK] if is_group(matrix) else matrix[:_LOOK_ROWS]
            return _are_counts(np.asarray(values), fractional)
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            raise
        return False  # damaged: another sentence reports it


def _are_counts(values: np.ndarray, fractional: bool) -> bool:
    """Whether values may be counts, or expected counts, of which some are whole numbers."""
    values = values[values != 0]
    if not values.size or not (values > 0).all():
        return False
    share = float((values == np.rint(values)).mean())
    return _WHOLE_SHARE < share < 1 if fractional else share == 1
