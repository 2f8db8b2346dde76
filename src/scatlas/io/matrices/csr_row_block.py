"""Row blocks of a CSR matrix on disk, which any thread or process can read on its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.blocks import csr
from scatlas.errors import InputError
from scatlas.io.chunks import chunk_reader, chunked_array
from scatlas.io.files.anndata_checks import STRUCTURE
from scatlas.io.files.anndata_file import Store, load_filters
from scatlas.io.files.chunk_locations import locate_chunks
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.matrices.layout import StoredMatrix, check_indices, in_memory, read_range
from scatlas.kernels import gene_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    import scipy.sparse as sp

    from scatlas.io.files.anndata_file import OpenFile
    from scatlas.io.files.local_zarr import StoredGroup

_INT32 = np.iinfo(np.int32).max


@dataclass(frozen=True)
class RowBlock:
    """Rows of a CSR element: small and picklable, as it knows only the chunks of these rows."""

    store: Store
    key: str
    first: int  # number of the first row
    indptr: np.ndarray = field(repr=False)  # int64 offsets of the rows in the whole matrix
    n_genes: int
    dtypes: tuple[np.dtype, np.dtype]
    # Chunks of ``data`` and ``indices``; None for an array that the library must read.
    arrays: tuple[chunked_array.ChunkedArray | None, chunked_array.ChunkedArray | None] = field(
        repr=False
    )
    # For each of the two, number of blocks of the pass that read its first and its last chunk.
    edge_readers: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    # Keeps the file open in the process that created the block.
    open_file: OpenFile | None = field(default=None, repr=False, compare=False)

    @property
    def n_rows(self) -> int:
        return self.indptr.size - 1

    @property
    def offsets(self) -> np.ndarray:
        """Offsets of the rows within the block, int64."""
        return self.indptr - self.indptr[0]

    @property
    def _rows(self) -> str:
        return f"cells {self.first} to {self.first + self.n_rows - 1}"

    def raw(self) -> tuple[np.ndarray, np.ndarray]:
        """Values and column indices, types as stored (:func:`in_memory`), indices not checked."""
        return self._data(), self._read(1, in_memory(self.dtypes[1]))

    def read(self) -> sp.csr_matrix:
        """Read the block for SciPy: indices and offsets are int32, or int64 if necessary."""
        n_values = int(self.indptr[-1] - self.indptr[0])
        width = np.int32 if max(n_values, self.n_genes) <= _INT32 else np.int64
        return self._matrix(width, self.offsets.astype(width, copy=False))

    def compact(self) -> sp.csr_matrix:
        """Read int64 offsets, and indices as stored, or of counts uint16 if that holds all."""
        counts = self.dtypes[0].kind == "u"
        width = gene_dtype(self.n_genes) if counts else in_memory(self.dtypes[1])
        return self._matrix(width, self.offsets)

    def values(self) -> sp.csr_matrix:
        """Read the values without indices, for sums of rows: every index is 0."""
        data = self._data()
        return csr(data, np.broadcast_to(np.int32(0), data.shape), self.offsets, self.n_genes)

    def _matrix(self, width: Any, offsets: np.ndarray) -> sp.csr_matrix:
        data = self._data()
        indices = self._read(1, np.dtype(width), limit=self.n_genes)
        return csr(data, indices, offsets, self.n_genes)

    def _data(self) -> np.ndarray:
        """Values, after a look whether the file is still the same."""
        self.store.check_unchanged()
        return self._read(0, in_memory(self.dtypes[0]))

    def _read(self, which: int, dtype: np.dtype, *, limit: int | None = None) -> np.ndarray:
        part = ("data", "indices")[which]
        begin, end = int(self.indptr[0]), int(self.indptr[-1])
        array = self.arrays[which]
        if array is None:
            return self._read_raw(part, begin, end, dtype, limit)
        try:
            with reading(self.store.path, f"{self.key}/{part} of {self._rows}"):
                return chunk_reader.read_values(
                    array,
                    begin,
                    end,
                    dtype=dtype,
                    owner=self.store,
                    edge_readers=self.edge_readers[which],
                    limit=limit,
                )
        except InputError as error:
            worst = error.__cause__
            if not isinstance(worst, chunk_reader.IndexRangeError):
                raise
            raise InputError(
                f"{self.store.path}: {self.key}/{part} of {self._rows} hold {worst.index}, "
                f"but must be 0 to {self.n_genes - 1}: {REMEDY}"
            ) from worst

    def _read_raw(
        self, part: str, begin: int, end: int, dtype: np.dtype, limit: int | None
    ) -> np.ndarray:
        """Read with h5py or zarr-python, for rare layouts."""
        store, key = self.store, f"{self.key}/{part}"
        with reading(store.path, STRUCTURE), store.open() as root:
            load_filters(store.path, root[key])  # a fresh process has not loaded them yet
            values = read_range(store.path, root, key, begin, end, self._rows)
        if limit is not None:
            check_indices(store.path, self.key, values, limit, self._rows)
        return values.astype(dtype, copy=False)


def row_blocks(
    store: Store, root: StoredGroup, matrix: StoredMatrix, row_ranges: Sequence[tuple[int, int]]
) -> list[RowBlock]:
    """Blocks of ascending, disjoint ranges of rows."""
    keys = [f"{matrix.key}/{part}" for part in ("data", "indices")]
    arrays = []
    for key in keys:
        with reading(store.path, f"the table of the chunks of {key}"):
            arrays.append(locate_chunks(store, root, key))
    data, indices = arrays
    dtypes = np.dtype(root[keys[0]].dtype), np.dtype(root[keys[1]].dtype)
    bounds = np.array([(matrix.indptr[first], matrix.indptr[stop]) for first, stop in row_ranges])
    edge_readers = [_readers_of_edge_chunks(array, bounds) for array in arrays]
    return [
        RowBlock(
            store,
            matrix.key,
            first,
            matrix.indptr[first : stop + 1],
            matrix.shape[1],
            dtypes,
            (data and data.for_values(begin, end), indices and indices.for_values(begin, end)),
            (edge_readers[0][i], edge_readers[1][i]),
        )
        for i, ((first, stop), (begin, end)) in enumerate(
            zip(row_ranges, bounds.tolist(), strict=True)
        )
    ]


def _readers_of_edge_chunks(
    array: chunked_array.ChunkedArray | None, bounds: np.ndarray
) -> list[tuple[int, int]]:
    """Number of blocks that read the first and the last chunk of each block."""
    if array is None or array.is_raw:
        return [(1, 1)] * len(bounds)
    first, stop = bounds[:, 0] // array.chunk_values, -(-bounds[:, 1] // array.chunk_values)
    filled = bounds[:, 0] < bounds[:, 1]
    starts, ends = first[filled], stop[filled] - 1

    def holders(chunk: np.ndarray) -> np.ndarray:
        return np.searchsorted(starts, chunk, "right") - np.searchsorted(ends, chunk, "left")

    return list(zip(holders(first).tolist(), holders(stop - 1).tolist(), strict=True))
