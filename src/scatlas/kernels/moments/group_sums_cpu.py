"""Sums, sums of squares and nonzero values per group of cells and gene, added in place (Numba).

All blocks are added to one set of arrays, so that memory does not depend on the number of blocks.
(`moments_cpu` has a partial result of 40 bytes per group and gene for each block, which suits a few
groups and not 10,000.) Sums of integers are exact int64. Float sums carry their rounding error, and
the cells of a group are added in their order: the result depends neither on the blocks nor on the
number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse, row_offsets
from scatlas.errors import InputError
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.moments_cpu import (
    CONSTANT,
    EXACT_SQUARES,
    local_groups,
    pair_sum,
    square_error,
    squared_deviations,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

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
    """Sums of the rows of a matrix per group (or row) and gene (or group of genes).

    Arrays ``[n_groups, n_genes]`` of sums that were not requested are None, as are the rounding
    errors of integers.
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

    def at(self, rows: slice) -> Sums:
        """Sums of some rows: views of these arrays."""
        parts = (self.sums, self.errors, self.squares, self.square_errors, self.nonzero)
        return Sums(self.whole, *(None if part is None else part[rows] for part in parts))

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
    values = x.data if hasattr(x, "indptr") else x
    if not is_integer(values.dtype) or values.dtype.itemsize < 4 or not values.size:
        return
    max_abs = max(int(values.max()), -int(values.min()))
    if (max_abs**2 if squares else max_abs) * max(1, n_values) >= 2**63:
        sums = "sums of their squares" if squares else "sums"
        msg = (
            f"X holds integers up to {max_abs:,}, whose {sums} over {n_values:,} values do not fit "
            "64 bits: convert X to float64"
        )
        raise InputError(msg)


def add(
    x: Block, codes: NDArray[np.integer], into: Sums, columns: NDArray[np.integer] | None = None
) -> None:
    """Add the rows of a block to the sums of their groups, in place.

    `columns` are those of `into` for each gene, negative for genes that are left out; None: one per
    gene. Threads may add to the same arrays if they share no code.
    """
    rows = np.flatnonzero(codes >= 0)
    # Sorted by group, cells in their order, so that the sums of a group stay in the cache.
    rows = rows[np.argsort(codes[rows], kind="stable")]
    columns = np.arange(x.shape[1], dtype=np.int64) if columns is None else columns.astype(np.int64)
    where: tuple[Any, ...] = rows, codes[rows].astype(np.int64), columns
    values = as_numba_dtype(x.data if is_sparse(x) else np.asarray(x))
    arrays = (into.sums, into.errors, into.squares, into.square_errors)
    if into.whole:
        sums = tuple(_NO_INTS if array is None else array for array in arrays[::2])
    else:
        sums = tuple(_NO_FLOATS if array is None else array for array in arrays)
        where = *where, values.dtype.char in EXACT_SQUARES
    nonzero = _NO_INTS if into.nonzero is None else into.nonzero
    if is_sparse(x):
        indptr = row_offsets(x)
        kernel = _add_integers_csr if into.whole else _add_floats_csr
        kernel(values, x.indices, indptr, *where, *sums, nonzero)
    else:
        kernel = _add_integers_dense if into.whole else _add_floats_dense
        kernel(values, *where, *sums, nonzero)


def group_sums(x: Any, codes: NDArray[np.integer], wanted: SumKinds) -> tuple[Ints, Sums]:
    """Sorted groups that occur in a block and their sums; arguments as in :func:`add`."""
    groups, local = local_groups(codes, x.shape[0])
    sums = zeros((groups.size, x.shape[1]), x.dtype, wanted)
    add(x, local, sums)
    return groups, sums


