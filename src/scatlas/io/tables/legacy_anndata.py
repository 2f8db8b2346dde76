"""obs and var of h5ad files of anndata before 0.7.

Each is a compound data set with one field per column, the index first. Columns of categories hold
codes, and the categories are in ``uns/NAME_categories``. The counts before normalisation are in
``raw.X`` and ``raw.var``, with a dot. Source of the layout: how anndata 0.12 reads such files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pandas as pd

from scatlas.io.files.read_errors import reading
from scatlas.io.tables.converted_tables import ConvertedTables, convert_tables

if TYPE_CHECKING:
    from contextlib import ExitStack


def is_legacy(root: Any) -> bool:
    """Whether an opened file is an h5ad of anndata before 0.7."""
    return isinstance(root, h5py.File) and all(
        isinstance(root.get(name), h5py.Dataset) and root[name].dtype.names
        for name in ("obs", "var")
    )


def open_legacy(
    path: str, root: Any, stack: ExitStack, counts: str = "X"
) -> ConvertedTables | None:
    """Open the tables of a file of anndata before 0.7; None for other files.

    Parameters
    ----------
    path, root
        File, and the same opened.
    stack
        Closes the tables, which are written to a temporary folder.
    counts
        Matrix, as ``source.counts`` names it: ``raw`` has its own genes.

    Raises
    ------
    InputError
        A table is damaged.
    """
    if not is_legacy(root):
        return None
    var = "raw.var" if counts == "raw" and "raw.var" in root else "var"
    return convert_tables(stack, _frame(path, root, "obs"), _frame(path, root, var), [])


def legacy_key(counts: str) -> str:
    """Element of such a file for a value of ``source.counts``."""
    return "raw.X" if counts == "raw" else counts


def _frame(path: str, root: h5py.File, name: str) -> pd.DataFrame:
    with reading(path, name):
        table = root[name][:]
        index, *columns = table.dtype.names
        frame = pd.DataFrame(index=pd.Index(_as_text(table[index]), dtype=object))
        for column in columns:
            values = _as_text(table[column])
            labels = root.get(f"uns/{column}_categories")
            if labels is not None and values.dtype.kind in "iu":
                categories = _as_text(np.atleast_1d(labels[()]))
                # Of equal names in obs and var only one has its categories here.
                if values.max(initial=-1) < len(categories):
                    values = pd.Categorical.from_codes(values, categories)
            frame[column] = values
    return frame


def _as_text(values: np.ndarray) -> np.ndarray:
    """Text as ``object`` array of ``str``; numbers as they are."""
    if values.dtype.kind not in "SO":
        return values
    texts = [value.decode() if isinstance(value, bytes) else value for value in values]
    return np.array(texts, dtype=object)
