"""Sums of analytic Pearson residuals and of their squares, of one row block (Numba).

The expected count is mu = (total of the gene) * (total of the cell) / (total of all), its variance
mu + mu^2 / theta. A residual is (count - mu) / (standard deviation), clipped (Lause, Berens, Kobak,
Genome Biology 22, 2021). All zeros of a gene in cells of the same total have the same residual. So
the sums are computed as if all counts were zero, and corrected by the nonzero counts.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.moments_cpu import Moments, group_sizes
from scatlas.kernels.moments.pairs_cpu import (
    gene_at,
    gene_rows,
    local_groups,
    pair_sum,
    product_error,
    row_of,
    stored_values,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.array_types import Array, Block, Floats, Ints


class PearsonModel(NamedTuple):
    """Negative binomial model of the counts: totals, clipping bounds and overdispersion."""

    genes: Floats  # [n_groups, n_genes]: total of each gene in each group of cells
    groups: Floats  # [n_groups]: total of each group, above 0
    clips: Floats  # [n_groups]: residuals are clipped to [-clip, clip]
    theta: float  # inverse of the overdispersion, above 0


def sums_of_zeros(model: PearsonModel, group: int, totals: Floats, n_cells: Ints) -> Floats:
    """Sums over the cells of one group as if all counts were zero, from the distinct `totals` of
    its cells: sum of residuals, its error, sum of squares, its error ``[n_genes, 4]``.
    """
    out = np.zeros((model.genes.shape[1], 4))
    parameters = model.genes[group], model.groups[group], model.clips[group], float(model.theta)
    _add_zeros(*parameters, totals, n_cells.astype(np.float64), out)
    return out


def sums_of_nonzeros(
    x: Block, totals: Floats, model: PearsonModel, codes: NDArray[np.integer] | None = None
) -> Moments:
    """Correction of :func:`sums_of_zeros` by the nonzero counts of a block, in ``sums`` of the
    groups that occur in it; ``expressed`` is 0. `totals` are those of the cells.
    """
    n_rows, n_genes = x.shape
    groups, local = local_groups(codes, n_rows)
    sums = np.zeros((groups.size, n_genes, 4))
    parameters = (
        np.ascontiguousarray(model.genes[groups]),
        model.groups[groups],
        model.clips[groups],
        float(model.theta),
    )
    totals = np.ascontiguousarray(totals, dtype=np.float64)
    values = stored_values(x)
    _add_rows(values, *gene_rows(x), local, totals, *parameters, sums)
    expressed = np.zeros((groups.size, n_genes), dtype=np.int64)
    return Moments(groups, group_sizes(local, groups.size), sums, expressed)


@njit(nogil=True, cache=True, error_model="numpy")
def _residual(value: float, mu: float, theta: float, clip: float) -> float:
    if mu == 0.0:  # an empty cell, or a gene without counts
        return 0.0
    residual = (value - mu) / sqrt(mu + mu * mu / theta)
    return min(max(residual, -clip), clip)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_zeros(
    genes: Array, total: float, clip: float, theta: float, totals: Array, n_cells: Ints, out: Array
) -> None:
    for gene in range(genes.size):
        sums = out[gene]
        for i in range(totals.size):
            zero = _residual(0.0, genes[gene] * totals[i] / total, theta, clip)
            _add_times(sums, 0, n_cells[i], zero)
            _add_times(sums, 2, n_cells[i], zero * zero)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_times(sums: Floats, at: int, n: float, value: float) -> None:
    """Add ``n * value`` with its rounding error, so that corrections cancel it exactly."""
    product = n * value
    error = product_error(n, value, product)
    sums[at], sums[at + 1] = pair_sum(sums[at], sums[at + 1], product, error)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_value(v: float, mu: float, theta: float, clip: float, sums: Floats) -> None:
    residual = _residual(v, mu, theta, clip)
    zero = _residual(0.0, mu, theta, clip)
    _add_difference(sums, 0, residual, zero)
    _add_difference(sums, 2, residual * residual, zero * zero)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_difference(sums: Floats, at: int, a: float, b: float) -> None:
    difference, error = pair_sum(a, 0.0, -b, 0.0)
    sums[at], sums[at + 1] = pair_sum(sums[at], sums[at + 1], difference, error)


@njit(nogil=True, cache=True, error_model="numpy")
def _add_rows(
    values: Array,
    indices: Array | None,
    indptr: Ints | None,
    codes: Ints,
    totals: Array,
    genes: Array,
    groups: Floats,
    clips: Floats,
    theta: float,
    sums: Floats,
) -> None:
    for row in range(codes.size):
        group = codes[row]
        if group < 0:
            continue
        of_row, genes_of_row = row_of(values, indices, indptr, row)
        for k in range(of_row.size):
            v = np.float64(of_row[k])
            if v != 0.0:
                gene = gene_at(genes_of_row, k)
                mu = genes[group, gene] * totals[row] / groups[group]
                _add_value(v, mu, theta, clips[group], sums[group, gene])