def mean_var(total: Sums, n: Ints, dof: int, mean: Any, var: Any) -> None:
    """Means and variances from sums of n values (:func:`~.moments_cpu.means_and_deviations`).

    `n` is ``[rows, 1]`` or ``[1, columns]``. The divisor of variances is n - dof; they are NaN
    where that is not above zero. `mean` and `var` are filled unless None. They may share the memory
    of ``total.sums`` and ``total.squares``, which are overwritten then.
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
def _add_integers_csr(
    data: Array,
    indices: Array,
    indptr: Ints,
    rows: Ints,
    codes: Ints,
    columns: Ints,
    sums: Ints,
    squares: Ints,
    nonzero: Ints,
) -> None:
    for i in range(rows.size):
        lo, hi, code = indptr[rows[i]], indptr[rows[i] + 1], codes[i]
        if sums.size:
            out = sums[code]
            for at in range(lo, hi):
                to = columns[indices[at]]
                if to >= 0:
                    out[to] += np.int64(data[at])
        if squares.size:
            out = squares[code]
            for at in range(lo, hi):
                to, v = columns[indices[at]], np.int64(data[at])
                if to >= 0:
                    out[to] += v * v
        if nonzero.size:
            out = nonzero[code]
            for at in range(lo, hi):
                to = columns[indices[at]]
                if to >= 0:
                    out[to] += data[at] != 0


@njit(nogil=True, cache=True)
def _add_integers_dense(
    x: Array, rows: Ints, codes: Ints, columns: Ints, sums: Ints, squares: Ints, nonzero: Ints
) -> None:
    for i in range(rows.size):
        row, code = rows[i], codes[i]
        if sums.size:
            out = sums[code]
            for gene in range(columns.size):
                if columns[gene] >= 0:
                    out[columns[gene]] += np.int64(x[row, gene])
        if squares.size:
            out = squares[code]
            for gene in range(columns.size):
                if columns[gene] >= 0:
                    v = np.int64(x[row, gene])
                    out[columns[gene]] += v * v
        if nonzero.size:
            out = nonzero[code]
            for gene in range(columns.size):
                if columns[gene] >= 0:
                    out[columns[gene]] += x[row, gene] != 0


@njit(nogil=True, cache=True)
def _finite_pair_sum(old: float, low: float, value: float, error: float) -> tuple[float, float]:
    total, rest = pair_sum(old, low, value, error)
    if np.isfinite(total):
        return total, rest
    # A sum that is not finite has no error.
    return old + value, 0.0


@njit(nogil=True, cache=True)
def _add_pairs(values: Floats, errors: Floats, groups: Ints, sums: Floats, low: Floats) -> None:
    for i in range(groups.size):
        group = groups[i]
        for gene in range(values.shape[1]):
            sums[group, gene], low[group, gene] = _finite_pair_sum(
                sums[group, gene], low[group, gene], values[i, gene], errors[i, gene]
            )


@njit(nogil=True, cache=True)
def _add_floats_csr(
    data: Array,
    indices: Array,
    indptr: Ints,
    rows: Ints,
    codes: Ints,
    columns: Ints,
    exact: bool,
    sums: Floats,
    errors: Floats,
    squares: Floats,
    square_errors: Floats,
    nonzero: Ints,
) -> None:
    for i in range(rows.size):
        lo, hi, code = indptr[rows[i]], indptr[rows[i] + 1], codes[i]
        if sums.size:
            high, low = sums[code], errors[code]
            for at in range(lo, hi):
                column, v = columns[np.uint64(indices[at])], np.float64(data[at])
                if column >= 0 and v != 0.0:
                    to = np.uint64(column)
                    high[to], low[to] = _finite_pair_sum(high[to], low[to], v, 0.0)
        if squares.size:
            high, low = squares[code], square_errors[code]
            for at in range(lo, hi):
                column, v = columns[np.uint64(indices[at])], np.float64(data[at])
                if column >= 0 and v != 0.0:
                    to = np.uint64(column)
                    square = v * v
                    error = 0.0 if exact else square_error(v, square)
                    high[to], low[to] = _finite_pair_sum(high[to], low[to], square, error)
        if nonzero.size:
            out = nonzero[code]
            for at in range(lo, hi):
                column = columns[np.uint64(indices[at])]
                if column >= 0:
                    out[np.uint64(column)] += data[at] != 0


# Without branches, so that the compiler vectorises the loops: adding 0 changes no pair.


@njit(nogil=True, cache=True)
def _add_row(values: Array, high: Floats, low: Floats) -> None:
    for gene in range(values.size):
        old, v = high[gene], np.float64(values[gene])
        total, rest = pair_sum(old, low[gene], v, 0.0)
        finite = abs(total) < np.inf
        high[gene] = total if finite else old + v
        low[gene] = rest if finite else 0.0


@njit(nogil=True, cache=True)
def _add_squares_of_row(values: Array, exact: bool, high: Floats, low: Floats) -> None:
    for gene in range(values.size):
        old, v = high[gene], np.float64(values[gene])
        square = v * v
        error = 0.0 if exact else square_error(v, square)
        total, rest = pair_sum(old, low[gene], square, error)
        finite = abs(total) < np.inf
        high[gene] = total if finite else old + square
        low[gene] = rest if finite else 0.0


@njit(nogil=True, cache=True)
def _add_floats_dense(
    x: Array,
    rows: Ints,
    codes: Ints,
    columns: Ints,
    exact: bool,
    sums: Floats,
    errors: Floats,
    squares: Floats,
    square_errors: Floats,
    nonzero: Ints,
) -> None:
    in_order = (columns == np.arange(columns.size)).all()
    for i in range(rows.size):
        row, code = rows[i], codes[i]
        if sums.size and in_order:
            _add_row(x[row], sums[code], errors[code])
        elif sums.size:
            high, low = sums[code], errors[code]
            for gene in range(columns.size):
                to, v = columns[gene], np.float64(x[row, gene])
                if to >= 0 and v != 0.0:
                    high[to], low[to] = _finite_pair_sum(high[to], low[to], v, 0.0)
        if squares.size and in_order:
            _add_squares_of_row(x[row], exact, squares[code], square_errors[code])
        elif squares.size:
            high, low = squares[code], square_errors[code]
            for gene in range(columns.size):
                to, v = columns[gene], np.float64(x[row, gene])
                if to >= 0 and v != 0.0:
                    square = v * v
                    error = 0.0 if exact else square_error(v, square)
                    high[to], low[to] = _finite_pair_sum(high[to], low[to], square, error)
        if nonzero.size and in_order:
            out = nonzero[code]
            for gene in range(columns.size):
                out[gene] += x[row, gene] != 0
        elif nonzero.size:
            out = nonzero[code]
            for gene in range(columns.size):
                if columns[gene] >= 0:
                    out[columns[gene]] += x[row, gene] != 0


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
