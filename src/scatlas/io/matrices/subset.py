"""Cells of a large store in memory, read in storage order."""

from __future__ import annotations

import math
from collections import deque
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
from anndata.io import read_elem
from scipy import sparse

from scatlas.blocks import map_in_order
from scatlas.compute.progress import progress_meter
from scatlas.compute.threads import n_cores
from scatlas.io.files.hdf5_writing import SMALL_VALUES, write_element, write_large
from scatlas.io.files.local_zarr import as_zarr_python, open_rows, open_store
from scatlas.io.matrices.csr_writer import index_dtype
from scatlas.io.tables.column import Column
from scatlas.io.tables.hdf5_table import take_column
from scatlas.io.zarr_writer.elements import ARRAY, CSR
from scatlas.io.zarr_writer.sharded_array import values_per_piece

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import h5py
    from numpy.typing import ArrayLike

    from scatlas.io.files.local_zarr import StoredArray, StoredGroup

# Offsets of rows to read at once.
_OFFSETS = 2**20
# Chunks that a thread reads at once, of an array that is read as a whole.
_CHUNKS_AT_ONCE = 16


def read_subset(
    path: Path | str,
    index: ArrayLike,
    *,
    x: bool = True,
    obs: Sequence[str] | None = None,
    obsm: Sequence[str] | None = None,
    block_budget: str | int = "256MB",
) -> ad.AnnData:
    """Read the given cells of an AnnData Zarr store with a CSR X into memory.

    The same as ``anndata.read_zarr(path)[index].copy()`` without reading all of it: each chunk is
    decoded at most once, in storage order, and beyond the result only pieces within the budget
    are in memory.

    Parameters
    ----------
    path
        The store: ``X``, ``obs``, ``var``, ``obsm``, ``varm`` and ``uns`` are read.
    index
        Rows to read, in ascending order and without repeats.
    x
        Whether to read X.
    obs, obsm
        Columns and elements to read; None for all.
    block_budget
        Memory for the pieces that are read at once.

    Raises
    ------
    ValueError
        ``index`` is not ascending, or beyond the cells of the store.
    """
    path = Path(path)
    root = open_store(path)
    rows = np.asarray(index)
    rows = rows.astype(np.int64) if rows.size == 0 else rows
    n_cells = root["X"].attrs["shape"][0]
    if rows.dtype.kind not in "iu" or rows.ndim != 1:
        raise ValueError("index is a 1-D array of row numbers")
    rows = rows.astype(np.int64)
    if len(rows) and (rows[0] < 0 or rows[-1] >= n_cells or (np.diff(rows) <= 0).any()):
        raise ValueError(f"index has to ascend, without repeats, from 0 to at most {n_cells - 1}")
    # Half: with the whole, memory grew from plates that do not fill it to those that do by 15%.
    piece = max(1, values_per_piece(block_budget) // 2)
    return ad.AnnData(
        X=_take_csr(path, root["X"], rows, piece) if x else None,
        obs=_take_table(path, root["obs"], rows, obs),
        var=read_elem(as_zarr_python(root["var"])),
        obsm={
            name: take_rows(path, f"obsm/{name}", rows, piece=piece)
            for name in root["obsm"]
            if obsm is None or name in obsm
        },
        varm=read_elem(as_zarr_python(root["varm"])),
        uns=read_elem(as_zarr_python(root["uns"])),
    )


def _take_csr(path: Path, x: StoredGroup, rows: np.ndarray, piece: int) -> sparse.csr_matrix:
    starts, ends = _offsets(x["indptr"], rows)
    stored = open_rows(path, "X/data"), open_rows(path, "X/indices")
    indptr = np.concatenate([[0], np.cumsum(ends - starts, dtype=np.int64)])
    n_values = int(indptr[-1])
    width = index_dtype(n_values)
    data = np.empty(n_values, stored[0].dtype)
    indices = np.empty(n_values, width)

    def take(span: slice) -> int:
        """Copy the wanted values of a range of the store; returns the number of rows it ends."""
        lo, hi = span.start, span.stop
        first = int(np.searchsorted(ends, lo, side="right"))
        last = int(np.searchsorted(starts, hi, side="left"))
        if first == last:
            return 0
        begin = np.maximum(starts[first:last], lo)
        end = np.maximum(begin, np.minimum(ends[first:last], hi))
        span = slice(int(begin[0]), int(end.max()))
        n_wanted = int((end - begin).sum())
        filled = int(indptr[first] + begin[0] - starts[first])
        out = slice(filled, filled + n_wanted)
        wanted: slice | np.ndarray = slice(None)
        if n_wanted < span.stop - span.start:
            # Positions in ranges that do not overlap, which ascend.
            lengths = end - begin
            before = np.cumsum(lengths) - lengths
            wanted = np.repeat(begin - span.start - before, lengths) + np.arange(n_wanted)
        for values, array in zip((data, indices), stored, strict=True):
            values[out] = array[span][wanted]
        return int(np.count_nonzero(ends[first:last] <= hi))

    with closing(progress_meter(len(rows))) as passed:
        for n_rows in _in_spans(take, stored[0].shape[0], stored[0].chunks[0], piece):
            passed.update(n_rows)
    shape = (len(rows), x.attrs["shape"][1])
    return sparse.csr_matrix((data, indices, indptr.astype(width)), shape=shape)


def _in_spans(take: Callable[[slice], int], n: int, chunk: int, most: int) -> Generator[int]:
    """Call `take` with ranges of whole chunks, in threads that hold `most` values, or a chunk."""
    n_chunks = max(1, most // chunk)
    workers = min(n_cores(), n_chunks)
    step = n_chunks // workers * chunk
    spans = [slice(lo, min(lo + step, n)) for lo in range(0, n, step)]
    return map_in_order(lambda i: take(spans[i]), len(spans), workers=workers)


def _offsets(indptr: StoredArray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    step = max(1, _OFFSETS // indptr.chunks[0]) * indptr.chunks[0]
    for lo in range(0, indptr.shape[0], step):
        parts = [(starts, rows), (ends, rows + 1)]
        cuts = [np.searchsorted(wanted, [lo, lo + step]) for _, wanted in parts]
        if all(first == last for first, last in cuts):
            continue
        offsets = indptr[lo : lo + step]
        for (out, wanted), (first, last) in zip(parts, cuts, strict=True):
            out[first:last] = offsets[wanted[first:last] - lo]
    return starts, ends


def take_rows(
    path: Path, key: str, rows: np.ndarray | None = None, *, piece: int | None = None
) -> np.ndarray:
    """Read rows, which ascend, or all of an array of numbers, by threads that hold ``piece``
    values, or some chunks each.
    """
    array = open_rows(path, key)
    n, chunk = array.shape[0], array.chunks[0]
    out = np.empty((n if rows is None else len(rows), *array.shape[1:]), array.dtype)
    width = max(1, int(np.prod(array.shape[1:])))

    def take(span: slice) -> int:
        if rows is None:
            out[span] = array[span]
            return 0
        first, last = np.searchsorted(rows, [span.start, span.stop])
        if first < last:
            out[first:last] = array[span][rows[first:last] - span.start]
        return int(last - first)

    most = piece // width if piece else _CHUNKS_AT_ONCE * n_cores() * chunk
    deque(_in_spans(take, n, chunk, most), maxlen=0)
    return out


def take_csr(path: Path, key: str) -> sparse.csr_matrix:
    """Read a whole CSR matrix, by all threads."""
    parts = tuple(take_rows(path, f"{key}/{name}") for name in ("data", "indices", "indptr"))
    return sparse.csr_matrix(parts, shape=tuple(open_store(path)[key].attrs["shape"]))


def write_stored(
    group: h5py.Group, key: str, path: Path, name: str, rows: np.ndarray | None = None
) -> None:
    """Write a CSR matrix, or ``rows`` of an array, to an h5ad file; what is large in parts."""
    value: Any
    if is_csr := (path / name / "indptr").exists():
        parts = {part: open_rows(path, f"{name}/{part}") for part in ("data", "indices", "indptr")}
        size = parts["data"].shape[0]
        parts["indices"].dtype = parts["indptr"].dtype = index_dtype(size)  # as `take_csr`
        value = SimpleNamespace(**parts, shape=tuple(open_store(path)[name].attrs["shape"]))
    else:
        value = open_rows(path, name)
        size = math.prod(value.shape)
    if size > SMALL_VALUES and (rows is None or rows.size == value.shape[0]):
        write_large(group, key, value, *(CSR if is_csr else ARRAY).values())
    else:
        write_element(group, key, take_csr(path, name) if is_csr else take_rows(path, name, rows))


def _take_table(
    path: Path, table: StoredGroup, rows: np.ndarray, wanted: Sequence[str] | None
) -> pd.DataFrame:
    index_name = table.attrs["_index"]
    index = pd.Index(Column.open(path, table, index_name).take(rows))
    names = [name for name in table.attrs["column-order"] if wanted is None or name in wanted]
    taken = map_in_order(
        lambda i: take_column(path, table, names[i], rows), len(names), workers=n_cores()
    )
    frame = pd.DataFrame(dict(zip(names, taken, strict=True)), index=index)
    frame.index.name = None if index_name == "_index" else index_name
    return frame
