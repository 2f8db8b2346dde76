"""The gene-major copy of an atlas beside it, in which a gene's values lie together."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.byte_sizes import parse_bytes
from scatlas.compute.progress import progress_meter
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.atomic import atomic_path, work_folder
from scatlas.io.files.checksums import checksum
from scatlas.io.files.listing import filesystem
from scatlas.io.files.local_zarr import WRITER_ATTRIBUTE, open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.csr_writer import index_dtype
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.products.assemble_atlas import place
from scatlas.io.zarr_writer.elements import CSC, CSR, create_group, finish_store
from scatlas.io.zarr_writer.sharded_array import (
    COUNTS_CODEC,
    DENSE_CODEC,
    INDICES_CODEC,
    NORMALIZED_CODEC,
    ShardedArray,
    encoding_pool,
)
from scatlas.kernels.counts.transpose_cpu import by_gene, copy_segments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# Name of the copy, beside the atlas.
NAME = "by_gene.zarr"
# Attribute of the copy's X: checksum of the X that it was made from.
SOURCE_CHECKSUM = "checksum_of_source"
# Bytes per value of the genes that are put together: value and cell, and both of the block that is
# being read.
_BYTES_PER_VALUE = 24


def write_gene_copy(
    store: Path | str, out: Path | str, *, block_budget: str | int = "256MB"
) -> dict[str, Any]:
    """Write X of a store gene after gene (CSC); atomic.

    X is read once, in row blocks. Each block is sorted by gene and written to a temporary file, 8
    bytes per value; then the values of a range of genes at a time are put together from all blocks.
    Neither the blocks nor the threads change a byte of the result.

    Memory: the budget, and 8 bytes per block and gene.

    Parameters
    ----------
    store
        AnnData store that scatlas has written, with a CSR X, such as ``atlas.zarr``.
    out
        Store to write: X as CSC in the type of the values of `store`, and its ``obs`` and ``var``,
        whose chunks are hard links where the file system allows it. An older one is replaced.
    block_budget
        Memory for the blocks in flight, and for the genes that are put together.

    Returns
    -------
    ``n_cells``, ``n_genes``, ``n_values``.

    Raises
    ------
    InputError
        The store is damaged, or was not written by scatlas.
    """
    store, out = Path(store), Path(out)
    root = open_store(store)
    x = root.get("X")
    is_csr = x is not None and x.attrs.get("encoding-type") == CSR["encoding-type"]
    if not is_csr or not WRITER_ATTRIBUTE.items() <= root.attrs.items():
        raise InputError(f"{store}: only a store of scatlas with a CSR X gets a gene-major copy")
    source = checksum(store / "X")
    matrix, _ = read_matrix(store, compact=True, block_budget=block_budget)
    with work_folder(out) as work:
        work.mkdir(parents=True)
        segments = _Segments.write(work, matrix)
        with atomic_path(out) as partial:
            _write_x(partial / "X", segments, parse_bytes(block_budget))
            attributes = {**CSC, "shape": list(matrix.shape), SOURCE_CHECKSUM: source}
            create_group(partial / "X", attributes)
            place(store, partial, {"obs": "obs", "var": "var"})
            finish_store(partial)
    n_cells, n_genes = matrix.shape
    return {"n_cells": n_cells, "n_genes": n_genes, "n_values": segments.n_values}


def _write_x(folder: Path, segments: _Segments, budget: int) -> None:
    """Write data, indices and indptr of the CSC matrix."""
    width = index_dtype(segments.n_values)
    codec = NORMALIZED_CODEC if segments.dtype.kind == "f" else COUNTS_CODEC
    # One range per thread, one that waits, and one that is written.
    limit = max(1, budget // (_BYTES_PER_VALUE * (n_threads() + 2)))
    ranges = list(segments.ranges(limit))
    with (
        encoding_pool() as pool,
        ShardedArray(folder / "data", segments.dtype, pool, compression=codec) as data,
        ShardedArray(folder / "indices", width, pool, compression=INDICES_CODEC) as indices,
        ShardedArray(folder / "indptr", width, pool, compression=DENSE_CODEC) as indptr,
        closing(progress_meter(segments.n_values, unit="values")) as passed,
    ):
        found = blocks.map_in_order(lambda i: segments.read(ranges[i], width), len(ranges))
        with closing(found) as parts:
            for values, cells in parts:
                data.append(values, copy=False)
                indices.append(cells, copy=False)
                passed.update(len(values))
        indptr.append(np.append(0, np.cumsum(segments.counts.sum(axis=0))).astype(width))


@dataclass(frozen=True)
class _Range:
    """Some genes in all blocks, or one gene in some blocks."""

    genes: slice
    blocks: slice


@dataclass(frozen=True)
class _Segments:
    """Values of all row blocks in a file, block after block and in each gene after gene."""

    data: Path
    rows: Path  # of the values in their block, uint32
    dtype: np.dtype
    counts: np.ndarray  # values by block and gene, int64 [n_blocks, n_genes]
    first_rows: np.ndarray  # number of the first cell of each block, int64 [n_blocks]

    @cached_property
    def _block_starts(self) -> np.ndarray:
        """Place in the files of the first value of each block."""
        return np.append(0, np.cumsum(self.counts.sum(axis=1)))

    @classmethod
    def write(cls, folder: Path, x: Any) -> _Segments:
        """Sort each block of a Dask array of CSR blocks, and write it."""
        data, rows = folder / "data", folder / "rows"
        counts = []
        with data.open("wb") as data_file, rows.open("wb") as rows_file:
            for block in blocks.stream(x, by_gene):
                block[0].tofile(data_file)
                block[1].tofile(rows_file)
                counts.append(block[2])
        first_rows = np.cumsum([0, *x.chunks[0][:-1]])
        table = np.stack(counts) if counts else np.zeros((0, x.shape[1]), np.int64)
        return cls(data, rows, np.dtype(x.dtype), table, first_rows)

    @property
    def n_values(self) -> int:
        return int(self.counts.sum())

    def ranges(self, limit: int) -> Iterator[_Range]:
        """Divide the values, gene after gene, by ``limit``; one block of a gene stays whole."""
        totals = self.counts.sum(axis=0)
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

    def read(self, part: _Range, width: np.dtype) -> tuple[np.ndarray, np.ndarray]:
        """Values and cell numbers of a range, gene after gene and cell after cell."""
        counts = self.counts[part.blocks, part.genes]
        # Place of each block's values of each gene: genes first, then blocks.
        ends = np.cumsum(counts.T).reshape(counts.T.shape).T
        starts = np.ascontiguousarray(ends - counts)
        n_values = int(counts.sum())
        out = np.empty(n_values, self.dtype)
        cells: np.ndarray = np.empty(n_values, width)
        with self.data.open("rb") as data_file, self.rows.open("rb") as rows_file:
            for i, block in enumerate(range(part.blocks.start, part.blocks.stop)):
                n = int(counts[i].sum())
                if not n:
                    continue
                first = self._block_starts[block] + self.counts[block, : part.genes.start].sum()
                copy_segments(
                    _read(data_file, self.dtype, int(first), n),
                    _read(rows_file, np.dtype(np.uint32), int(first), n),
                    np.ascontiguousarray(counts[i]),
                    int(self.first_rows[block]),
                    starts[i],
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


@dataclass(frozen=True)
class GeneCopy:
    """A gene-major copy, opened."""

    path: str
    shape: tuple[int, int]  # cells, genes
    _data: Any
    _cells: Any
    _indptr: Any

    def read(self, gene: int) -> NDArray[Any]:
        """Values of a gene, by its number, for all cells: ``[n_cells]``, the type of X."""
        with reading(self.path, f"gene {gene} of X"):
            begin, end = (int(offset) for offset in self._indptr[gene : gene + 2])
            values = np.zeros(self.shape[0], self._data.dtype)
            values[self._cells[begin:end]] = self._data[begin:end]
        return values


def find_gene_copy(atlas: Store) -> GeneCopy | str:
    """Open the gene-major copy beside a store, or say why there is none, as part of a sentence."""
    if atlas.kind != "zarr":
        return f"{atlas.path} is no Zarr store"
    if atlas.is_url:
        path = f"{atlas.path.rstrip('/').rpartition('/')[0]}/{NAME}"
    else:
        path = str(Path(atlas.path).absolute().parent / NAME)
    if not _is_store(path):
        return f"{path} does not exist"
    return _open(atlas, Store.find(path))


@lru_cache(maxsize=16)
def _open(atlas: Store, copy: Store) -> GeneCopy | str:
    """Open a copy after a check that it is of this X; the stamps in both change with the files."""
    with atlas.open() as root:
        shape = tuple(root["X"].attrs["shape"])
    with copy.open() as root, reading(copy.path, "X"):
        x = root["X"]
        is_same = tuple(x.attrs["shape"]) == shape and (
            # Of a store at an address, the checksum would need a request for each chunk.
            atlas.is_url or x.attrs[SOURCE_CHECKSUM] == checksum(Path(atlas.path) / "X")
        )
        if not is_same:
            return f"{copy.path} is the copy of another X"
        return GeneCopy(copy.path, (shape[0], shape[1]), x["data"], x["indices"], x["indptr"])


def _is_store(path: str) -> bool:
    if "://" not in path:
        return Path(path, "zarr.json").is_file()
    files, inner = filesystem(path)
    with reading(path, "the address"):
        return bool(files.exists(f"{inner}/zarr.json"))
