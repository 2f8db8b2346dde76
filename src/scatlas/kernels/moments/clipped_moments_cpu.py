"""Moments of the values above a bound of their gene and group, of one row block (Numba).

Clipped at a bound, a value above it counts as the bound. So what there is to know of the clipped
values of a gene are the moments of all its values, which an earlier pass has taken, and these: how
many are above the bound, their sum, and their sum of squares. All of it is exact for counts (see
:mod:`scatlas.kernels.moments.moments_cpu`), and the bound is multiplied by a whole number once, at
the end: no result depends on how the rows were cut into blocks. Values above a bound are few, so
that a block costs one comparison a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.qc_cpu import is_integral
from scatlas.kernels.moments.moments_cpu import (
    EXACT_SQUARES,
    Moments,
    _mean_var,
    add_value,
    group_sizes,
    local_groups,
    merge,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def moments_above(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    bounds: NDArray[np.float64],
    codes: NDArray[np.integer] | None = None,
) -> Moments:
    """Moments per gene of the values of a block above their bounds, by group.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and index
        width.
    bounds
        float64 ``[n_groups, n_genes]``, not negative. No value is above NaN.
    codes
        Group of each row, integer ``[n]`` below ``n_groups``; rows with a negative code are left
        out. ``None``: one group, 0.

    Returns
    -------
    The moments of the groups that occur in the block (one row a group). ``n_cells`` counts all
    cells of a group, ``expressed`` those above the bound.
    """
    n_rows, n_genes = x.shape
    groups, local = local_groups(codes, n_rows)
    sums = np.zeros((groups.size, n_genes, 4))
    n_above = np.zeros((groups.size, n_genes), dtype=np.int64)
    bounds = np.ascontiguousarray(bounds[groups], dtype=np.float64)
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        exact = x.data.dtype.char in EXACT_SQUARES
        _add_csr(x.data, x.indices, indptr, local, bounds, exact, sums, n_above)
    else:
        x = np.asarray(x)
        _add_dense(x, local, bounds, x.dtype.char in EXACT_SQUARES, sums, n_above)
    return Moments(groups, group_sizes(local, groups.size), sums, n_above)


def holds_counts(x: NDArray | sparse.csr_matrix | sparse.csr_array) -> bool:
    """Whether all values of a block are whole numbers from 0 on."""
    values = x.data if sparse.issparse(x) else np.asarray(x)
    if values.dtype.kind in "ub" or values.size == 0:
        return True
    return bool(values.min() >= 0) and is_integral(values)


def clipped_squares(
    moments: Moments, above: Moments, bounds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum over the cells of ``(min(value, bound) - mean)**2``, where the mean is of all values.

    The cells below the bound, zeros included, have the moments that are left when those above it
    are taken away, without rounding for counts: no term is negative, and none cancels.

    Parameters
    ----------
    moments
        Of all values of the groups.
    above
        Of the same groups, by :func:`moments_above`.
    bounds
        float64 ``[n_groups, n_genes]``, in the order of these groups.

    Returns
    -------
    float64 ``[n_groups, n_genes]``
    """
    taken = Moments(above.groups, above.n_cells, -above.sums, above.expressed)
    sums = merge([moments, taken]).sums
    n_above = above.expressed
    n_below = moments.n_cells[:, None] - n_above
    mean, var = _mean_var(sums, n_below)
    below = (n_below - 1) * var + n_below * (mean - moments.mean) ** 2
    # A bound of NaN or infinity, which no value is above, must not become 0 * NaN.
    distance = np.where(n_above > 0, bounds - moments.mean, 0.0)
    return below + n_above * distance**2


@njit(nogil=True, cache=True)
def _add_csr(data, indices, indptr, codes, bounds, exact, sums, n_above):
    for row in range(indptr.size - 1):
        group = codes[row]
        if group < 0:
            continue
        bound = bounds[group]
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            gene = np.uint64(indices[at])  # Numba tests signed ones for being negative
            if v > bound[gene]:
                add_value(sums[group, gene], v, exact)
                n_above[group, gene] += 1


@njit(nogil=True, cache=True)
def _add_dense(x, codes, bounds, exact, sums, n_above):
    for row in range(x.shape[0]):
        group = codes[row]
        if group < 0:
            continue
        bound = bounds[group]
        for gene in range(x.shape[1]):
            v = np.float64(x[row, gene])
            if v > bound[gene]:
                add_value(sums[group, gene], v, exact)
                n_above[group, gene] += 1
