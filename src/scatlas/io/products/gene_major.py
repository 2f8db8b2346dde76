"""A matrix sorted gene after gene on disk (CSC), from row blocks, in bounded memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import parse_bytes
from scatlas.compute.threads import n_threads
from scatlas.io.files.atomic import work_folder
from scatlas.io.matrices.csr_writer import index_dtype, write_values
from scatlas.io.zarr_writer.elements import CSC, create_group
from scatlas.io.zarr_writer.sharded_array import DENSE_CODEC, ShardedArray, encoding_pool
from scatlas.kernels.counts.transpose_cpu import by_gene, copy_segments

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

# Bytes per value of the genes that are put together: value and cell, and both of the block that is
# being read.
_BYTES_PER_VALUE = 24


def write_csc(
    x: Any,
    folder: Path,
    *,
    dtype: np.dtype | type | None = None,
    width: np.dtype | type | None = None,
    chunk_values: int | None = None,
    block_budget: str | int = "256MB",
) -> int:
    """Write a Dask array of CSR blocks as a CSC element; returns the number of its values.

    X is read once. Each block is sorted by gene and written to a temporary file beside ``folder``,
    value and row; then the values of a range of genes at a time are put together from all blocks.
    Neither the blocks nor the threads change a byte. Memory: the budget, and 4 bytes per block and
    gene.

    ``dtype`` and ``width`` are those of the values and of the cells, else that of X, and the one
    that SciPy needs. ``chunk_values``: arrays in chunks of this length, of which several can be
    joined file after file.
    """
    with work_folder(folder) as work:
        work.mkdir(parents=True)
        segments = _Segments.write(work, x)
        width = index_dtype(segments.n_values) if width is None else np.dtype(width)
        dtype = segments.dtype if dtype is None else np.dtype(dtype)
        parts = segments.read_ranges(parse_bytes(block_budget), dtype, width)
        write_values(folder, parts, segments.n_values, dtype, width, chunk_values)
        offsets = index_dtype(segments.n_values)
        with (
            encoding_pool() as pool,
            ShardedArray(folder / "indptr", offsets, pool, compression=DENSE_CODEC) as indptr,
        ):
            per_gene = segments.counts.sum(axis=0, dtype=np.int64)
            indptr.append(np.append(0, np.cumsum(per_gene)).astype(offsets))
        create_group(folder, {**CSC, "shape": list(x.shape)})
    return segments.n_values


@dataclass(frozen=True)
class _Range:
    """Some genes in all blocks, or one gene in some blocks."""

    genes: slice
    blocks: slice


@dataclass(frozen=True)
class _Segments:
    """Values of all row blocks in a file, block after block and in each gene after gene."""

    data: Path
    rows: Path  # of the values in their block
    dtype: np.dtype
    row_dtype: np.dtype
    counts: np.ndarray  # values by block and gene, uint32 [n_blocks, n_genes]
    first_rows: np.ndarray  # number of the first cell of each block, int64 [n_blocks]

    @classmethod
    def write(cls, folder: Path, x: Any) -> _Segments:
        """Sort each block of a Dask array of CSR blocks, and write it."""
        data, rows = folder / "data", folder / "rows"
        row_dtype = np.min_scalar_type(max(0, max(x.chunks[0], default=0) - 1))
        row_dtype = np.promote_types(row_dtype, np.uint16)  # two kernels, for short blocks and long
        counts = []
        with data.open("wb") as data_file, rows.open("wb") as rows_file:
            for block in blocks.stream(x, partial(by_gene, row_dtype=row_dtype)):
                block[0].tofile(data_file)
                block[1].tofile(rows_file)
                counts.append(block[2].astype(np.uint32))
        first_rows = np.cumsum([0, *x.chunks[0][:-1]])
        table = np.stack(counts) if counts else np.zeros((0, x.shape[1]), np.uint32)
        return cls(data, rows, np.dtype(x.dtype), row_dtype, table, first_rows)

    @property
    def n_values(self) -> int:
        return int(self.counts.sum(dtype=np.int64))

    def ranges(self, limit: int) -> Iterator[_Range]:
        """Divide the values, gene after gene, by ``limit``; one block of a gene stays whole."""
        totals = self.counts.sum(axis=0, dtype=np.int64)
        n_blocks = len(self.counts)
        first = held = 0
        for gene, n in enumerate(totals.tolist()):
            if held and held + n > limit:
                yield _Range(slice(first, gene), slice(0, n_blocks))
                first, held = gene, 0
            if n > limit:
                for part in _cut(self.counts[:, gene], limit):
                    yield _Range(slice(gene, gene + 1), part)
                first = gene + 1
            else:
                held += n
        if held:
            yield _Range(slice(first, len(totals)), slice(0, n_blocks))

    def read_ranges(
        self, budget: int, dtype: np.dtype, width: np.dtype
    ) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Values and cell numbers gene after gene and cell after cell, range after range."""
        # One range per thread, one that waits, and one that is written.
        ranges = list(self.ranges(max(1, budget // (_BYTES_PER_VALUE * (n_threads() + 2)))))
        starts = self._starts([part.genes.start for part in ranges])
        return blocks.map_in_order(
            lambda i: self._read(ranges[i], starts[:, i], dtype, width), len(ranges)
        )

    def _starts(self, genes: list[int]) -> np.ndarray:
        """Position in the files of the first value of each of these genes in each block."""
        starts, end = np.empty((len(self.counts), len(genes)), np.int64), 0
        for block, counts in enumerate(self.counts):
            before = np.append(0, np.cumsum(counts, dtype=np.int64))
            starts[block], end = end + before[genes], end + int(before[-1])
        return starts

    def _read(
        self, part: _Range, firsts: np.ndarray, dtype: np.dtype, width: np.dtype
    ) -> tuple[np.ndarray, np.ndarray]:
        counts = self.counts[part.blocks, part.genes].astype(np.int64)
        # Position of each block's values of each gene: genes first, then blocks.
        ends = np.cumsum(counts.T).reshape(counts.T.shape).T
        slots = np.ascontiguousarray(ends - counts)
        n_values = int(counts.sum())
        out = np.empty(n_values, dtype)
        cells: np.ndarray = np.empty(n_values, width)
        with self.data.open("rb") as data_file, self.rows.open("rb") as rows_file:
            for i, block in enumerate(range(part.blocks.start, part.blocks.stop)):
                n = int(counts[i].sum())
                if not n:
                    continue
                copy_segments(
                    _read(data_file, self.dtype, int(firsts[block]), n),
                    _read(rows_file, self.row_dtype, int(firsts[block]), n),
                    np.ascontiguousarray(counts[i]),
                    int(self.first_rows[block]),
                    slots[i],
                    out,
                    cells,
                )
        return out, cells


def _cut(counts: np.ndarray, limit: int) -> Iterator[slice]:
    """Consecutive blocks with at most ``limit`` values, or a single one."""
    first = held = 0
    for i, n in enumerate(counts.tolist()):
        if held and held + n > limit:
            yield slice(first, i)
            first, held = i, 0
        held += n
    yield slice(first, len(counts))


def _read(file: Any, dtype: np.dtype, first: int, n: int) -> np.ndarray:
    values = np.empty(n, dtype)
    view = values.view(np.uint8).data
    done = 0
    while done < len(view):
        done_now = os.preadv(file.fileno(), [view[done:]], first * dtype.itemsize + done)
        if not done_now:
            msg = f"{file.name}: the temporary file ends too early: another process changed it"
            raise OSError(msg)
        done += done_now
    return values
