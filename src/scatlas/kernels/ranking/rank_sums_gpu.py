"""Exact rank sums of groups of cells on the GPU, the integers of the CPU: keys of gene, value and
group are sorted together, each finds its ties by a search, and atomics add.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.kernels.build import cuda
from scatlas.kernels.ranking.rank_sums_cpu import RankSums

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from scatlas.arrays.cupy_arrays import Block

_WIDE = np.dtype(np.int64), np.dtype(np.float64)
# Thread blocks that keep a GPU busy.
_BLOCKS = 132 * 16


class BlockNonzeros(NamedTuple):
    """Keys of the values of a block, in any order, and genes and groups of 64-bit values."""

    keys: cp.ndarray
    origins: cp.ndarray | None


def bytes_per_value(dtype: DTypeLike, n_groups: int) -> int:  # noqa: ARG001
    """Bytes per gathered value, including the memory to sort it."""
    return 96 if _sortable_dtype(dtype) in _WIDE else 40


def max_genes_at_once(n_groups: int) -> int:
    """Number of genes that can be ranked together: a key has 32 bits for gene and group."""
    return 2 ** (32 - _bits(n_groups))


def gather_nonzeros(
    x: Block, codes: NDArray[np.int64], *, new_column: NDArray[np.int64], n_groups: int
) -> list[BlockNonzeros]:
    """As on the CPU, with `codes` and `new_column` in the main memory."""
    n_rows = int(x.shape[0])
    types: tuple[Any, ...]
    block: tuple[Any, ...]
    if sparse.issparse(x):
        values = _as_sortable(x.data)
        kind, types = "csr", (values.dtype, x.indices.dtype)
        block = values, x.indices, cuda.row_offsets(x)
    else:
        values = _as_sortable(x)
        kind, types = "dense", (values.dtype,)
        block = values, *cuda.strides(values), np.int64(x.shape[1])
    wide = values.dtype in _WIDE
    keys = cp.empty(values.size, cp.uint64)
    origins = cp.empty(values.size, cp.uint64) if wide else cuda.NULL
    n_gathered = cp.zeros(1, cp.uint64)
    which = cp.asarray(codes.astype(np.int32)), cp.asarray(new_column.astype(np.int32))
    args = *block, np.int64(n_rows), *which, np.int32(_bits(n_groups)), n_gathered, keys, origins
    cuda.kernel("ranking/rank_sums", f"take_{kind}", *types)(*cuda.grid_of_warps(n_rows), args)
    n = int(n_gathered.get()[0])
    return [BlockNonzeros(keys[:n].copy(), origins[:n].copy() if wide else None)]


class NonzerosByGene:
    """As on the CPU, with keys in any order."""

    def __init__(self, counts: NDArray[np.int64], dtype: DTypeLike, n_groups: int) -> None:
        self._starts, self._n_groups = np.append(0, np.cumsum(counts)), n_groups
        n, wide = int(self._starts[-1]), _sortable_dtype(dtype) in _WIDE
        if n >= 2**31:
            raise MemoryError(f"{n:,} values: 32 bits number fewer")
        # Allocate what sorting will need, so that a lack of memory shows before the pass.
        cp.empty(n * bytes_per_value(dtype, n_groups), cp.uint8)
        self._keys = cp.empty(n, cp.uint64)
        self._origins = cp.empty(n, cp.uint64) if wide else None
        self._n = 0

    def add(self, block: BlockNonzeros) -> None:
        into = slice(self._n, self._n + block.keys.size)
        self._keys[into] = block.keys
        if self._origins is not None:
            self._origins[into] = block.origins
        self._n = into.stop

    def rank_sums(
        self,
        zeros: NDArray[np.int64],
        reference: int | None,
        n_threads: int,  # noqa: ARG002
    ) -> RankSums:
        """As on the CPU, in the main memory; overwrites the keys."""
        assert self._n == self._keys.size, "the values of a gene are those counted"
        bits, n_genes = _bits(self._n_groups), self._starts.size - 1
        keys = self._keys
        if keys.size and self._origins is not None:
            keys, self._origins = _dense_rank_keys(keys, self._origins, bits), None
        keys.sort()
        before = cuda.NULL
        if reference is not None:
            before = cp.zeros(keys.size + 1, cp.int32)
            is_reference = (keys & np.uint64(2**bits - 1)) == np.uint64(reference)
            before[1:] = cp.cumsum(is_reference, dtype=cp.int32)
            del is_reference
        ranks = cp.zeros((n_genes, self._n_groups), cp.int64)
        ties = cp.zeros((n_genes, self._n_groups, 2), cp.int64)
        below = cp.zeros(n_genes, cp.int64)
        args = (
            *(keys, cp.asarray(self._starts), cp.asarray(zeros.astype(np.int64)), before),
            *(np.int64(n_genes), np.int64(self._n_groups), np.int32(bits)),
            *(np.int32(-1 if reference is None else reference), ranks, ties, below),
        )
        grid = n_genes, max(1, _BLOCKS // n_genes)
        cuda.kernel("ranking/rank_sums", "walk")(grid, (cuda.THREADS,), args)
        return RankSums(ranks.get(), ties.get(), below.get())


def _dense_rank_keys(values: cp.ndarray, origins: cp.ndarray, bits: int) -> cp.ndarray:
    """Keys of values of 64 bits, which are replaced by their dense ranks."""
    order = cp.argsort(values)  # stable
    values, origins = values[order], origins[order]
    half = np.uint64(32)
    order = cp.argsort(origins >> half)
    values, origins = values[order], origins[order]
    del order
    new = values[1:] != values[:-1]
    new |= (origins[1:] >> half) != (origins[:-1] >> half)
    keys = cp.zeros(values.size, cp.uint64)
    keys[1:] = cp.cumsum(new, dtype=cp.uint64)
    keys |= (values >> np.uint64(63)) << np.uint64(31)
    keys |= (origins >> half) << half
    return (keys << np.uint64(bits)) | (origins & np.uint64(2**32 - 1))


def _bits(n_groups: int) -> int:
    """Bits that number the groups."""
    return max(1, (n_groups - 1).bit_length())


def _sortable_dtype(dtype: DTypeLike) -> np.dtype:
    """Type in which values are gathered, which sorts by 32 or 64 bits."""
    dtype = np.dtype(dtype)
    if dtype in (np.uint32, np.uint64):
        return np.dtype(np.int64)
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def _as_sortable(values: cp.ndarray) -> cp.ndarray:
    """Values as :func:`_sortable_dtype`, without a copy if it has the same size."""
    dtype = _sortable_dtype(values.dtype)
    return values.view(dtype) if values.itemsize == dtype.itemsize else values.astype(dtype)
