"""Loss and gradient of multinomial logistic regression on one block (Numba).

The contribution of each cell to the gradient, computed in float64 in the order of its genes, is
rounded to fixed point and summed as an integer that cannot overflow, so that the sum does not
depend on the order of cells or on blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse
from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.transpose_cpu import dense_to_csr
from scatlas.kernels.moments.group_sums_cpu import as_numba_dtype
from scatlas.kernels.moments.pairs_cpu import pair_sum

if TYPE_CHECKING:
    from collections.abc import Iterable


# Adding this to a number below 2**51 puts its rounded integer into the lowest bits.
_SHIFT = 1.5 * 2.0**52
_SHIFT_BITS = np.float64(_SHIFT).view(np.int64)
# Columns whose scores stay in registers while the values of a cell are read.
_NARROW = 8
# Scores that are kept between the loops for scores and for the gradient: they stay in the L2 cache.
_SCORES_AT_ONCE = 2**16
# Bytes of coefficients, or of the gradient, that a loop over values uses: those of many genes and
# classes would not stay in the cache. They are read, and added to, some classes at a time.
_TILE_BYTES = 2**23


@dataclass(frozen=True)
class LogisticModel:
    """Coefficients and weights of the logistic model. `coef` has a row per gene and one of
    intercepts, and a column per class; with two classes, one column in all, for the second.
    """

    coef: Floats
    scales: Floats  # [n_genes + 1], powers of two: scales of the fixed-point gradient
    weights: Floats  # weight of the cells of each class


@dataclass(frozen=True)
class LossAndGradient:
    """Contribution of some cells to the loss and its gradient."""

    gradient: Any  # int64, shape of the coefficients, multiplied by the scales
    loss: float
    loss_error: float  # rounding error of the sum of losses


def gradient_scales(max_abs: Floats, n_cells: int, max_weight: float) -> Floats:
    """Scales of the fixed-point gradient, powers of two, from the largest absolute value of each
    gene; the last is for the intercept. Sums over cells fit 62 bits, each contribution 51 bits.
    """
    # A contribution is at most value times weight, as residuals are between -1 and 1.
    _, exponents = np.frexp(np.append(max_abs, 1.0))
    _, weight_exponent = np.frexp(max_weight)
    bits = min(62 - int(n_cells).bit_length(), 50)
    # Products below 2**-900 count as 2**-900, so that all powers are in the range of float64.
    return np.ldexp(1.0, bits - np.maximum(exponents + weight_exponent, -900))


def max_abs_per_gene(x: Block, codes: Ints) -> Floats:
    """Largest absolute value of each gene over the rows with a class; NaN or infinite if one is."""
    out = np.zeros(x.shape[1])
    _max_abs(_rows(x), codes, out)
    return out


def loss_and_gradient(x: Block, codes: Ints, model: LogisticModel) -> LossAndGradient:
    """Loss and gradient of the rows of a block that have a class."""
    all_rows = _rows(x)
    codes, n_columns = codes.astype(np.int64), model.coef.shape[1]
    score, coefs, firsts, width = _tiles(model.coef)
    shapes = [(tile.shape[0], min(tile.shape[1], n_columns)) for tile in coefs]
    gradients = [np.zeros(shape, dtype=np.int64) for shape in shapes]
    losses = np.zeros(x.shape[0])
    scores = np.empty((max(1, _SCORES_AT_ONCE // width), width))
    for first in range(0, x.shape[0], scores.shape[0]):
        own = slice(first, first + scores.shape[0])
        rows = all_rows._replace(indptr=all_rows.indptr[first : own.stop + 1])
        for column, tile in zip(firsts, coefs, strict=False):
            score(rows, codes[own], tile, column, scores)
        _replace_scores(scores[:, :n_columns], codes[own], model.weights, losses[own])
        for column, gradient in zip(firsts, gradients, strict=False):
            _add_residuals(rows, codes[own], scores, column, model.scales, gradient)
    gradient = gradients[0] if len(gradients) == 1 else np.concatenate(gradients, axis=1)
    return LossAndGradient(gradient, *exact_sum(losses))


def class_scores(x: Block, coef: Floats) -> Floats:
    """Scores ``[n_rows, n_columns]``: values times coefficients, and the intercepts, the last row
    of `coef`; each in the order of a cell's genes.
    """
    rows, codes = _rows(x), np.zeros(x.shape[0], np.int64)
    score, coefs, firsts, width = _tiles(coef)
    scores = np.empty((x.shape[0], width))
    for column, tile in zip(firsts, coefs, strict=False):
        score(rows, codes, tile, column, scores)
    return scores[:, : coef.shape[1]]


def _tiles(coef: Floats) -> tuple[Any, list[Floats], Any, int]:
    """Kernel of the scores, its coefficients some classes at a time, with the first class of each,
    and the columns of the scores.
    """
    n_columns = coef.shape[1]
    if 1 < n_columns < _NARROW:
        coef = np.pad(coef, ((0, 0), (0, _NARROW - n_columns)))
    score, n_tiles = _score_column if n_columns == 1 else _score_narrow, 1
    if n_columns > _NARROW:
        score, n_tiles = _score_wide, min(n_columns, -(-coef.nbytes // _TILE_BYTES))
    coefs = [np.ascontiguousarray(tile) for tile in np.array_split(coef, n_tiles, axis=1)]
    firsts = np.cumsum([0, *(tile.shape[1] for tile in coefs)], dtype=np.uint64)
    return score, coefs, firsts, coef.shape[1]


def merge(parts: Iterable[LossAndGradient]) -> LossAndGradient:
    """Sum over disjoint cells; overwrites the gradient of the first part."""
    first, *others = parts
    loss, error = first.loss, first.loss_error
    for part in others:
        first.gradient[...] += part.gradient
        loss, error = pair_sum(loss, error, part.loss, part.loss_error)
    return LossAndGradient(first.gradient, loss, error)


def _rows(x: Block) -> CsrArrays:
    if not is_sparse(x):
        x = dense_to_csr(np.asarray(x))
        assert is_sparse(x)
    rows = csr_arrays(x)
    return rows._replace(data=as_numba_dtype(rows.data))


@njit(nogil=True, cache=True)
def exact_sum(values: Floats) -> tuple[float, float]:
    """Sum of values and its rounding error."""
    high, low = 0.0, 0.0
    for value in values:
        high, low = pair_sum(high, low, value, 0.0)
    return high, low


@njit(nogil=True, cache=True)
def _max_abs(rows: CsrArrays, codes: Ints, out: Array) -> None:
    for row in range(codes.size):
        if codes[row] < 0:
            continue
        for at in range(rows.indptr[row], rows.indptr[row + 1]):
            size, gene = abs(np.float64(rows.data[at])), rows.indices[at]
            if size > out[gene] or np.isnan(size):
                out[gene] = size


@njit(nogil=True, cache=True)
def _residuals(raw: Floats, code: int, weight: float) -> float:
    """Replace scores by weighted residuals (softmax - truth); return the weighted loss."""
    if raw.size == 1:
        z = raw[0]
        small = np.exp(-abs(z))
        loss: float = np.log1p(small) + max(z, 0.0) - (z if code == 1 else 0.0)
        likely = 1.0 / (1.0 + small)
        raw[0] = ((likely if z > 0.0 else small * likely) - (code == 1)) * weight
        return loss * weight
    highest = raw.max()
    score_of_class = raw[code]
    denominator = 0.0
    for c in range(raw.size):
        raw[c] = np.exp(raw[c] - highest)
        denominator += raw[c]
    for c in range(raw.size):
        raw[c] = (raw[c] / denominator - (c == code)) * weight
    return (np.log(denominator) + highest - score_of_class) * weight


@njit(nogil=True, cache=True)
def _replace_scores(scores: Floats, codes: Ints, weights: Floats, losses: Floats) -> None:
    """Replace the scores of cells by their residuals, and fill their losses."""
    for row in range(codes.size):
        if codes[row] >= 0:
            losses[row] = _residuals(scores[row], codes[row], weights[codes[row]])


# Subscripts are unsigned, because Numba tests signed ones for negative values. The scores of few
# classes take 0.6, and those of two 0.2, of the time of many.


@njit(nogil=True, cache=True)
def _score_column(rows: CsrArrays, codes: Ints, coef: Floats, first: Any, scores: Floats) -> None:
    """Scores of two classes."""
    for row in range(codes.size):
        if codes[row] >= 0:
            score = coef[coef.shape[0] - 1, 0]
            for at in range(rows.indptr[row], rows.indptr[row + 1]):
                score += np.float64(rows.data[at]) * coef[np.uint64(rows.indices[at]), 0]
            scores[row, first] = score


@njit(nogil=True, cache=True)
def _score_narrow(rows: CsrArrays, codes: Ints, coef: Floats, first: Any, scores: Floats) -> None:
    """Scores of a few classes, in as many columns as registers."""
    total = np.empty(_NARROW)
    for row in range(codes.size):
        if codes[row] < 0:
            continue
        for c in range(_NARROW):
            total[c] = coef[coef.shape[0] - 1, c]
        for at in range(rows.indptr[row], rows.indptr[row + 1]):
            value, gene = np.float64(rows.data[at]), np.uint64(rows.indices[at])
            for c in range(_NARROW):
                total[c] += value * coef[gene, c]
        for c in range(_NARROW):
            scores[row, first + np.uint64(c)] = total[c]


@njit(nogil=True, cache=True)
def _score_wide(rows: CsrArrays, codes: Ints, coef: Floats, first: Any, scores: Floats) -> None:
    """Scores of many classes."""
    for row in range(codes.size):
        if codes[row] < 0:
            continue
        for c in range(coef.shape[1]):
            scores[row, first + np.uint64(c)] = coef[coef.shape[0] - 1, c]
        for at in range(rows.indptr[row], rows.indptr[row + 1]):
            value, gene = np.float64(rows.data[at]), np.uint64(rows.indices[at])
            for c in range(coef.shape[1]):
                scores[row, first + np.uint64(c)] += value * coef[gene, c]


@njit(nogil=True, cache=True)
def _add_residuals(
    rows: CsrArrays,
    codes: Ints,
    residuals: Floats,
    first: Any,
    scales: Floats,
    gradient: Ints,
) -> None:
    """Add the contribution of each value, as an integer, and those of the intercepts."""
    n_genes = np.uint64(scales.size - 1)
    for row in range(codes.size):
        if codes[row] < 0:
            continue
        for at in range(rows.indptr[row], rows.indptr[row + 1]):
            gene = np.uint64(rows.indices[at])
            scaled = np.float64(rows.data[at]) * scales[gene]
            for c in range(gradient.shape[1]):
                part = np.float64(residuals[row, first + np.uint64(c)] * scaled + _SHIFT)
                gradient[gene, c] += part.view(np.int64) - _SHIFT_BITS
        for c in range(gradient.shape[1]):
            part = np.float64(residuals[row, first + np.uint64(c)] * scales[n_genes] + _SHIFT)
            gradient[n_genes, c] += part.view(np.int64) - _SHIFT_BITS
