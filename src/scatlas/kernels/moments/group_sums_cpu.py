"""Sums, sums of squares and nonzero values per group of cells and gene, added in place (Numba).

One set of arrays takes block after block, so that memory is that of the result whatever the number
of blocks: `moments_cpu` makes a partial result of 40 bytes a group and gene for each block, which
suits a few groups and not 10,000. Sums of integers are exact 64-bit integers. Sums of reals carry
their rounding error, and the cells of a group are added in their order: they depend neither on the
blocks nor on how many threads share the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from scatlas.errors import InputError
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.moments_cpu import (
    CONSTANT,
    EXACT_SQUARES,
    deviations_of,
    local_groups,
    pair_sum,
    square_error,
)

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

_NONE = np.zeros((0, 0))
_NO_COUNTS = np.zeros((0, 0), dtype=np.int64)


class Wanted(NamedTuple):
    """What is added up."""

    sums: bool
    squares: bool
    nonzero: bool

    def n_arrays(self, dtype: DTypeLike) -> int:
        """Arrays of 8 bytes a group and gene that this takes for values of a type."""
        pairs = 1 if is_whole(dtype) else 2
        return pairs * (self.sums + self.squares) + self.nonzero


@dataclass
class Sums:
    """What the rows of a matrix add up to, by group (or row) and gene (or group of genes).

    Attributes
    ----------
    whole
        Whether values are added as integers.
    sums
        ``[n_groups, n_genes]``, int64 for integers and bool, else float64.
    errors
        float64, what rounding has left out of ``sums``; None for integers.
    squares, square_errors
        The same of the squares.
    nonzero
        int64, values that are not zero.

    What is not wanted is None.
    """

    whole: bool
    sums: Any
    errors: Any
    squares: Any
    square_errors: Any
    nonzero: Any

    @classmethod
    def zeros(cls, xp: Any, shape: tuple[int, int], dtype: DTypeLike, wanted: Wanted) -> Sums:
        """Nothing added yet, in arrays of NumPy or CuPy (`xp`)."""
        whole = is_whole(dtype)
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
        """Add what other cells of some groups add up to, a row a group; no group stands twice."""
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
            with np.errstate(all="ignore"):
                total, rest = pair_sum(own[groups], own_low[groups], value, error)
                # As float64 has it where a sum is not finite.
                finite = np.isfinite(total)
                own[groups] = np.where(finite, total, own[groups] + value)
                own_low[groups] = np.where(finite, rest, 0.0)


def is_whole(dtype: DTypeLike) -> bool:
    """Whether values of a type are added as integers."""
    return np.dtype(dtype).kind in "iub"


def zeros(shape: tuple[int, int], dtype: DTypeLike, wanted: Wanted) -> Sums:
    """Sums of values of a type with nothing added yet."""
    return Sums.zeros(np, shape, dtype, wanted)


def check_range(x: Any, n_values: int, *, squares: bool = False) -> None:
    """Refuse integers whose sums may not fit 64 bits, of a block on the CPU or the GPU.

    Parameters
    ----------
    x
        Dense or CSR block.
    n_values
        Most values of one sum.
    squares
        Their squares are added up as well.

    Raises
    ------
    InputError
        With the mend.
    """
    values = x.data if hasattr(x, "indptr") else x
    if not is_whole(values.dtype) or values.dtype.itemsize < 4 or not values.size:
        return
    most = max(int(values.max()), -int(values.min()))
    if (most * most if squares else most) * max(1, n_values) >= 2**63:
        of = "sums of their squares" if squares else "sums"
        msg = (
            f"X holds integers up to {most:,}, whose {of} over {n_values:,} values do not fit 64 "
            "bits: convert X to float64"
        )
        raise InputError(msg)


def add(
    x: NDArray | sparse.csr_matrix | sparse.csr_array,
    codes: NDArray[np.integer],
    into: Sums,
    columns: NDArray[np.integer] | None = None,
) -> None:
    """Add the rows of a block where their codes say.

    Parameters
    ----------
    x
        Block ``[n, n_genes]``, dense or CSR without duplicated entries, of any real dtype and index
        width.
    codes
        Row of `into` for each row of the block, integer ``[n]``; rows with a negative code are left
        out.
    into
        Changed. Threads may add to the same arrays at once if they share no code.
    columns
        Column of `into` for each gene, integer ``[n_genes]``, likewise; its own when left out.
    """
    rows = np.flatnonzero(codes >= 0)
    # Cells of a group follow each other, in their order: its sums stay in the cache.
    rows = rows[np.argsort(codes[rows], kind="stable")]
    columns = np.arange(x.shape[1], dtype=np.int64) if columns is None else columns.astype(np.int64)
    where = rows, codes[rows].astype(np.int64), columns
    values = _plain(x.data if sparse.issparse(x) else np.asarray(x))
    arrays = (into.sums, into.errors, into.squares, into.square_errors)
    if into.whole:
        sums, _, squares, _ = (_NO_COUNTS if array is None else array for array in arrays)
        sums = sums, squares
    else:
        sums = tuple(_NONE if array is None else array for array in arrays)
        where = *where, values.dtype.char in EXACT_SQUARES
    nonzero = _NO_COUNTS if into.nonzero is None else into.nonzero
    if sparse.issparse(x):
        indptr = x.indptr.astype(np.int64, copy=False)
        kernel = _add_whole_csr if into.whole else _add_real_csr
        kernel(values, x.indices, indptr, *where, *sums, nonzero)
    else:
        kernel = _add_whole_dense if into.whole else _add_real_dense
        kernel(values, *where, *sums, nonzero)


def group_sums(
    x: Any, codes: NDArray[np.integer], wanted: Wanted
) -> tuple[NDArray[np.int64], Sums]:
    """Groups that occur in a block, sorted, and the sums of each; arguments as of :func:`add`."""
    groups, local = local_groups(codes, x.shape[0])
    sums = zeros((groups.size, x.shape[1]), x.dtype, wanted)
    add(x, local, sums)
    return groups, sums


def mean_var(total: Sums, n: NDArray[np.int64], dof: int, mean: Any, var: Any) -> None:
    """Means and variances of sums, as :func:`scatlas.kernels.moments.moments_cpu.mean_deviations`.

    Parameters
    ----------
    total
        Sums ``[rows, columns]``.
    n
        How many values each is of, ``[rows, 1]`` or ``[1, columns]``.
    dof
        Variances are divided by n - dof, and NaN where that is not above zero.
    mean, var
        float64 ``[rows, columns]`` to be filled, or None. They may be the memory of ``total.sums``
        and ``total.squares``, which are lost then.
    """
    arrays = (total.sums, total.errors, total.squares, total.square_errors, mean, var)
    given = (_NONE if array is None else array for array in arrays)
    _mean_var(*given, np.broadcast_to(n, total.sums.shape).astype(np.float64), float(dof))


def _plain(values: NDArray) -> NDArray:
    """Values in a type that Numba compiles for, the same numbers."""
    if values.dtype == bool:
        return values.view(np.uint8)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    return values.astype(np.float64) if values.dtype == np.longdouble else values


# One quantity after another for each cell: its values stay in the fastest cache, and loops without
# calls or branches for what is not wanted are ten times as quick as one loop for all.


@njit(nogil=True, cache=True)
def _add_whole_csr(data, indices, indptr, rows, codes, columns, sums, squares, nonzero):
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
def _add_whole_dense(x, rows, codes, columns, sums, squares, nonzero):
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
def _added(old, low, value, error):
    total, rest = pair_sum(old, low, value, error)
    if np.isfinite(total):
        return total, rest
    # Where a sum is not finite, its error is not a number.
    return old + value, 0.0


@njit(nogil=True, cache=True)
def _add_real_csr(
    data, indices, indptr, rows, codes, columns, exact, sums, errors, squares, square_errors, count
):
    for i in range(rows.size):
        lo, hi, code = indptr[rows[i]], indptr[rows[i] + 1], codes[i]
        if sums.size:
            high, low = sums[code], errors[code]
            for at in range(lo, hi):
                to, v = columns[indices[at]], np.float64(data[at])
                if to >= 0 and v != 0.0:
                    high[to], low[to] = _added(high[to], low[to], v, 0.0)
        if squares.size:
            high, low = squares[code], square_errors[code]
            for at in range(lo, hi):
                to, v = columns[indices[at]], np.float64(data[at])
                if to >= 0 and v != 0.0:
                    square = v * v
                    error = 0.0 if exact else square_error(v, square)
                    high[to], low[to] = _added(high[to], low[to], square, error)
        if count.size:
            out = count[code]
            for at in range(lo, hi):
                to = columns[indices[at]]
                if to >= 0:
                    out[to] += data[at] != 0


@njit(nogil=True, cache=True)
def _add_real_dense(x, rows, codes, columns, exact, sums, errors, squares, square_errors, count):
    for i in range(rows.size):
        row, code = rows[i], codes[i]
        if sums.size:
            high, low = sums[code], errors[code]
            for gene in range(columns.size):
                to, v = columns[gene], np.float64(x[row, gene])
                if to >= 0 and v != 0.0:
                    high[to], low[to] = _added(high[to], low[to], v, 0.0)
        if squares.size:
            high, low = squares[code], square_errors[code]
            for gene in range(columns.size):
                to, v = columns[gene], np.float64(x[row, gene])
                if to >= 0 and v != 0.0:
                    square = v * v
                    error = 0.0 if exact else square_error(v, square)
                    high[to], low[to] = _added(high[to], low[to], square, error)
        if count.size:
            out = count[code]
            for gene in range(columns.size):
                if columns[gene] >= 0:
                    out[columns[gene]] += x[row, gene] != 0


# As NumPy divides: by zero, too.
@njit(nogil=True, cache=True, error_model="numpy")
def _mean_var(sums, errors, squares, square_errors, mean, var, sizes, dof):
    for i in range(sums.shape[0]):
        for j in range(sums.shape[1]):
            n, total = sizes[i, j], np.float64(sums[i, j])
            if var.size:
                square = np.float64(squares[i, j])
                if errors.size:
                    low, square_low = errors[i, j], square_errors[i, j]
                else:
                    # Integers of 54 bits and more need two float64.
                    low = np.float64(sums[i, j] - np.int64(total))
                    square_low = np.float64(squares[i, j] - np.int64(square))
                deviations = deviations_of(total, low, square, square_low, n)
                if deviations <= n * CONSTANT * square:
                    deviations = 0.0
                var[i, j] = deviations / (n - dof) if n > dof else np.nan
            if mean.size:
                mean[i, j] = total / n
