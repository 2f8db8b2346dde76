"""Counts drawn at random, so that cells, or all cells together, have fewer of them."""

from __future__ import annotations

import secrets
from operator import index as as_integer
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from anndata import AnnData
    from numpy.typing import NDArray


@blocks.passes(0, "lazy for a Dask X; 1 with total_counts, for the totals of the cells")
def downsample_counts(
    adata: AnnData,
    counts_per_cell: int | Collection[int] | None = None,
    total_counts: int | None = None,
    *,
    random_state: int | None = 0,
    replace: bool = False,
    copy: bool = False,
) -> AnnData | None:
    """Draw some of the counts at random, of each cell or of all cells together.

    Every count of a cell (of all cells) is as likely to be drawn as every other, and as many are
    drawn as asked for. The random numbers of a cell are its own, and follow from the seed and its
    row: what is drawn depends neither on blocks, threads or the order in which X stores its values,
    nor on the GPU. The numbers are not scanpy's, which starts every cell with the same ones.

    Parameters
    ----------
    adata
        Counts: whole numbers from 0 on; X in memory or Dask, on the CPU or a GPU.
    counts_per_cell
        Total that cells come down to, one for all or one per cell. Cells that have no more stay as
        they are.
    total_counts
        Total of all cells together; X stays as it is when that is less. Give this or
        `counts_per_cell`.
    random_state
        Seed, 0 to 2**64 - 1; None draws one.
    replace
        Draw with replacement.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy, with a new X of the same kind and type, without explicit zeros where it is
    sparse. With `replace`, where a gene can get more counts than it had, small integers become as
    wide as the most that are drawn from a cell.

    Raises
    ------
    InputError
        Not one of `counts_per_cell` and `total_counts` is given, or a negative one, or not one per
        cell; values that are no counts; a cell of 2**32 counts or more. Of a Dask X, those of the
        values may come when its blocks are computed.

    References
    ----------
    Semantics: scanpy 1.11.5, ``preprocessing/_simple.py``. The random numbers:
    :mod:`scatlas.kernels.counts.downsample_cpu`.
    """
    if (counts_per_cell is None) == (total_counts is None):
        raise InputError("give either counts_per_cell or total_counts")
    seed = _seed(random_state)
    x = elements.as_rows(elements.get_matrix(adata))
    if total_counts is None:
        drawn = _drawn(x, _per_cell(counts_per_cell, adata.n_obs), seed, replace, whole=False)
    else:
        totals = _totals(x)
        # Of a matrix of floats the sum is one, too.
        target = int(total_counts)
        if target != total_counts or target < 0:
            msg = f"total_counts={total_counts} must be a whole number from 0 on"
            raise InputError(msg)
        if totals.sum() < target:
            drawn = x
        else:
            rng = np.random.default_rng(seed)
            targets = (_with_replacement if replace else _without)(totals, target, rng)
            drawn = _drawn(x, targets, seed, replace, whole=True)
    if drawn is x:
        drawn = adata.X
    elif getattr(adata.X, "format", None) == "csc":
        drawn = drawn.tocsc()
    adata = adata.copy() if copy else adata
    elements.copy_if_view(adata)
    elements.set_matrix(adata, drawn)
    return adata if copy else None


def _seed(random_state: int | None) -> int:
    if random_state is None:
        return secrets.randbits(64)
    seed = as_integer(random_state)
    if not 0 <= seed < 2**64:
        msg = f"random_state={seed} must be from 0 to 2**64 - 1"
        raise InputError(msg)
    return seed


def _per_cell(counts_per_cell: Any, n_cells: int) -> NDArray[np.int64]:
    wanted = np.asarray(counts_per_cell)
    if wanted.ndim == 0:
        wanted = np.full(n_cells, wanted)
    if wanted.shape != (n_cells,):
        msg = f"counts_per_cell has shape {wanted.shape}, but there are {n_cells} cells"
        raise InputError(msg)
    targets = wanted.astype(np.int64)
    if (targets != wanted).any() or (targets < 0).any():
        raise InputError("counts_per_cell must be whole numbers from 0 on")
    return targets


def _checked_totals(block: Any) -> NDArray[np.int64]:
    """Total of each row of a block of counts."""
    from scatlas.kernels.counts.downsample_cpu import MAX_COUNTS

    if not kernels_for("moments.clipped_moments", block).holds_counts(block):
        msg = "downsample_counts needs counts, but X holds fractions, negative or missing values"
        raise InputError(msg)
    totals = kernels_for("counts.qc", block).row_sums(block)
    if (totals > MAX_COUNTS).any():
        msg = f"a cell has {totals.max():,.0f} counts, more than the {MAX_COUNTS:,} that can be"
        raise InputError(msg)
    return totals.astype(np.int64)


def _totals(x: Any) -> NDArray[np.int64]:
    return np.concatenate(list(blocks.stream(x, _checked_totals)))


def _drawn(x: Any, targets: NDArray[np.int64], seed: int, replace: bool, *, whole: bool) -> Any:
    """Draw ``targets`` counts per cell of `x`; `whole`: also of cells that have no more."""
    dtype = np.dtype(x.dtype)
    if replace and dtype.kind in "iub":
        dtype = np.result_type(dtype, np.min_scalar_type(int(targets.max(initial=0))))
    draw = kernels_for("counts.downsample", x).draw_counts

    def of_block(block: Any, cells: NDArray[np.int64], targets: NDArray[np.int64]) -> Any:
        few = _checked_totals(block) <= targets
        targets = targets if whole and replace else np.where(few, -1, targets)
        return draw(block, cells, targets, seed=seed, replace=replace, dtype=dtype)

    rows = np.arange(x.shape[0]), targets
    return blocks.apply(of_block, x, *rows, dtype=dtype)


def _without(totals: NDArray[np.int64], target: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of `target` counts, drawn from all without replacement, each cell gives.

    Each count is taken with the same probability first, and as many as these are too many or too
    few are given up or taken besides. (NumPy's hypergeometric numbers end at 10**9 counts.)
    """
    total = int(totals.sum())
    taken = rng.binomial(totals, target / total if total else 0.0)
    surplus = int(taken.sum()) - target
    if surplus > 0:
        return taken - _of_each(taken, surplus, rng)
    return taken + _of_each(totals - taken, -surplus, rng)


def _of_each(counts: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How many of `n` of all these counts, few in comparison, fall to each cell."""
    places = rng.choice(int(counts.sum()), n, replace=False, shuffle=False)
    cells = np.searchsorted(np.cumsum(counts), places, side="right")
    return np.bincount(cells, minlength=counts.size)


def _with_replacement(
    totals: NDArray[np.int64], target: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The same with replacement: shared among the halves of the cells, these among theirs, ..."""
    n = totals.size
    levels = [np.pad(totals, (0, 2 ** max(n - 1, 0).bit_length() - n))]
    while levels[-1].size > 1:
        levels.append(levels[-1].reshape(-1, 2).sum(axis=1))
    shares = np.array([target])
    for level in levels[-2::-1]:
        left, both = level[::2], level.reshape(-1, 2).sum(axis=1)
        first = rng.binomial(shares, left / np.maximum(both, 1))
        shares = np.column_stack([first, shares - first]).reshape(-1)
    return shares[:n]
