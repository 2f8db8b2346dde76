"""Loss and gradient of multinomial logistic regression, of one row block (Numba).

What the cells add to the gradient is rounded to fixed point, by a power of two for each gene that
leaves no sum to overflow 64 bits, and added up as integers: the sum of any number of cells, in any
order and of any blocks, is the same. Each cell's own arithmetic is in float64, in the order of its
genes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.group_sums_cpu import _plain
from scatlas.kernels.moments.moments_cpu import pair_sum

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

# Adding this to a number below 2**51 leaves its integer in the last bits.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = np.float64(_SHIFT).view(np.int64)


@dataclass(frozen=True)
class Model:
    """What a block's loss and gradient depend on.

    Attributes
    ----------
    coef
        float64 ``[n_genes + 1, n_columns]``, the last row the intercepts. A column for each class,
        or one for two classes, which is the second's.
    scales
        float64 ``[n_genes + 1]``, powers of two that the gradient is multiplied by.
    weights
        float64 ``[n_classes]``, weight of the cells of each class.
    """

    coef: NDArray[np.float64]
    scales: NDArray[np.float64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class Partial:
    """What cells add to the loss and its gradient.

    Attributes
    ----------
    gradient
        int64 ``[n_genes + 1, n_columns]``, times the scales.
    loss, loss_error
        Sum of the losses, and what its rounding has left out.
    """

    gradient: Any
    loss: float
    loss_error: float


def scales_of(most: NDArray[np.float64], n_cells: int, heaviest: float) -> NDArray[np.float64]:
    """Powers of two with which sums over cells fit 62 bits, and each cell's part 51.

    Parameters
    ----------
    most
        float64 ``[n_genes]``, largest magnitude of each gene.
    n_cells
        Cells that are added up.
    heaviest
        Largest weight of a cell.

    Returns
    -------
    float64 ``[n_genes + 1]``, the last for the intercept.
    """
    # What a cell adds is below its value and weight: the residual lies within -1 and 1.
    _, exponents = np.frexp(np.append(most, 1.0))
    _, of_weight = np.frexp(heaviest)
    bits = min(62 - int(n_cells).bit_length(), 50)
    # Values below 2**-900 are taken as if they were so large: no power leaves float64.
    return np.ldexp(1.0, bits - np.maximum(exponents + of_weight, -900))


def most(
    x: NDArray | sparse.csr_matrix | sparse.csr_array, codes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Largest magnitude of each gene, float64 ``[n_genes]``, of the rows with a class.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.
    codes
        Class of each row, negative: none.

    Returns
    -------
    Infinite or NaN for a gene with such values.
    """
    data, indices, indptr = _rows(x)
    out = np.zeros(x.shape[1])
    _most(data, indices, indptr, codes, out)
    return out


def evaluate(
    x: NDArray | sparse.csr_matrix | sparse.csr_array, codes: NDArray[np.int64], model: Model
) -> Partial:
    """Loss and gradient of the rows of a block that have a class.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR, of any real dtype and index width.
    codes
        Class of each row, negative: none.
    model
        Coefficients, and what else is needed.
    """
    data, indices, indptr = _rows(x)
    gradient = np.zeros(model.coef.shape, dtype=np.int64)
    losses = np.zeros(x.shape[0])
    args = codes.astype(np.int64), model.coef, model.scales, model.weights, gradient, losses
    _evaluate(data, indices, indptr, *args)
    return Partial(gradient, *total(losses))


def merge(parts: Iterable[Partial]) -> Partial:
    """Sum of what disjoint cells add, into the first one's gradient, which is given up."""
    first, *others = parts
    loss, error = first.loss, first.loss_error
    for part in others:
        first.gradient[...] += part.gradient
        loss, error = pair_sum(loss, error, part.loss, part.loss_error)
    return Partial(first.gradient, loss, error)


def total(values: NDArray[np.float64]) -> tuple[float, float]:
    """Sum of values and what its rounding has left out."""
    return _total(values)


def _rows(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
) -> tuple[NDArray, NDArray, NDArray[np.int64]]:
    x = x if sparse.issparse(x) else sparse.csr_matrix(np.asarray(x))
    return _plain(x.data), x.indices, x.indptr.astype(np.int64, copy=False)


@njit(nogil=True, cache=True)
def _total(values):
    high, low = 0.0, 0.0
    for value in values:
        high, low = pair_sum(high, low, value, 0.0)
    return high, low


@njit(nogil=True, cache=True)
def _most(data, indices, indptr, codes, out):
    for row in range(codes.size):
        if codes[row] < 0:
            continue
        for at in range(indptr[row], indptr[row + 1]):
            size, gene = abs(np.float64(data[at])), indices[at]
            if size > out[gene] or np.isnan(size):
                out[gene] = size


@njit(nogil=True, cache=True)
def _residuals(raw, code, weight):
    """Make scores the residuals of a cell, times its weight; returns its loss, times that."""
    if raw.size == 1:
        z = raw[0]
        small = np.exp(-abs(z))
        loss = np.log1p(small) + max(z, 0.0) - (z if code == 1 else 0.0)
        likely = 1.0 / (1.0 + small)
        raw[0] = ((likely if z > 0.0 else small * likely) - (code == 1)) * weight
        return loss * weight
    highest = raw.max()
    of_class = raw[code]
    everything = 0.0
    for c in range(raw.size):
        raw[c] = np.exp(raw[c] - highest)
        everything += raw[c]
    for c in range(raw.size):
        raw[c] = (raw[c] / everything - (c == code)) * weight
    return (np.log(everything) + highest - of_class) * weight


@njit(nogil=True, cache=True)
def _evaluate(data, indices, indptr, codes, coef, scales, weights, gradient, losses):
    n_genes, n_columns = coef.shape[0] - 1, coef.shape[1]
    raw, part = np.empty(n_columns), np.empty(n_columns)
    whole = part.view(np.int64)
    for row in range(codes.size):
        code = codes[row]
        if code < 0:
            continue
        raw[:] = coef[n_genes]
        for at in range(indptr[row], indptr[row + 1]):
            v, of_gene = np.float64(data[at]), coef[indices[at]]
            for c in range(n_columns):
                raw[c] += v * of_gene[c]
        losses[row] = _residuals(raw, code, weights[code])
        for at in range(indptr[row], indptr[row + 1] + 1):
            # The intercept's value is 1, after the last gene.
            gene = np.int64(indices[at]) if at < indptr[row + 1] else n_genes
            v = np.float64(data[at]) if at < indptr[row + 1] else 1.0
            scaled, to = v * scales[gene], gradient[gene]
            for c in range(n_columns):
                part[c] = raw[c] * scaled + _SHIFT
            for c in range(n_columns):
                to[c] += whole[c] - _SHIFT_BITS
