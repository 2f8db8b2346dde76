"""Sums, sums of squares and nonzero values per group of cells and gene, added in place (Numba).

All blocks are added to one set of arrays (`moments_cpu` has 40 bytes per group and gene for each
block, too much for 10,000 groups). Sums of integers are exact int64. Float sums carry their
rounding error, and the cells of a group are added in their order, whatever blocks and threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.errors import InputError
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.pairs_cpu import (
    CONSTANT,
    EXACT_SQUARES,
    gene_at,
    gene_rows,
    local_groups,
    pair_sum,
    row_of,
    square_error,
    squared_deviations,
    stored_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike, NDArray

    from scatlas.arrays.array_types import Array, Block, Floats, Ints

# Kernels skip sums whose array is empty.
_NO_FLOATS = np.zeros((0, 0))
_NO_INTS = np.zeros((0, 0), dtype=np.int64)


class SumKinds(NamedTuple):
    """Which sums to compute: of values, of their squares, and numbers of nonzero values."""

    sums: bool
    squares: bool
    nonzero: bool

    def n_arrays(self, dtype: DTypeLike) -> int:
        """Number of arrays, of 8 bytes per group and gene, for values of a type."""
        pairs = 1 if is_integer(dtype) else 2
        return pairs * (self.sums + self.squares) + self.nonzero


@dataclass
class Sums:
    """Sums of the rows of a matrix per group and gene; arrays ``[n_groups, n_genes]`` that were not
    requested are None, as are the rounding errors of integers.
    """

    whole: bool  # whether values are summed as integers, in int64, or in float64
    sums: Any
    errors: Any
    squares: Any
    square_errors: Any
    nonzero: Any  # int64, number of values that are not zero

    @classmethod
    def zeros(cls, xp: Any, shape: tuple[int, int], dtype: DTypeLike, wanted: SumKinds) -> Sums:
        """Zeros, in arrays of NumPy or CuPy (`xp`)."""
        whole = is_integer(dtype)
        kind = np.int64 if whole else np.float64

        def array(needed: bool, kind: type) -> Any:
            return xp.zeros(shape, dtype=kind) if needed else None

        return cls(
            whole,
            array(wanted.sums, kind),
            array(wanted.sums and not whole, kind),
            array(wanted.squares, kind),
            array(wanted.squares and not whole, kind),
            array(wanted.nonzero, np.int64),
        )

    def map(self, change: Callable[[Any], Any]) -> Sums:
        """Sums whose arrays, other than None, are changed by a function."""
        parts = (self.sums, self.errors, self.squares, self.square_errors, self.nonzero)
        return Sums(self.whole, *(None if part is None else change(part) for part in parts))

    def add(self, groups: Any, part: Sums) -> None:
        """Add the sums of other cells: ``part`` has one row for each of the distinct `groups`."""
        if self.nonzero is not None:
            self.nonzero[groups] += part.nonzero
        for name, low in (("sums", "errors"), ("squares", "square_errors")):
            own, own_low = getattr(self, name), getattr(self, low)
            if own is None:
                continue
            if own_low is None:
                own[groups] += getattr(part, name)
                continue
            value, error = getattr(part, name), getattr(part, low)
            if isinstance(own, np.ndarray):
                _add_pairs(value, error, groups, own, own_low)
                continue
            with np.errstate(all="ignore"):
                total, rest = pair_sum(own[groups], own_low[groups], value, error)
                # A sum that is not finite has no error: keep what float64 gives.
                finite = np.isfinite(total)
                own[groups] = np.where(finite, total, own[groups] + value)
                own_low[groups] = np.where(finite, rest, 0.0)


def is_integer(dtype: DTypeLike) -> bool:
    """Whether values of a type are summed as integers (integers and bool)."""
    return np.dtype(dtype).kind in "iub"


def zeros(shape: tuple[int, int], dtype: DTypeLike, wanted: SumKinds) -> Sums:
    """Zero sums of values of a type."""
    return Sums.zeros(np, shape, dtype, wanted)


def check_range(x: Any, n_values: int, *, squares: bool = False) -> None:
    """Refuse integers of which `n_values` in one sum, or their squares, may overflow int64."""
    if not is_integer(x.dtype) or x.dtype.itemsize < 4:
        return
    values = x.data if hasattr(x, "indptr") else x
    if not values.size:
        return
    max_abs = max(int(values.max()), -int(values.min()))
    if (max_abs**2 if squares else max_abs) * max(1, n_values) >= 2**63:
        sums = "sums of their squares" if squares else "sums"
        raise InputError(
            f"X holds integers up to {max_abs:,}, whose {sums} over {n_values:,} values do not fit "
            "64 bits: convert X to float64"
        )


def add(
    x: Block,
    codes: NDArray[np.integer],
    into: Sums,
    columns: NDArray[np.integer] | None = None,
    *,
    positive: bool = False,
) -> None:
    """Add the rows of a block to the sums of their groups, in place.

    `columns` are those of `into` for each gene, negative for none. If `positive`, only values above
    zero count as nonzero. Threads may add to the same arrays if they share no code.
    """
    rows = np.flatnonzero(codes >= 0)
    # Sorted by group, cells in their order, so that the sums of a group stay in the cache.
    rows = rows[np.argsort(codes[rows], kind="stable")]
    columns = None if columns is None else columns.astype(np.int64)
    values = as_numba_dtype(stored_values(x))
    exact = into.whole or values.dtype.char in EXACT_SQUARES
    where = rows, codes[rows].astype(np.int64), columns
    empty, no_errors = (_NO_INTS, None) if into.whole else (_NO_FLOATS, _NO_FLOATS)
    sums = [
        default if array is None else array
        for array, default in (
            *((into.sums, empty), (into.errors, no_errors)),
            *((into.squares, empty), (into.square_errors, no_errors)),
            (into.nonzero, _NO_INTS),
        )
    ]
    _add_rows(values, *gene_rows(x), *where, exact, positive, *sums)


def group_sums(x: Any, codes: NDArray[np.integer], wanted: SumKinds) -> tuple[Ints, Sums]:
    """Sorted groups that occur in a block and their sums; arguments as in :func:`add`."""
    groups, local = local_groups(codes, x.shape[0])
    sums = zeros((groups.size, x.shape[1]), x.dtype, wanted)
    add(x, local, sums)
    return groups, sums


def other_group_sums(total: Sums) -> Sums:
    """Sums over all other groups, for each group.

    Those of floats are not the total less the group, which is mostly rounding error if one group
    dominates: they are summed from the first and from the last group, with their errors.
    """
    nonzero = _others_of_integers(total.nonzero)
    if total.whole:
        sums, squares = _others_of_integers(total.sums), _others_of_integers(total.squares)
        return Sums(total.whole, sums, None, squares, None, nonzero)
    pairs = _others_of_pairs(total.sums, total.errors)
    square_pairs = _others_of_pairs(total.squares, total.square_errors)
    return Sums(total.whole, *pairs, *square_pairs, nonzero)


def _others_of_integers(array: Ints | None) -> Ints | None:
    return None if array is None else array.sum(axis=0) - array


def _others_of_pairs(
    high: Floats | None, low: Floats | None
) -> tuple[Floats | None, Floats | None]:
    if high is None or low is None:
        return None, None
    others, other_errors = np.zeros(high.shape), np.zeros(low.shape)
    for order in (range(len(high)), reversed(range(len(high)))):
        so_far = np.zeros(high.shape[1]), np.zeros(high.shape[1])
        for group in order:
            pair = pair_sum(others[group], other_errors[group], *so_far)
            others[group], other_errors[group] = pair
            so_far = pair_sum(*so_far, high[group], low[group])
    return others, other_errors


def mean_var(total: Sums, n: Ints, dof: int, mean: Any, var: Any) -> None:
    """Means and variances (divisor n - dof, NaN where that is not above zero) from sums of n
    values; `mean` and `var` may share the memory of ``total``, which is overwritten then.
    """
    arrays = (total.sums, total.errors, total.squares, total.square_errors, mean, var)
    given = (_NO_FLOATS if array is None else array for array in arrays)
    _mean_var(*given, np.broadcast_to(n, total.sums.shape).astype(np.float64), float(dof))


def as_numba_dtype(values: Array) -> Array:
    """The same numbers in a type that Numba supports."""
    if values.dtype == bool:
        return values.view(np.uint8)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    return values.astype(np.float64) if values.dtype == np.longdouble else values


# Each cell has one loop per kind of sum: its values stay in the L1 cache, and loops without
# branches for sums that were not requested are ten times as fast as one loop for all.


@njit(nogil=True, cache=True)
def _add_rows(
    values: Array,
    indices: Array | None,
    indptr: Ints | None,
    rows: Ints,
    codes: Ints,
    columns: Ints | None,
    exact: bool,
    positive: bool,
    sums: Array,
    errors: Floats | None,
    squares: Array,
    square_errors: Floats | None,
    nonzero: Ints,
) -> None:
    for i in range(rows.size):
        code = codes[i]
        of_row, genes = row_of(values, indices, indptr, rows[i])
        if sums.size:
            _add_terms(of_row, genes, columns, False, True, code, sums, errors)
        if squares.size:
            _add_terms(of_row, genes, columns, True, exact, code, squares, square_errors)
        if nonzero.size:
            out = nonzero[code]
            for k in range(of_row.size):
                to = _column_at(columns, gene_at(genes, k))
                if to >= 0:
                    out[np.uint64(to)] += of_row[k] > 0 if positive else of_row[k] != 0


@njit(nogil=True, cache=True)
def _column_at(columns: Ints | None, gene: Any) -> np.int64:
    return np.int64(gene) if columns is None else columns[gene]


@njit(nogil=True, cache=True)
def _add_terms(
    values: Array,
    genes: Array | None,
    columns: Ints | None,
    squared: bool,
    exact: bool,
    code: int,
    high: Array,
    low: Floats | None,
) -> None:
    # Whole arrays and a row of them: for a row or None, Numba would compile both.
    for k in range(values.size):
        to = _column_at(columns, gene_at(genes, k))
        v = high.dtype.type(values[k])
        # A zero changes no pair. Without columns no branch, so that dense rows are vectorised.
        if to >= 0 and (columns is None or low is None or v != 0):
            term = v * v if squared else v
            error = square_error(v, term) if squared and not exact else 0.0
            _add_term(term, error, (np.uint64(code), np.uint64(to)), high, low)


@njit(nogil=True, cache=True)
def _add_term(term: Any, error: float, at: Any, high: Array, low: Floats | None) -> None:
    if low is None:
        high[at] += term
    else:
        high[at], low[at] = _finite_pair_sum(high[at], low[at], term, error)


@njit(nogil=True, cache=True)
def _finite_pair_sum(old: float, low: float, value: float, error: float) -> tuple[float, float]:
    # Without a branch, so that the compiler vectorises loops over dense rows.
    total, rest = pair_sum(old, low, value, error)
    finite = abs(total) < np.inf
    # A sum that is not finite has no error.
    return (total if finite else old + value), (rest if finite else 0.0)


@njit(nogil=True, cache=True)
def _add_pairs(values: Floats, errors: Floats, groups: Ints, sums: Floats, low: Floats) -> None:
    for i in range(groups.size):
        for gene in range(values.shape[1]):
            _add_term(values[i, gene], errors[i, gene], (groups[i], gene), sums, low)


# With NumPy's division, which allows zero.
@njit(nogil=True, cache=True, error_model="numpy")
def _mean_var(
    sums: Array,
    errors: Floats,
    squares: Array,
    square_errors: Floats,
    mean: Floats,
    var: Floats,
    sizes: Floats,
    dof: float,
) -> None:
    for i in range(sums.shape[0]):
        for j in range(sums.shape[1]):
            n, total = sizes[i, j], np.float64(sums[i, j])
            if var.size:
                square = np.float64(squares[i, j])
                if errors.size:
                    low, square_low = errors[i, j], square_errors[i, j]
                else:
                    # An integer of 54 bits or more needs two float64.
                    low = np.float64(sums[i, j] - np.int64(total))
                    square_low = np.float64(squares[i, j] - np.int64(square))
                deviations = squared_deviations(total, low, square, square_low, n)
                if deviations <= n * CONSTANT * square:
                    deviations = 0.0
                var[i, j] = deviations / (n - dof) if n > dof else np.nan
            if mean.size:
                mean[i, j] = total / n
