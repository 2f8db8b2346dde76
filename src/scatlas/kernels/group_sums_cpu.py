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
from scatlas.kernels.cached import njit
from scatlas.kernels.moments_cpu import (
    EXACT_SQUARES,
    add_pairs,
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

    def pairs(self, rows: slice) -> tuple[Any, Any, Any, Any]:
        """Sums and squares of some rows as pairs of float64: high, low, high, low.

        Integers of 54 bits and more need both parts.
        """
        return (
            *_pair(self.sums, self.errors, rows),
            *_pair(self.squares, self.square_errors, rows),
        )

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


def check_range(x: Any, n_cells: int, wanted: Wanted) -> None:
    """Refuse integers whose sums may not fit 64 bits, of a block on the CPU or the GPU.

    Parameters
    ----------
    x
        Dense or CSR block.
    n_cells
        Most cells of a group.
    wanted
        What is added up.

    Raises
    ------
    InputError
        With the mend.
    """
    values = x.data if hasattr(x, "indptr") else x
    if not is_whole(values.dtype) or values.dtype.itemsize < 4 or not values.size:
        return
    most = max(int(values.max()), -int(values.min()))
    if (most * most if wanted.squares else most) * max(1, n_cells) >= 2**63:
        of = "sums of their squares" if wanted.squares else "sums"
        msg = (
            f"X holds integers up to {most:,}, whose {of} over {n_cells:,} cells do not fit 64 "
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


def _pair(high: Any, low: Any, rows: slice) -> tuple[Any, Any]:
    if high is None:
        return None, None
    high = high[rows]
    if low is not None:
        return high, low[rows]
    rounded = high.astype(np.float64)
    return rounded, (high - rounded.astype(np.int64)).astype(np.float64)


def _plain(values: NDArray) -> NDArray:
    """Values in a type that Numba compiles for, the same numbers."""
    if values.dtype == bool:
        return values.view(np.uint8)
    if values.dtype == np.float16:
        return values.astype(np.float32)
    return values.astype(np.float64) if values.dtype == np.longdouble else values


@njit(nogil=True, cache=True)
def _add_whole(v, row, column, sums, squares, nonzero):
    if sums.size:
        sums[row, column] += v
    if squares.size:
        squares[row, column] += v * v
    if nonzero.size:
        nonzero[row, column] += v != 0


@njit(nogil=True, cache=True)
def _add_whole_csr(data, indices, indptr, rows, codes, columns, sums, squares, nonzero):
    for i in range(rows.size):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            column = columns[indices[at]]
            if column >= 0:
                _add_whole(np.int64(data[at]), codes[i], column, sums, squares, nonzero)


@njit(nogil=True, cache=True)
def _add_whole_dense(x, rows, codes, columns, sums, squares, nonzero):
    for i in range(rows.size):
        for gene in range(x.shape[1]):
            v = np.int64(x[rows[i], gene])
            if v != 0 and columns[gene] >= 0:
                _add_whole(v, codes[i], columns[gene], sums, squares, nonzero)


@njit(nogil=True, cache=True)
def _add_to(high, low, row, column, value, error):
    old = high[row, column]
    total, rest = add_pairs(old, low[row, column], value, error)
    # Where a sum is not finite, its error is not a number.
    finite = np.isfinite(total)
    high[row, column] = total if finite else old + value
    low[row, column] = rest if finite else 0.0


@njit(nogil=True, cache=True)
def _add_real(v, row, column, exact, sums, errors, squares, square_errors, nonzero):
    if v == 0.0:
        return
    if sums.size:
        _add_to(sums, errors, row, column, v, 0.0)
    if squares.size:
        square = v * v
        error = 0.0 if exact else square_error(v, square)
        _add_to(squares, square_errors, row, column, square, error)
    if nonzero.size:
        nonzero[row, column] += 1


@njit(nogil=True, cache=True)
def _add_real_csr(
    data,
    indices,
    indptr,
    rows,
    codes,
    columns,
    exact,
    sums,
    errors,
    squares,
    square_errors,
    nonzero,
):
    out = sums, errors, squares, square_errors, nonzero
    for i in range(rows.size):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            column = columns[indices[at]]
            if column >= 0:
                _add_real(np.float64(data[at]), codes[i], column, exact, *out)


@njit(nogil=True, cache=True)
def _add_real_dense(x, rows, codes, columns, exact, *out):
    for i in range(rows.size):
        for gene in range(x.shape[1]):
            if columns[gene] >= 0:
                _add_real(np.float64(x[rows[i], gene]), codes[i], columns[gene], exact, *out)
