"""Gram matrix of row blocks: pairs of stored values, or BLAS on dense rows.

One matrix is added to, by any number of threads: a block is cut into parts of rows, each part is
prepared on its own, and a thread adds all parts, in their order, to the genes (matrix rows) that
are its own. Every entry is a sum of float64 products in the order of the rows (pairs), or of BLAS's
products of fixed panels (dense rows), so that no bit depends on how many threads there are.

A sparse row of k values costs k**2 / 2 scattered additions, a dense one n_genes**2 / 2
multiply-adds at BLAS speed: the block's own values decide. The genes of a part are taken one after
another, each with its matrix row in the L1 cache and the values of the part in L2.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    Block = NDArray | sparse.csr_matrix | sparse.csr_array

# Genes that a kernel can number.
MAX_GENES = 2**16
# A scattered addition costs as much as this many multiply-adds of dgemm: 0.6 ns against 0.03 ns
# (scattering the rows included) on one AVX-512 core for 1,000 to 4,000 genes near the crossing,
# which lies at 470 values a row for 2,000 genes. With few genes either way is quick.
_PAIR_COST = 18.0
# Values of a part: with their indices and order they take 1.4 MB of the L2 cache. With many genes
# the matrix, of which each part touches most, costs more than values that are read anew.
_PART_VALUES = 80_000
_GENES_SQUARED_PER_VALUE = 80
# Bytes of dense rows of a part, and genes that one call of BLAS adds to.
_DENSE_BYTES = 4_000_000
_PANEL = 192


class Pairs(NamedTuple):
    """Rows of a part by gene.

    Attributes
    ----------
    values
        float64 ``[n_values]``, in the order of the rows.
    genes
        uint16 ``[n_values]``, their genes.
    first
        int64 ``[n_genes + 1]``: gene g has the entries ``first[g]`` to ``first[g + 1]`` of
    at, end
        uint32 ``[n_values]``: where its values lie, row by row, and where their rows end.
    """

    values: NDArray[np.float64]
    genes: NDArray[np.uint16]
    first: NDArray[np.int64]
    at: NDArray[np.uint32]
    end: NDArray[np.uint32]


def gram(x: Block) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
    """Sums and products over the rows of a block.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.

    Returns
    -------
    n, the sum per gene (float64 ``[n_genes]``) and ``x.T @ x`` (float64 ``[n_genes, n_genes]``,
    both triangles).
    """
    n_rows, n_genes = x.shape
    sums, upper = np.zeros(n_genes), np.zeros((n_genes, n_genes))
    add_block(x, sums, upper)
    mirror(upper)
    return n_rows, sums, upper


def add_block(
    x: Block,
    sums: NDArray[np.float64],
    upper: NDArray[np.float64],
    *,
    panel: int | None = None,
    threads: int = 1,
    run: Callable[..., Iterable] = map,
) -> None:
    """Add the rows of a block to sums and products of rows before them.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.
    sums
        float64 ``[n_genes]``.
    upper
        float64 ``[n_genes, n_genes]``, of which the upper triangle counts; what lies below is
        overwritten with anything.
    panel
        Rows whose values decide together between pairs and BLAS, and of which BLAS sees no two
        panels at once: blocks that begin where panels do give the same bits, however the panels are
        put into blocks. None: the whole block is one.
    threads
        How many threads `run` has. No bit of the result depends on it.
    run
        ``map``, or one that makes the calls in several threads, where BLAS must be kept to one of
        its own (:func:`scatlas.compute.threads.blas_on_one_thread`).
    """
    todo = _parts(x, panel or max(1, x.shape[0]))
    at_once = 2 * threads
    for start in range(0, len(todo), at_once):
        parts = list(run(operator.call, todo[start : start + at_once]))
        add = functools.partial(_add, parts, sums, upper)
        list(run(add, _shares(parts, at_once, upper.shape[0])))


def _parts(x: Block, panel: int) -> list[Callable[[], Pairs | NDArray[np.float64]]]:
    """Functions that prepare the parts of a block, in the order of the rows."""
    n_rows, n_genes = x.shape
    if n_genes > MAX_GENES:
        msg = f"{n_genes} genes, more than the {MAX_GENES} that can be numbered"
        raise ValueError(msg)
    rows_at_once = max(64, _DENSE_BYTES // (8 * max(1, n_genes)))
    panels = list(pairwise([*range(0, n_rows, panel), n_rows]))
    if not sparse.issparse(x):
        x = np.asarray(x)
        return [
            functools.partial(_dense, x[a : min(a + rows_at_once, stop)])
            for start, stop in panels
            for a in range(start, stop, rows_at_once)
        ]
    indptr = x.indptr.astype(np.int64, copy=False)
    todo = []
    # Pairs are added row by row, so that panels may share a part; dense rows by BLAS, so that not.
    for by_pairs, run in groupby(
        panels, lambda rows: _takes_pairs(x.indices, indptr, *rows, n_genes)
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
            prepare = _pairs if by_pairs else _scattered
            todo += [
                functools.partial(prepare, x.data, x.indices, indptr[a : b + 1], n_genes)
                for a, b in pairwise(bounds)
            ]
    return todo


def _takes_pairs(
    indices: NDArray, indptr: NDArray[np.int64], start: int, stop: int, n_genes: int
) -> bool:
    """Whether pairs of the values of these rows cost less than BLAS on them."""
    per_row = np.diff(indptr[start : stop + 1]).astype(np.float64)
    few = _PAIR_COST * (per_row @ per_row) < float(stop - start) * n_genes * n_genes
    return few and _strictly_sorted(indices, indptr[start : stop + 1])


def _dense(x: NDArray) -> NDArray[np.float64]:
    return np.ascontiguousarray(x, dtype=np.float64)


def _scattered(data, indices, indptr, n_genes) -> NDArray[np.float64]:
    rows = np.zeros((indptr.size - 1, n_genes))
    _scatter(data, indices, indptr, rows)
    return rows


def _pairs(data, indices, indptr, n_genes) -> Pairs:
    n = int(indptr[-1] - indptr[0])
    part = Pairs(
        np.empty(n),
        np.empty(n, np.uint16),
        np.empty(n_genes + 1, np.int64),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
    )
    _sort_by_gene(data, indices, indptr, *part)
    return part


def _shares(
    parts: list[Pairs | NDArray[np.float64]], n: int, n_genes: int
) -> list[tuple[int, int]]:
    """Ranges of genes of about equal work; for dense rows always the same panels."""
    if not all(isinstance(part, Pairs) for part in parts):
        return list(pairwise([*range(0, n_genes, _PANEL), n_genes]))
    counts = sum(np.diff(part.first) for part in parts)
    # As many pairs as if the genes fell into the rows independently.
    work = np.cumsum(counts * np.cumsum(counts[::-1])[::-1].astype(np.float64))
    bounds = np.searchsorted(work, work[-1] * np.arange(1, n) / n)
    return list(pairwise(np.unique([0, *bounds, n_genes]).tolist()))


def _add(
    parts: list[Pairs | NDArray[np.float64]],
    sums: NDArray[np.float64],
    upper: NDArray[np.float64],
    share: tuple[int, int],
) -> None:
    for part in parts:
        if isinstance(part, Pairs):
            _add_pairs(*part, *share, sums, upper)
        else:
            _add_dense(part, *share, sums, upper)


def _add_dense(
    rows: NDArray[np.float64],
    lo: int,
    hi: int,
    sums: NDArray[np.float64],
    upper: NDArray[np.float64],
) -> None:
    """``upper[lo:hi, lo:] += rows[:, lo:hi].T @ rows[:, lo:]``, in place."""
    _add_columns(rows, lo, hi, sums)
    n_genes = upper.shape[0]
    left, width, n_rows, stride = (
        ctypes.byref(ctypes.c_int(n)) for n in (n_genes - lo, hi - lo, rows.shape[0], n_genes)
    )
    one = ctypes.byref(ctypes.c_double(1.0))
    of_rows = rows.ctypes.data + 8 * lo
    of_upper = upper.ctypes.data + 8 * (lo * n_genes + lo)
    # In Fortran's eyes all matrices are transposed.
    _dgemm()(
        *(b"N", b"T", left, width, n_rows, one, of_rows, stride, of_rows, stride, one),
        *(of_upper, stride),
    )


@functools.cache
def _dgemm() -> Callable[..., None]:
    """SciPy's BLAS, called without Python's lock, which ``scipy.linalg.blas.dgemm`` keeps."""
    from numba.extending import get_cython_function_address

    address = get_cython_function_address("scipy.linalg.cython_blas", "dgemm")
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(address)


@njit(nogil=True, cache=True)
def _strictly_sorted(indices, indptr):
    for row in range(indptr.size - 1):
        for at in range(indptr[row] + 1, indptr[row + 1]):
            if indices[at] <= indices[at - 1]:
                return False
    return True


@njit(nogil=True, cache=True)
def _sort_by_gene(data, indices, indptr, values, genes, first, at, end):
    n_genes = first.size - 1
    start = indptr[0]
    first[:] = 0
    for k in range(values.size):
        gene = np.uint16(indices[start + k])
        values[k] = np.float64(data[start + k])
        genes[k] = gene
        first[np.int64(gene) + 1] += 1
    for gene in range(n_genes):
        first[gene + 1] += first[gene]
    # first[g] runs through the entries of gene g and ends where those of g + 1 began.
    for row in range(indptr.size - 1):
        stop = indptr[row + 1] - start
        for k in range(indptr[row] - start, stop):
            to = first[genes[k]]
            at[to] = k
            end[to] = stop
            first[genes[k]] = to + 1
    for gene in range(n_genes, 0, -1):
        first[gene] = first[gene - 1]
    first[0] = 0


@njit(nogil=True, cache=True)
def _add_pairs(values, genes, first, at, end, lo, hi, sums, upper):
    for gene in range(lo, hi):
        products = upper[gene]
        total = sums[gene]
        for k in range(first[gene], first[gene + 1]):
            start = np.int64(at[k])
            v = values[start]
            total += v
            for other in range(start, np.int64(end[k])):
                products[genes[other]] += v * values[other]
        sums[gene] = total


@njit(nogil=True, cache=True)
def _scatter(data, indices, indptr, rows):
    for row in range(rows.shape[0]):
        for at in range(indptr[row], indptr[row + 1]):
            rows[row, indices[at]] += np.float64(data[at])


@njit(nogil=True, cache=True)
def _add_columns(rows, lo, hi, sums):
    for row in range(rows.shape[0]):
        for gene in range(lo, hi):
            sums[gene] += rows[row, gene]


@njit(nogil=True, cache=True)
def mirror(upper):
    """Write the upper triangle over the lower one."""
    # In tiles, so that both the rows read and the rows written stay in cache.
    n = upper.shape[0]
    tile = 64
    for top in range(0, n, tile):
        for left in range(top, n, tile):
            for i in range(top, min(top + tile, n)):
                for j in range(max(left, i + 1), min(left + tile, n)):
                    upper[j, i] = upper[i, j]
