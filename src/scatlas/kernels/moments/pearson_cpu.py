"""Sums of analytic Pearson residuals and of their squares, of one row block (Numba).

A count is expected to be mu = (total of its gene) * (total of its cell) / (total of all), with the
variance mu + mu^2 / theta. A residual is the difference over the standard deviation, clipped. All
zeros of a gene in cells of the same total have the same residual: the sums are taken as if all
counts were zeros, which needs the totals alone (:func:`sums_of_zeros`), and what the others add to
that is found where they are stored (:func:`sums_of_others`).

References
----------
J. Lause, P. Berens, D. Kobak, "Analytic Pearson residuals for normalization of single-cell RNA-seq
UMI data", Genome Biology 22 (2021).
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.moments_cpu import (
    Moments,
    group_sizes,
    local_groups,
    pair_sum,
    product_error,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Model(NamedTuple):
    """What counts are expected to be.

    Attributes
    ----------
    genes
        float64 ``[n_groups, n_genes]``: total of each gene in each group of cells.
    groups
        float64 ``[n_groups]``: total of each group, above 0.
    clips
        float64 ``[n_groups]``: residuals are clipped here, and at its negative.
    theta
        Inverse of the overdispersion, above 0.
    """

    genes: NDArray[np.float64]
    groups: NDArray[np.float64]
    clips: NDArray[np.float64]
    theta: float


def sums_of_zeros(
    model: Model, group: int, totals: NDArray[np.float64], n_cells: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sums over cells as if all their counts were zeros.

    Parameters
    ----------
    model
        All of it.
    group
        Whose cells they are.
    totals, n_cells
        Different totals of cells, float64, and how many cells have each.

    Returns
    -------
    float64 ``[n_genes, 4]``: sum of the residuals, its error, sum of their squares, its error.
    """
    out = np.zeros((model.genes.shape[1], 4))
    of_group = model.genes[group], model.groups[group], model.clips[group], float(model.theta)
    _add_zeros(*of_group, totals, n_cells.astype(np.float64), out)
    return out


def sums_of_others(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    totals: NDArray[np.float64],
    model: Model,
    codes: NDArray[np.integer] | None = None,
) -> Moments:
    """What the counts of a block that are not zero add to :func:`sums_of_zeros`.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and index
        width.
    totals
        float64 ``[n]``: total of each cell.
    model
        With a row for each code.
    codes
        Group of each row, integer ``[n]``; rows with a negative code are left out. ``None``: one
        group, 0.

    Returns
    -------
    For the groups that occur in the block ``sums`` as :func:`sums_of_zeros` (``expressed`` is not
    filled); the parts of blocks are folded as those of moments are.
    """
    n_rows, n_genes = x.shape
    groups, local = local_groups(codes, n_rows)
    sums = np.zeros((groups.size, n_genes, 4))
    of_groups = (
        np.ascontiguousarray(model.genes[groups]),
        model.groups[groups],
        model.clips[groups],
        float(model.theta),
    )
    totals = np.ascontiguousarray(totals, dtype=np.float64)
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        _add_csr(x.data, x.indices, indptr, local, totals, *of_groups, sums)
    else:
        _add_dense(np.asarray(x), local, totals, *of_groups, sums)
    unfilled = np.zeros((groups.size, n_genes), dtype=np.int64)
    return Moments(groups, group_sizes(local, groups.size), sums, unfilled)


@njit(nogil=True, cache=True, error_model="numpy")
def _residual(value, mu, theta, clip):
    if mu == 0.0:  # of an empty cell, or of a gene that none has
        return 0.0
    residual = (value - mu) / sqrt(mu + mu * mu / theta)
    return min(max(residual, -clip), clip)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_zeros(genes, total, clip, theta, totals, n_cells, out):
    for gene in range(genes.size):
        of_gene = out[gene]
        for i in range(totals.size):
            zero = _residual(0.0, genes[gene] * totals[i] / total, theta, clip)
            _add_times(of_gene, 0, n_cells[i], zero)
            _add_times(of_gene, 2, n_cells[i], zero * zero)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_times(sums, at, n, value):
    """Add ``n * value``, with what its rounding leaves: what others take off must cancel it."""
    product = n * value
    error = product_error(n, value, product)
    sums[at], sums[at + 1] = pair_sum(sums[at], sums[at + 1], product, error)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_value(v, mu, theta, clip, sums):
    found = _residual(v, mu, theta, clip)
    zero = _residual(0.0, mu, theta, clip)
    _add_difference(sums, 0, found, zero)
    _add_difference(sums, 2, found * found, zero * zero)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_difference(sums, at, a, b):
    difference, error = pair_sum(a, 0.0, -b, 0.0)
    sums[at], sums[at + 1] = pair_sum(sums[at], sums[at + 1], difference, error)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_csr(data, indices, indptr, codes, totals, genes, groups, clips, theta, sums):
    for row in range(indptr.size - 1):
        group = codes[row]
        if group < 0:
            continue
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            gene = indices[at]
            if v != 0.0:
                mu = genes[group, gene] * totals[row] / groups[group]
                _add_value(v, mu, theta, clips[group], sums[group, gene])


@njit(nogil=True, cache=True, error_model="numpy")
def _add_dense(x, codes, totals, genes, groups, clips, theta, sums):
    for row in range(x.shape[0]):
        group = codes[row]
        if group < 0:
            continue
        for gene in range(x.shape[1]):
            v = np.float64(x[row, gene])
            if v != 0.0:
                mu = genes[group, gene] * totals[row] / groups[group]
                _add_value(v, mu, theta, clips[group], sums[group, gene])
