"""Per-gene sums, sums of squares and expressed cells of one row block (Numba).

Both sums are carried as an unevaluated pair of float64 (the sum and its accumulated rounding
error), so a gene with a mean of 1e6 and a standard deviation of 1 keeps its variance, blocks merge
by plain addition, and the result does not depend on how the rows were cut into blocks. Genes that
hold the same values in other cells therefore tie exactly, which a ranking of genes must not break.

References
----------
D. E. Knuth, The Art of Computer Programming 2, section 4.2.2: the error of a sum.
T. J. Dekker, "A floating-point technique for extending the available precision",
Numer. Math. 18 (1971): the error of a product, and the addition of pairs.
T. F. Chan, G. H. Golub, R. J. LeVeque, Stanford STAN-CS-79-773 (1979): the merge that the pair of
sums replaces; it keeps the variance too, but its rounding depends on the blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable
from scipy import sparse

from scatlas.kernels.build.numba_cache import njit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Squares of these have at most 53 significant bits, so float64 holds them without an error term.
EXACT_SQUARES = frozenset("?bBhHef")

# A sum of squared deviations below n of these parts of the sum of squares is the rounding of the
# pairs: the gene is constant. (Float32 values that differ at all leave 2**-48 / n, far above it.)
CONSTANT = 2.0**-102


@dataclass(frozen=True)
class Moments:
    """Mergeable moments of groups of cells.

    Attributes
    ----------
    groups
        int64 ``[n_groups]``, sorted codes of the groups that have cells.
    n_cells
        int64 ``[n_groups]``, cells per group.
    sums
        float64 ``[n_groups, n_genes, 4]``: sum, its error, sum of squares, its error.
    expressed
        int64 ``[n_groups, n_genes]``, cells with a value above zero.
    """

    groups: NDArray[np.int64]
    n_cells: NDArray[np.int64]
    sums: NDArray[np.float64]
    expressed: NDArray[np.int64]

    @cached_property
    def _mean_var(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _mean_var(self.sums, self.n_cells)

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean per group and gene, float64 ``[n_groups, n_genes]``."""
        return self._mean_var[0]

    @property
    def var(self) -> NDArray[np.float64]:
        """Variance per group and gene, float64 ``[n_groups, n_genes]``.

        Divided by n - 1; zero for a group of one cell (as scanpy has it) and exactly zero for a
        constant gene.
        """
        return self._mean_var[1]


def moments(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    codes: NDArray[np.integer] | None = None,
    *,
    expm1: bool = False,
    log_base: float | None = None,
) -> Moments:
    """Moments per gene of the rows of a block, by group.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and index
        width.
    codes
        Group of each row, integer ``[n]``; rows with a negative code are left out. ``None``: one
        group, 0.
    expm1
        Take the moments of ``expm1(x)`` (of ``expm1(x * log_base)`` with `log_base`). The values
        are transformed in the precision of `x`, as scanpy does; integers in float64.
    log_base
        Natural logarithm of the base that the data were logarithmised with.

    Returns
    -------
    The moments of the groups that occur in the block (one row a group).
    """
    n_rows, n_genes = x.shape
    groups, local = local_groups(codes, n_rows)
    sums = np.zeros((groups.size, n_genes, 4))
    expressed = np.zeros((groups.size, n_genes), dtype=np.int64)
    values = x.data if sparse.issparse(x) else np.asarray(x)
    if expm1:
        values = expm1_of(values, log_base)
    exact = values.dtype.char in EXACT_SQUARES
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        _add_csr(values, x.indices, indptr, local, exact, sums, expressed)
    else:
        _add_dense(values, local, exact, sums, expressed)
    return Moments(groups, group_sizes(local, groups.size), sums, expressed)


