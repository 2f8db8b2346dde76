"""Random samples of the counts of each cell, or of all cells together."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, columns, elements
from scatlas._util.numbers import as_numbers, whole_number
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

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
    """Draw a given number of counts at random, of each cell or of all cells together.

    All counts of a cell (of all cells) are drawn with the same probability. The random numbers of a
    cell depend on the seed and its row alone, so the result does not depend on blocks, threads, the
    order in which X stores its values, or the GPU. They differ from scanpy's, which starts every
    cell with the same numbers.

    Parameters
    ----------
    adata
        X holds counts (integers from 0 on), in memory or Dask, on the CPU or a GPU.
    counts_per_cell
        Counts to draw, one number for all cells or one per cell. Cells with at most that many
        counts stay as they are.
    total_counts
        Counts to draw from all cells together; X stays as it is if it has fewer. Give either this
        or `counts_per_cell`.
    random_state
        Seed, 0 to 2**64 - 1; None draws one.
    replace
        Draw with replacement.
    copy
        Return a changed copy and leave ``adata`` as it is.

    Returns
    -------
    None, or the copy, with a new X of the same kind and dtype, without explicit zeros if it is
    sparse. With `replace` a gene can get more counts than it had: small integer dtypes become wide
    enough for the largest number of counts drawn from a cell.

    Raises
    ------
    InputError
        `counts_per_cell` and `total_counts` are both given or both missing, one is negative, or
        there is not one number per cell; X holds values that are not counts; a cell has 2**32
        counts or more. Blocks of a Dask X are checked when they are computed.

    References
    ----------
    Semantics: scanpy 1.11.5, ``preprocessing/_simple.py``. The random numbers:
    :mod:`scatlas.kernels.counts.downsample_cpu`.
    """
    if (counts_per_cell is None) == (total_counts is None):
        raise InputError("give either counts_per_cell or total_counts")
    if random_state is None:
        seed = secrets.randbits(64)
    else:
        seed = whole_number(random_state, "random_state", most=2**64 - 1)
    x = elements.as_rows(elements.get_matrix(adata))
    if total_counts is None:
        wanted = columns.in_order(counts_per_cell, adata.obs_names, "counts_per_cell")
        result = _draw(x, _parse_targets(wanted, adata.n_obs), seed, replace, whole=False)
    else:
        totals = np.concatenate(list(blocks.stream(x, _block_totals)))
        target = whole_number(total_counts, "total_counts")
        if totals.sum() < target:
            result = x
        else:
            rng = np.random.default_rng(seed)
            targets = (_draw_with_replacement if replace else _draw_without_replacement)(
                totals, target, rng
            )
            result = _draw(x, targets, seed, replace, whole=True)
    if result is x:
        result = adata.X
    elif getattr(adata.X, "format", None) == "csc":
        result = result.tocsc()
    adata = adata.copy() if copy else adata
    elements.copy_if_view(adata)
    elements.set_matrix(adata, result)
    return adata if copy else None


def _parse_targets(wanted: NDArray[Any], n_cells: int) -> NDArray[np.int64]:
    wanted = as_numbers(wanted, "counts_per_cell")
    if wanted.ndim == 0:
        wanted = np.full(n_cells, wanted)
    if wanted.shape != (n_cells,):
        raise InputError(f"counts_per_cell has shape {wanted.shape}, but there are {n_cells} cells")
    targets = wanted.astype(np.int64)
    if (targets != wanted).any() or (targets < 0).any():
        raise InputError("counts_per_cell must be integers from 0 on")
    return targets


def _block_totals(block: Any) -> NDArray[np.int64]:
    from scatlas.kernels.counts.downsample_cpu import MAX_COUNTS

    if not kernels_for("counts.qc", block).holds_counts(block):
        msg = "downsample_counts needs counts, but X holds fractions, negative or missing values"
        raise InputError(msg)
    totals = kernels_for("counts.qc", block).row_sums(block)
    if (totals > MAX_COUNTS).any():
        msg = f"a cell has {totals.max():,.0f} counts, more than the maximum of {MAX_COUNTS:,}"
        raise InputError(msg)
    return totals.astype(np.int64)


def _draw(x: Any, targets: NDArray[np.int64], seed: int, replace: bool, *, whole: bool) -> Any:
    """Draw ``targets`` counts per cell of `x`; if `whole`, also of cells with at most that many."""
    dtype = np.dtype(x.dtype)
    if replace and dtype.kind in "iub":
        dtype = np.result_type(dtype, np.min_scalar_type(int(targets.max(initial=0))))
    draw = kernels_for("counts.downsample", x).draw_counts

    def draw_block(block: Any, cells: NDArray[np.int64], targets: NDArray[np.int64]) -> Any:
        few = _block_totals(block) <= targets
        targets = targets if whole and replace else np.where(few, -1, targets)
        return draw(block, cells, targets, seed=seed, replace=replace, dtype=dtype)

    rows = np.arange(x.shape[0]), targets
    return blocks.apply(draw_block, x, *rows, dtype=dtype)


def _draw_without_replacement(
    totals: NDArray[np.int64], target: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Counts per cell of a draw of `target` counts: binomial draws per cell, and one of the
    difference. (NumPy's multivariate hypergeometric draw is limited to 10**9 counts.)
    """
    total = int(totals.sum())
    taken = rng.binomial(totals, target / total if total else 0.0)
    surplus = int(taken.sum()) - target
    if surplus > 0:
        return taken - _draw_few(taken, surplus, rng)
    return taken + _draw_few(totals - taken, -surplus, rng)


def _draw_few(counts: NDArray[np.int64], n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Counts per cell of a draw of `n` counts from all, for small `n`: memory grows with it."""
    positions = rng.choice(int(counts.sum()), n, replace=False, shuffle=False)
    cells = np.searchsorted(np.cumsum(counts), positions, side="right")
    return np.bincount(cells, minlength=counts.size)


def _draw_with_replacement(
    totals: NDArray[np.int64], target: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The same with replacement: binomial draws divide `target` between halves of the cells."""
    n = totals.size
    levels = [np.pad(totals, (0, 2 ** max(n - 1, 0).bit_length() - n))]
    while levels[-1].size > 1:
        levels.append(levels[-1].reshape(-1, 2).sum(axis=1))
    shares = np.array([target])
    for level in levels[-2::-1]:
        left, pairs = level[::2], level.reshape(-1, 2).sum(axis=1)
        first = rng.binomial(shares, left / np.maximum(pairs, 1))
        shares = np.column_stack([first, shares - first]).reshape(-1)
    return shares[:n]
