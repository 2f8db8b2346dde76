"""Tables of a plate's cells between the steps: parquet, a row group of named cells at a time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pandas as pd

from scatlas.io.columns import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy as np


def write_cells(
    path: Path, columns: pd.DataFrame, names: Iterable[np.ndarray], *, index_name: str | None = None
) -> None:
    """Write a table as ``DataFrame.to_parquet`` does, without holding the cells' names.

    Parameters
    ----------
    path
        File to write.
    columns
        A row a cell; its index is not looked at.
    names
        Names of the cells, in pieces of ``object`` arrays of ``str``; a piece makes a row group.
    index_name
        Name of the index in the file.

    Raises
    ------
    ValueError
        There are more or fewer names than cells.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    first, writer = 0, None
    with ExitStack() as stack:
        for piece in names:
            part = columns.iloc[first : first + len(piece)].set_axis(
                pd.Index(piece, name=index_name)
            )
            first += len(piece)
            schema = None if writer is None else writer.schema
            # One thread: each that converts would keep memory of its own.
            table = pa.Table.from_pandas(part, schema, preserve_index=True, nthreads=1)
            if writer is None:
                # A dictionary of names, which are all different, is as large as the names.
                new = pq.ParquetWriter(path, table.schema, use_dictionary=list(columns))
                writer = stack.enter_context(new)
            writer.write_table(table)
    if first != len(columns):
        msg = f"{first} names for {len(columns)} cells"
        raise ValueError(msg)


def read_cells(path: Path | str, columns: list[str]) -> pd.DataFrame:
    """Read columns of numbers without the cells' names, of 100 bytes a cell; cells are numbered."""
    import pyarrow.parquet as pq

    # `pq.read_table` and its threads read far ahead.
    with pq.ParquetFile(path) as file:
        return file.read(columns, use_threads=False).to_pandas(ignore_metadata=True)


def kept_names(path: Path | str, keep: np.ndarray) -> tuple[str | None, Iterator[np.ndarray]]:
    """Name of such a table's index; names of the cells where ``keep`` is true, in pieces."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    (column,) = file.schema_arrow.pandas_metadata["index_columns"]

    def pieces() -> Iterator[np.ndarray]:
        first = 0
        with file:
            for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
                names = batch.column(0).to_numpy(zero_copy_only=False)
                mask = keep[first : first + names.size]
                first += names.size
                if mask.any():
                    yield names[mask]

    return None if column.startswith("__index_level_") else column, pieces()