def local_groups(
    codes: NDArray[np.integer] | None, n_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Groups that occur in a block, sorted, and each row's place among them (-1: left out)."""
    if codes is None:
        return np.zeros(1, dtype=np.int64), np.zeros(n_rows, dtype=np.int64)
    groups = np.unique(codes[codes >= 0]).astype(np.int64)
    return groups, np.where(codes >= 0, np.searchsorted(groups, codes), -1).astype(np.int64)


def group_sizes(local: NDArray[np.int64], n_groups: int) -> NDArray[np.int64]:
    """Rows of each group, int64 ``[n_groups]``; negative codes count for none."""
    return np.bincount(local[local >= 0], minlength=n_groups).astype(np.int64)


def fold(parts: Sequence[Moments]) -> Moments:
    """As :func:`merge`, but adds into the first part's arrays, which are given up."""
    first, *others = parts
    for part in others:
        if not np.array_equal(first.groups, part.groups):
            first = merge([first, part])
            continue
        np.add(first.n_cells, part.n_cells, out=first.n_cells)
        np.add(first.expressed, part.expressed, out=first.expressed)
        _merge_sums(part.sums, np.arange(first.groups.size), first.sums)
    return first


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of the union of disjoint sets of cells (all of the same genes)."""
    groups = np.unique(np.concatenate([part.groups for part in parts]))
    n_genes = parts[0].expressed.shape[1]
    n_cells = np.zeros(groups.size, dtype=np.int64)
    sums = np.zeros((groups.size, n_genes, 4))
    expressed = np.zeros((groups.size, n_genes), dtype=np.int64)
    for part in parts:
        at = np.searchsorted(groups, part.groups)
        n_cells[at] += part.n_cells
        expressed[at] += part.expressed
        _merge_sums(part.sums, at, sums)
    return Moments(groups, n_cells, sums, expressed)


def expm1_of(values: NDArray, log_base: float | None) -> NDArray:
    """``expm1(values * log_base)`` in the precision of the values; of integers in float64.

    NaN of -inf, the logarithm of zero: no count has it, and -1 would go unnoticed.
    """
    if not np.issubdtype(values.dtype, np.floating):
        values = values.astype(np.float64)
    # Overflow (counts taken for logarithms) shows as an infinite mean.
    with np.errstate(over="ignore"):
        if log_base is None:
            out = np.expm1(values)
        else:
            # The product is taken in float64 and rounded once to the precision of the data.
            out = (values * np.float64(log_base)).astype(values.dtype, copy=False)
            np.expm1(out, out=out)
    no_count = values == -np.inf
    if no_count.any():
        out[no_count] = np.nan
    return out


@njit(nogil=True, cache=True)
def square_error(v: float, square: float) -> float:
    """Return ``v * v - square`` exactly (Dekker)."""
    c = 134217729.0 * v  # 2**27 + 1
    high = c - (c - v)
    low = v - high
    return ((high * high - square) + 2.0 * high * low) + low * low


# Plain functions of numbers and of arrays, NumPy's or CuPy's; compiled code may call them, too.


@register_jitable
def pair_sum(high: Any, low: Any, value: Any, error: Any) -> tuple[Any, Any]:
    """Sum of the pairs ``high + low`` and ``value + error``, as such a pair (Knuth, Dekker)."""
    new = high + value
    part = new - high
    rest = low + (((high - (new - part)) + (value - part)) + error)
    # Renormalised each time: an error that grew with n would be rounded in its turn.
    total = new + rest
    return total, rest - (total - new)


@njit(nogil=True, cache=True)
def _add_pair(pair: NDArray, at: int, value: float, error: float) -> None:
    """Add ``value + error`` to the sum at ``pair[at]`` and its error at ``pair[at + 1]``."""
    pair[at], pair[at + 1] = pair_sum(pair[at], pair[at + 1], value, error)


@njit(nogil=True, cache=True)
def add_value(sums: NDArray, v: float, exact: bool) -> None:
    """Add a value to the four sums of its gene; `exact`: float64 holds its square."""
    _add_pair(sums, 0, v, 0.0)
    square = v * v
    _add_pair(sums, 2, square, 0.0 if exact else square_error(v, square))


@njit(nogil=True, cache=True)
def _add_csr(data, indices, indptr, codes, exact, sums, expressed):
    for row in range(indptr.size - 1):
        group = codes[row]
        if group < 0:
            continue
        for at in range(indptr[row], indptr[row + 1]):
            v = np.float64(data[at])
            gene = indices[at]
            add_value(sums[group, gene], v, exact)
            if v > 0.0:
                expressed[group, gene] += 1


@njit(nogil=True, cache=True)
def _add_dense(x, codes, exact, sums, expressed):
    for row in range(x.shape[0]):
        group = codes[row]
        if group < 0:
            continue
        for gene in range(x.shape[1]):
            v = np.float64(x[row, gene])
            if v != 0.0:
                add_value(sums[group, gene], v, exact)
                if v > 0.0:
                    expressed[group, gene] += 1


@njit(nogil=True, cache=True)
def _merge_sums(part, at, sums):
    for group in range(part.shape[0]):
        for gene in range(part.shape[1]):
            of = sums[at[group], gene]
            _add_pair(of, 0, part[group, gene, 0], part[group, gene, 1])
            _add_pair(of, 2, part[group, gene, 2], part[group, gene, 3])


def _mean_var(
    sums: NDArray[np.float64], n_cells: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and variance (n - 1) of the sums of :class:`Moments`, over so many cells.

    Parameters
    ----------
    sums
        float64 ``[n_groups, n_genes, 4]``.
    n_cells
        int64 ``[n_groups]``, or ``[n_groups, n_genes]``.
    """
    # In NumPy: once a plate, a compiled kernel would take longer to compile than to run.
    n = (n_cells if n_cells.ndim == 2 else n_cells[:, None]).astype(np.float64)
    with np.errstate(all="ignore"):
        mean, deviations = mean_deviations(*np.moveaxis(sums, 2, 0), n)
        var = np.where(n > 1.0, deviations / (n - 1.0), 0.0)
    return mean, var


def mean_deviations(
    total: Any, total_low: Any, squares: Any, squares_low: Any, n: Any
) -> tuple[Any, Any]:
    """Means, and sums of squared deviations from them, of sums that are pairs; of any shape.

    The deviations are exactly zero where they are within the rounding of the pairs: where all
    values are the same.
    """
    deviations = deviations_of(total, total_low, squares, squares_low, n)
    return total / n, np.where(deviations <= n * CONSTANT * squares, 0.0, deviations)


@register_jitable
def deviations_of(total: Any, total_low: Any, squares: Any, squares_low: Any, n: Any) -> Any:
    """Sums of squared deviations, those of constant values with their rounding."""
    # total**2 / n as a pair: the quotient and what it leaves.
    product = total * total
    product_low = product_error(total, total, product) + 2.0 * total * total_low
    quotient = product / n
    back = quotient * n
    rest = (product - back) - product_error(quotient, n, back)
    quotient_low = (rest + product_low) / n
    return (squares - quotient) + (squares_low - quotient_low)


@register_jitable
def product_error(a: Any, b: Any, product: Any) -> Any:
    """Return ``a * b - product`` exactly (Dekker)."""
    c = 134217729.0 * a
    a_high = c - (c - a)
    a_low = a - a_high
    c = 134217729.0 * b
    b_high = c - (c - b)
    b_low = b - b_high
    return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
