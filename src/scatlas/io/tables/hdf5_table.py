"""Rows of a store's table in an h5ad file, of which memory holds a column at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import pandas as pd

from scatlas.blocks import map_in_order
from scatlas.io.files.hdf5_writing import few_texts_to_categories, write_element
from scatlas.io.files.local_zarr import open_store
from scatlas.io.tables.column import Column
from scatlas.io.zarr_writer.elements import DATAFRAME, STRING_ARRAY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np

    from scatlas.io.files.local_zarr import StoredGroup

# Names in memory at a time, about: a tenth of a GB.
_NAMES = 2**18


def take_column(path: Path, table: StoredGroup, name: str, rows: np.ndarray) -> Any:
    """Rows of a column as pandas keeps it, without categories that none has, as AnnData cuts it."""
    found = Column.open(path, table, name).take(rows)
    if isinstance(found, pd.Categorical) and pd.Series(found).nunique() < len(found.categories):
        return found.remove_unused_categories()
    return found


def write_obs(
    group: h5py.Group, path: Path, rows: np.ndarray, more: Mapping[str, Callable[[], Any]]
) -> None:
    """Write ``rows`` of a store's obs, and columns that replace its own or come after them."""
    table = open_store(path)["obs"]
    names = [*dict.fromkeys([*table.attrs["column-order"], *more])]
    group.attrs["column-order"] = names
    group.attrs["_index"] = index = table.attrs["_index"]
    _write_texts(group, index, Column.open(path, table, index), rows)
    group[index].attrs.update(STRING_ARRAY)  # after it was closed, as anndata does

    def read(i: int) -> Any:
        name = names[i]
        found = more[name]() if name in more else take_column(path, table, name, rows)
        few_texts_to_categories(frame := pd.DataFrame({name: found}))
        return frame[name].values

    for name, values in zip(names, map_in_order(read, len(names), workers=1), strict=True):
        write_element(group, name, values)
    group.attrs.update(DATAFRAME)


def _write_texts(group: h5py.Group, name: str, column: Column, rows: np.ndarray) -> None:
    texts = group.create_dataset(name, rows.shape, h5py.string_dtype(), compression="gzip")
    step = max(1, _NAMES // texts.chunks[0]) * texts.chunks[0]  # whole chunks: the same bytes
    parts = [rows[lo : lo + step] for lo in range(0, rows.size, step)]
    read = map_in_order(lambda i: column.take(parts[i]), len(parts), workers=1)
    for i, part in enumerate(read):
        texts[i * step : (i + 1) * step] = part
