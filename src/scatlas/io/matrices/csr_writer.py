"""Write the canonical store: AnnData over Zarr v3, X as CSR, block by block."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd

from scatlas.compute.progress import progress_meter
from scatlas.errors import InputError
from scatlas.io.chunks.chunk_reader import read_encoded_chunks
from scatlas.io.files.atomic import atomic_path
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.zarr_writer.elements import (
    ANNDATA,
    CSR,
    create_group,
    finish_store,
    open_group_to_write,
    write_elem,
)
from scatlas.io.zarr_writer.sharded_array import (
    CHUNK_VALUES,
    COUNTS_CODEC,
    DENSE_CODEC,
    INDICES_CODEC,
    NORMALIZED_CODEC,
    ShardedArray,
    encoding_pool,
)
from scatlas.kernels import COUNT_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from scipy import sparse

    from scatlas.io.chunks.chunked_array import ChunkedArray
    from scatlas.io.files.local_zarr import StoredGroup


# Offsets that int32 holds.
_INT32_VALUES = np.iinfo(np.int32).max


def index_dtype(n_values: int) -> np.dtype:
    """Dtype of the indices and offsets of a sparse matrix: SciPy's methods need one for both."""
    return np.dtype(np.int32 if n_values <= _INT32_VALUES else np.int64)


def in_place(folder: Path) -> None:
    """``obs`` or ``var`` of a `CsrWriter` for a table that lies below its folder already."""


def write_values(
    folder: Path,
    parts: Generator[tuple[np.ndarray, np.ndarray]],
    n_values: int,
    dtype: np.dtype,
    width: np.dtype,
    chunk_values: int | None,
) -> None:
    """Write values of a sparse matrix and their indices as they come; in chunks of this length,
    whose files can be joined, else of any.
    """
    grid: dict[str, Any] = {"chunk_values": chunk_values, "fixed_grid": chunk_values is not None}
    codec = NORMALIZED_CODEC if dtype.kind == "f" else COUNTS_CODEC
    with (
        encoding_pool() as pool,
        ShardedArray(folder / "data", dtype, pool, compression=codec, **grid) as data,
        ShardedArray(folder / "indices", width, pool, compression=INDICES_CODEC, **grid) as indices,
        closing(progress_meter(n_values, unit="values")) as passed,
        closing(parts),
    ):
        for values, numbers in parts:
            data.append(values, copy=False)
            indices.append(numbers, copy=False)
            passed.update(len(values))


