"""Gram matrix of blocks: pairs of stored values, or BLAS on dense rows.

Each thread adds all parts of a block in order to its range of genes (matrix rows). An entry is a
sum of float64 products in the order of the rows (pairs), or of BLAS products of fixed panels (dense
rows), so that no bit depends on the number of threads. A sparse row of k values costs k**2 / 2
scattered additions, a dense row n_genes**2 / 2 multiply-adds at BLAS speed. The matrix row of a
gene stays in the L1 cache and the part in L2.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse, row_offsets
from scatlas.kernels import CsrArrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.transpose_cpu import count_indices, scatter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

# Genes are numbered in uint16.
MAX_GENES = 2**16
# A scattered addition costs as much as this many multiply-adds of dgemm: 0.6 ns against 0.03 ns
# (including the scattering of rows) on one AVX-512 core for 1,000 to 4,000 genes near the
# break-even, which is at 470 values per row for 2,000 genes. With few genes either way is fast.
_PAIR_COST = 18.0
# Values per part: float32 ones and their genes, which are read again and again, take 1 MB of the L2
# cache. With many genes parts are larger, because each part touches most of the matrix, which costs
# more than cache misses on values.
_PART_VALUES = 160_000
_GENES_SQUARED_PER_VALUE = 80
# Bytes of the dense rows of a part.
_DENSE_BYTES = 4_000_000
# Genes (matrix rows) per call of BLAS.
_PANEL = 192


class ValuesByGene(NamedTuple):
    """Values of a part in the order of the rows, with an index by gene."""

    values: NDArray[np.floating[Any]]  # float32 or float64
    genes: NDArray[np.uint16]  # gene of each value
    first: Ints  # [n_genes + 1]: gene g has entries first[g] to first[g + 1] of the two below
    at: NDArray[np.uint32]  # positions of the values of a gene, in the order of the rows
    end: NDArray[np.uint32]  # positions of the ends of their rows


# A part of a block: sparse rows indexed by gene, or dense rows for BLAS.
Part: TypeAlias = ValuesByGene | Floats


def add_block(
    x: Block,
    sums: Floats,
    upper: Floats,
    *,
    panel: int | None = None,
    threads: int = 1,
    run: Callable[..., Iterable[Any]] = map,
) -> None:
    """Add the rows of a block to the sums ``[n_genes]`` and the upper triangle of products; the
    rest of `upper` is overwritten arbitrarily.

    The rows of a panel (None: the block) choose together between pairs and BLAS: blocks that begin
    at multiples of it give the same bits whatever their size and the number of threads.
    """
    tasks = _tasks(x, panel or max(1, x.shape[0]))
    n_at_once = 2 * threads
    for start in range(0, len(tasks), n_at_once):
        parts = list(run(operator.call, tasks[start : start + n_at_once]))
        add = functools.partial(_add_parts, parts, sums, upper)
        list(run(add, _gene_ranges(parts, n_at_once, upper.shape[0])))


def check_genes(n_genes: int) -> None:
    if n_genes > MAX_GENES:
        raise ValueError(f"{n_genes} genes, more than the {MAX_GENES} that can be numbered")


def _tasks(x: Block, panel: int) -> list[Callable[[], Part]]:
    """Functions that prepare the parts of a block, in the order of the rows."""
    n_rows, n_genes = x.shape
    check_genes(n_genes)
    rows_at_once = max(64, _DENSE_BYTES // (8 * max(1, n_genes)))
    panels = list(pairwise([*range(0, n_rows, panel), n_rows]))
    if not is_sparse(x):
        x = np.asarray(x)
        return [
            functools.partial(np.ascontiguousarray, x[a : min(a + rows_at_once, stop)], np.float64)
            for start, stop in panels
            for a in range(start, stop, rows_at_once)
        ]
    indptr = row_offsets(x)
    tasks: list[Callable[[], Part]] = []
    # Parts of pairs may span panels, as pairs are added row by row; parts for BLAS may not.
    for by_pairs, run in groupby(
        panels, lambda rows: _pairs_are_cheaper(x.indices, indptr, rows, n_genes)
    ):
        rows = list(run)
        if by_pairs:
            rows = [(rows[0][0], rows[-1][1])]
        for start, stop in rows:
            if by_pairs:
                step = max(_PART_VALUES, n_genes**2 // _GENES_SQUARED_PER_VALUE)
                wanted = np.arange(indptr[start], indptr[stop], step)
                bounds = np.unique([start, *np.searchsorted(indptr, wanted), stop]).tolist()
            else:
                bounds = [*range(start, stop, rows_at_once), stop]
            prepare: Callable[..., Part] = _sorted_by_gene if by_pairs else _dense_rows
            tasks += [
                functools.partial(prepare, x.data, x.indices, indptr[a : b + 1], n_genes)
                for a, b in pairwise(bounds)
            ]
    return tasks


def _pairs_are_cheaper(indices: Array, indptr: Ints, rows: tuple[int, int], n_genes: int) -> bool:
    """Whether pairs of the values of rows (first, last + 1) cost less than BLAS on the rows."""
    start, stop = rows
    per_row = np.diff(indptr[start : stop + 1]).astype(np.float64)
    cheaper = _PAIR_COST * float(per_row @ per_row) < float(stop - start) * n_genes * n_genes
    return cheaper and _strictly_sorted(indices, indptr[start : stop + 1])


def _dense_rows(data: Array, indices: Array, indptr: Ints, n_genes: int) -> Floats:
    rows = np.zeros((indptr.size - 1, n_genes))
    _scatter(data, indices, indptr, rows)
    return rows


def _sorted_by_gene(data: Array, indices: Array, indptr: Ints, n_genes: int) -> ValuesByGene:
    entries, n = slice(indptr[0], indptr[-1]), int(indptr[-1] - indptr[0])
    genes, ends = indices[entries].astype(np.uint16), indptr - indptr[0]
    counts, first = np.zeros(n_genes, np.int64), np.zeros(n_genes + 1, np.int64)
    count_indices(genes, counts)
    np.cumsum(counts, out=first[1:])
    at, end = np.empty(n, np.uint32), np.empty(n, np.uint32)
    rows = CsrArrays(np.arange(n, dtype=np.uint32), genes, ends)
    scatter(rows, ends[1:].astype(np.uint32), None, first[:-1].copy(), at, end)
    # Products of float32 values are exact in float64, and half of the bytes are read.
    dtype = np.float32 if data.dtype == np.float32 else np.float64
    return ValuesByGene(data[entries].astype(dtype), genes, first, at, end)


def _gene_ranges(parts: list[Part], n: int, n_genes: int) -> list[tuple[int, int]]:
    """Ranges of genes of about equal work; fixed panels if a part is dense."""
    sparse_parts = [part for part in parts if isinstance(part, ValuesByGene)]
    if len(sparse_parts) < len(parts):
        return list(pairwise([*range(0, n_genes, _PANEL), n_genes]))
    counts = np.sum([np.diff(part.first) for part in sparse_parts], axis=0)
    # The number of pairs if genes occurred in rows independently.
    work = np.cumsum(counts * np.cumsum(counts[::-1])[::-1].astype(np.float64))
    bounds = np.searchsorted(work, work[-1] * np.arange(1, n) / n)
    return list(pairwise(np.unique([0, *bounds, n_genes]).tolist()))


def _add_parts(parts: list[Part], sums: Floats, upper: Floats, share: tuple[int, int]) -> None:
    for part in parts:
        if isinstance(part, ValuesByGene):
            _add_pairs(part, *share, sums, upper)
        else:
            _add_dense(part, *share, sums, upper)


def _add_dense(rows: Floats, lo: int, hi: int, sums: Floats, upper: Floats) -> None:
    """``upper[lo:hi, lo:] += rows[:, lo:hi].T @ rows[:, lo:]``, in place."""
    _add_columns(rows, lo, hi, sums)
    n_genes = upper.shape[0]
    left, width, n_rows, stride = (
        ctypes.byref(ctypes.c_int(n)) for n in (n_genes - lo, hi - lo, rows.shape[0], n_genes)
    )
    one = ctypes.byref(ctypes.c_double(1.0))
    from_rows = rows.ctypes.data + 8 * lo
    to_upper = upper.ctypes.data + 8 * (lo * n_genes + lo)
    # Fortran reads row-major matrices as their transposes.
    _dgemm()(
        *(b"N", b"T", left, width, n_rows, one, from_rows, stride, from_rows, stride, one),
        *(to_upper, stride),
    )


@functools.cache
def _dgemm() -> Callable[..., None]:
    """SciPy's dgemm, called without the GIL, which ``scipy.linalg.blas.dgemm`` would hold."""
    from numba.extending import get_cython_function_address

    address = get_cython_function_address("scipy.linalg.cython_blas", "dgemm")
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(address)


