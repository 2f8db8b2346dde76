"""Tables of a plate's cells between the steps: parquet, written in row groups."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pandas as pd

from scatlas.io.tables.column import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import numpy as np
    import pyarrow as pa


def write_cells(
    path: Path,
    columns: pd.DataFrame,
    names: Iterable[np.ndarray | pa.Array],
    *,
    index_name: str | None = None,
) -> None:
    """Write a table as ``DataFrame.to_parquet`` does, without holding the cells' names.

    Parameters
    ----------
    path
        File to write.
    columns
        One row per cell; its index is ignored.
    names
        Names of the cells, in pieces of ``object`` arrays of ``str``, or of Arrow's; a piece makes
        a row group.
    index_name
        Name of the index in the file.

    Raises
    ------
    ValueError
        There are more or fewer names than cells.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # As a data frame of all columns and names is converted, without making one of each piece.
    some = columns.iloc[:1]
    named = some.set_axis(pd.Index(["a name"][: len(some)], dtype=object, name=index_name))
    schema = pa.Schema.from_pandas(named, preserve_index=True)
    arrays = [pa.array(values, from_pandas=True) for _, values in columns.items()]
    first, written = 0, None
    with ExitStack() as stack:
        # A dictionary of names, which are all different, is as large as the names.
        writer = stack.enter_context(pq.ParquetWriter(path, schema, use_dictionary=list(columns)))
        # A row group is encoded while the next names are read.
        thread = stack.enter_context(ThreadPoolExecutor(1, "scatlas-cells"))
        for piece in names:
            parts = [array.slice(first, len(piece)) for array in arrays]
            first += len(piece)
            if first > len(columns):
                break
            table = pa.Table.from_arrays([*parts, pa.array(piece, schema.types[-1])], schema=schema)
            if written is not None:
                written.result()
            written = thread.submit(writer.write_table, table)
        if written is not None:
            written.result()
    if first != len(columns):
        raise ValueError(f"{first} names for {len(columns)} cells")


def read_cells(path: Path | str, columns: list[str]) -> pd.DataFrame:
    """Read columns of numbers by row, without the cells' names (100 bytes per cell)."""
    import pyarrow.parquet as pq

    # `pq.read_table` and its threads read far ahead.
    with pq.ParquetFile(path) as file:
        return file.read(columns, use_threads=False).to_pandas(ignore_metadata=True)


def kept_names(path: Path | str, keep: np.ndarray) -> tuple[str | None, Iterator[pa.Array]]:
    """Name of such a table's index; names of the cells where ``keep`` is true, in pieces."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    (column,) = file.schema_arrow.pandas_metadata["index_columns"]

    def pieces() -> Iterator[pa.Array]:
        first = 0
        with file:
            for batch in file.iter_batches(ROWS, columns=[column], use_threads=False):
                names = batch.column(0)
                mask = keep[first : first + len(names)]
                first += len(names)
                if mask.any():
                    yield names.filter(pa.array(mask))

    return None if column.startswith("__index_level_") else column, pieces()
