"""obs and var of files of anndata before 0.7, h5ad or Zarr.

Each is a compound data set with one field per column, the index first; categories of a column of
codes are in ``uns/NAME_categories``. Source of the layout: how anndata 0.12 reads such files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.io.files.anndata_checks import is_group
from scatlas.io.files.read_errors import reading
from scatlas.io.tables.converted_tables import Tables, convert_tables

if TYPE_CHECKING:
    from contextlib import ExitStack


def is_legacy(root: Any) -> bool:
    """Whether an opened file is of anndata before 0.7."""
    return is_group(root) and all(
        name in root and not is_group(root[name]) and root[name].dtype.names
        for name in ("obs", "var")
    )


def open_legacy(path: str, root: Any, stack: ExitStack, counts: str) -> Tables | None:
    """obs, var and ``raw/var`` of a file of anndata before 0.7; None for other files."""
    if not is_legacy(root):
        return None
    tables = [("obs", "obs"), ("var", "var"), ("raw.var", "raw/var")]
    frames = {key: _frame(path, root, name) for name, key in tables if name in root}
    key, var = ("raw.X", "raw/var") if counts == "raw" else (counts, "var")
    return Tables(convert_tables(stack, frames), key, var)


def _frame(path: str, root: Any, name: str) -> pd.DataFrame:
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
    if values.dtype.kind not in "SOUT":
        return values
    texts = [value.decode() if isinstance(value, bytes) else value for value in values]
    return np.array(texts, dtype=object)