@njit(nogil=True, cache=True)
def _strictly_sorted(indices: Array, indptr: Ints) -> bool:
    for row in range(indptr.size - 1):
        for at in range(indptr[row] + 1, indptr[row + 1]):
            if indices[at] <= indices[at - 1]:
                return False
    return True


@njit(nogil=True, cache=True)
def _add_pairs(part: ValuesByGene, lo: int, hi: int, sums: Floats, upper: Floats) -> None:
    values, genes, first, at, end = part
    for gene in range(lo, hi):
        products = upper[gene]
        total = sums[gene]
        for k in range(first[gene], first[gene + 1]):
            start = np.int64(at[k])
            v = np.float64(values[start])
            total += v
            for other in range(start, np.int64(end[k])):
                products[genes[other]] += v * values[other]
        sums[gene] = total


@njit(nogil=True, cache=True)
def _scatter(data: Array, indices: Array, indptr: Ints, rows: Ints) -> None:
    for row in range(rows.shape[0]):
        for at in range(indptr[row], indptr[row + 1]):
            rows[row, indices[at]] += np.float64(data[at])


@njit(nogil=True, cache=True)
def _add_columns(rows: Ints, lo: int, hi: int, sums: Floats) -> None:
    for row in range(rows.shape[0]):
        for gene in range(lo, hi):
            sums[gene] += rows[row, gene]


@njit(nogil=True, cache=True)
def mirror(upper: Floats) -> None:
    """Write the upper triangle over the lower one."""
    # In tiles, so that the rows that are read and written stay in the cache.
    n = upper.shape[0]
    tile = 64
    for top in range(0, n, tile):
        for left in range(top, n, tile):
            for i in range(top, min(top + tile, n)):
                for j in range(max(left, i + 1), min(left + tile, n)):
                    upper[j, i] = upper[i, j]