class CsrWriter:
    """Write an AnnData store with a sparse X, one row block after another.

    The store appears under its name when the ``with`` block ends without an error, and not
    before. ``anndata.read_zarr``, ``anndata.experimental.read_lazy`` and
    ``anndata.io.sparse_dataset`` open it. Memory in use is a few chunks, for any number of values.
    The bytes on disk depend on the values alone, not on the blocks.

    Indices and offsets are int32, or int64 from 2^31 values on: ``anndata.read_zarr`` keeps the
    widths it finds, and most methods of SciPy, which scanpy uses, need one for both.

    ``obs``, ``var`` and ``uns`` may be given at any time before the end, as attributes as well.
    Tables of another length are a ``ValueError``.

    Parameters
    ----------
    path
        The store to write; an older one is replaced at the end.
    n_vars
        Number of columns (genes).
    data_dtype
        ``None`` stores counts: non-negative whole numbers of any input dtype, in the smallest of
        uint8, uint16 and uint32 that holds the largest of them. Otherwise values are cast to this
        dtype.
    obs, var
        Tables of ``n_obs`` and ``n_vars`` rows; without them rows are named by their number.
        Each may be a function that writes the table itself, as the folder it is given.
    uns
        Small unstructured elements.
    n_values
        Number of stored values, as far as it is known; saves a rewrite at 2^31 values.
    chunk_values
        Values per chunk, a power of two. None is the best size for passes over all cells; readers
        of a few cells at a time take smaller ones.

    Examples
    --------
    >>> with CsrWriter("counts.zarr", n_vars=62_710) as store:
    ...     for block in blocks:
    ...         store.append(block)
    ...     store.obs = obs
    """

    def __init__(
        self,
        path: Path | str,
        *,
        n_vars: int,
        data_dtype: np.dtype | type | None = None,
        obs: pd.DataFrame | Callable[[Path], None] | None = None,
        var: pd.DataFrame | Callable[[Path], None] | None = None,
        uns: Mapping[str, Any] | None = None,
        n_values: int = 0,
        chunk_values: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.n_vars = n_vars
        self.obs = obs
        self.var = var
        self.uns = uns
        self.n_obs = 0
        self.n_values = 0
        self._indptr_end = 0
        self._counts = data_dtype is None
        self._data_dtype = np.dtype(COUNT_DTYPES[0] if data_dtype is None else data_dtype)
        self._n_values_due = n_values
        self._chunk_values = chunk_values
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Where the store lies until it is complete.
            self.folder = stack.enter_context(atomic_path(self.path))
            self.pool = pool = stack.enter_context(encoding_pool())
            x = self.folder / "X"
            width = index_dtype(self._n_values_due)
            compression = NORMALIZED_CODEC if self._data_dtype.kind == "f" else COUNTS_CODEC
            # Values of a merged store are copied as they are encoded, and have no digest.
            array = partial(
                ShardedArray, pool=pool, digest=self._counts, chunk_values=self._chunk_values
            )
            self._data = array(x / "data", self._data_dtype, compression=compression)
            self._indices = array(x / "indices", width, compression=INDICES_CODEC)
            self._indptr = array(x / "indptr", width, compression=DENSE_CODEC)
            for part in self._arrays:
                stack.callback(part.abandon)
            self._stack = stack.pop_all()
        self._indptr.append(np.zeros(1, np.int64))
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> bool | None:
        if kind is not None:
            return self._stack.__exit__(kind, *details)
        with self._stack:
            self._finish()
        return None

    @property
    def data_dtype(self) -> np.dtype:
        """Dtype of the stored values; for counts the smallest that holds those seen so far."""
        return self._data.dtype

    def append(self, block: sparse.csr_matrix | sparse.csr_array) -> None:
        """Append the rows of a CSR block with ``n_vars`` columns. The block is not changed.

        Raises
        ------
        InputError
            A count is negative, fractional, not finite or above 2^32 - 1.
        """
        if block.format != "csr" or block.shape[1] != self.n_vars:
            msg = f"a CSR block of {self.n_vars} columns is due, not {block.format} {block.shape}"
            raise ValueError(msg)
        lo, hi = int(block.indptr[0]), int(block.indptr[-1])
        self.append_values(block.data[lo:hi], block.indices[lo:hi])
        self.append_rows(np.diff(block.indptr))

    def append_values(self, data: np.ndarray, indices: np.ndarray) -> None:
        """Append stored values and their columns; `append_rows` says later how rows divide them.

        For copies from store to store, where the cuts need not follow rows.
        """
        if len(data) != len(indices):
            raise ValueError(f"{len(data)} values with {len(indices)} column indices")
        self._widen_offsets(len(data))
        # In pieces that stay in a core's cache from the check to the copy.
        for start in range(0, len(data), CHUNK_VALUES):
            piece = slice(start, start + CHUNK_VALUES)
            self.check_indices(indices[piece])
            self._indices.append(indices[piece])
            # First the conversion: it may put a wider array in the place of `self._data`.
            values = self._to_counts(data[piece]) if self._counts else data[piece]
            self._data.append(values)

    def check_indices(self, indices: np.ndarray) -> None:
        """Raise `ValueError` if a column index is out of range."""
        if indices.size and (int(indices.max()) >= self.n_vars or int(indices.min()) < 0):
            raise ValueError(f"a column index is out of range for {self.n_vars} columns")

    def append_checked(self, data: np.ndarray, indices: np.ndarray, highest: int = 0) -> None:
        """As :meth:`append_values`, without a check and a copy: the arrays must not change. Counts
        are unsigned, ``highest`` the largest of them, and indices below ``n_vars``.
        """
        self._widen_offsets(len(data))
        if self._counts:
            self._widen_counts(highest)
        self._indices.append(indices, copy=False)
        self._data.append(data, copy=False)

    def _widen_offsets(self, n_more: int) -> None:
        self.n_values += n_more
        self._set_width(index_dtype(max(self.n_values, self._n_values_due)))

    def _set_width(self, width: np.dtype) -> None:
        if width != self._indptr.dtype:
            self._indices, self._indptr = self._indices.rewrite(width), self._indptr.rewrite(width)

    def _widen_counts(self, highest: float) -> None:
        if highest > np.iinfo(self._data.dtype).max:
            wider = next(d for d in COUNT_DTYPES if highest <= np.iinfo(d).max)
            self._data = self._data.rewrite(wider)

    def append_chunks(self, x: StoredGroup, arrays: Mapping[str, ChunkedArray]) -> int:
        """Append the whole chunks of another store's X as they are encoded, if a chunk begins here,
        too, and both stores encode alike; number of values, those after them are left.
        """
        parts = {"data": self._data, "indices": self._indices}
        if not all(part.can_append_chunks_of(x[name]) for name, part in parts.items()):
            return 0
        n_chunks = arrays["data"].n_values // arrays["data"].chunk_values
        for name, part in parts.items():
            part.append_encoded_chunks(partial(read_encoded_chunks, arrays[name]), n_chunks)
        n_values = n_chunks * arrays["data"].chunk_values
        self.n_values += n_values
        return n_values

    def append_rows(self, lengths: np.ndarray) -> None:
        """Append rows with these numbers of stored values."""
        ends = np.cumsum(lengths, dtype=np.int64)
        ends += self._indptr_end
        self._indptr.append(ends)
        if len(ends):
            self._indptr_end = int(ends[-1])
        self.n_obs += len(lengths)

    def _to_counts(self, values: np.ndarray) -> np.ndarray:
        low, high = values.min(), values.max()
        # Written so that NaN, which compares as false, is refused as well.
        if not (low >= 0 and high <= np.iinfo(np.uint32).max):
            worst = high if low >= 0 else low
            raise InputError(
                f"{self.path}: X holds {worst}, which is no count; "
                f"counts are whole numbers from 0 to {np.iinfo(np.uint32).max}"
            )
        self._widen_counts(high)
        counts = values.astype(self._data.dtype)
        if values.dtype.kind == "f" and not np.array_equal(counts, values):
            first = values[counts != values][0]
            raise InputError(f"{self.path}: X holds {first}, a fraction; counts are whole numbers")
        return counts

    @property
    def _arrays(self) -> tuple[ShardedArray, ShardedArray, ShardedArray]:
        return self._data, self._indices, self._indptr

    def _finish(self) -> None:
        if self._indptr_end != self.n_values:
            msg = f"rows of {self._indptr_end} values in all, but {self.n_values} were appended"
            raise ValueError(msg)
        self._set_width(index_dtype(self.n_values))  # fewer may have come than were due
        lengths = {"obs": (self.obs, self.n_obs), "var": (self.var, self.n_vars)}
        tables = {name: _table(*given, name) for name, given in lengths.items()}
        for part in self._arrays:
            part.close()
        for name, write in tables.items():
            write(self.folder / name)
        create_group(self.folder, ANNDATA)
        create_group(self.folder / "X", {**CSR, "shape": [self.n_obs, self.n_vars]})
        if self.uns:
            write_elem(open_group_to_write(self.folder), "uns", dict(self.uns))
        finish_store(self.folder)


def _table(
    table: pd.DataFrame | Callable[[Path], None] | None, length: int, name: str
) -> Callable[[Path], None]:
    """Function that writes a table as the folder it is given."""
    if callable(table):
        return table
    frame = pd.DataFrame(index=pd.RangeIndex(length).astype(str)) if table is None else table
    if len(frame) != length:
        raise ValueError(f"{name} has {len(frame)} rows, X has {length}")
    return partial(write_frame, frame=frame)
