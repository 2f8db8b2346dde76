"""Ranks of genes over batches, and their moments by batch, for the flavours that rank counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments


def mask_codes(
    codes: NDArray[np.int64] | None, cell_mask: NDArray[np.bool_] | None
) -> NDArray[np.int64] | None:
    """Batch of each cell, -1 for cells outside the mask."""
    if cell_mask is None or cell_mask.all():
        return codes
    return np.where(cell_mask, 0 if codes is None else codes, -1)


def pool_groups(moments: Moments) -> Moments:
    """Moments of the cells of all groups together."""
    from scatlas.kernels.moments.moments_cpu import Moments, merge

    one = np.zeros(1, dtype=np.int64)
    parts = [
        Moments(one, moments.n_cells[[at]], moments.sums[[at]], moments.expressed[[at]])
        for at in range(moments.groups.size)
    ]
    return merge(parts)


def select_groups(moments: Moments, mask: NDArray[np.bool_]) -> Moments:
    """Moments of some of the groups, bool ``[n_groups]``."""
    from scatlas.kernels.moments.moments_cpu import Moments

    if mask.all():
        return moments
    return Moments(
        moments.groups[mask], moments.n_cells[mask], moments.sums[mask], moments.expressed[mask]
    )


def median_rank(
    norm: NDArray[np.float64], ranked: NDArray[np.bool_], n_top_genes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Median rank of each gene over the batches that select it, and the number of these batches.

    ``norm`` is ``[n_batches, n_genes]``, NaN for genes that are not ``ranked``.
    """
    order = np.argsort(-norm, axis=1, kind="stable")
    rank = np.empty(norm.shape, dtype=np.float32)
    np.put_along_axis(rank, order, np.arange(norm.shape[1], dtype=np.float32)[None], axis=1)
    rank[(rank >= n_top_genes) | ~ranked] = np.nan
    n_batches = np.count_nonzero(~np.isnan(rank), axis=0)
    rank.sort(axis=0)  # NaN last
    last = np.maximum(n_batches - 1, 0)[None]
    low = np.take_along_axis(rank, last // 2, axis=0)
    high = np.take_along_axis(rank, (last + 1) // 2, axis=0)
    return ((low + high) / np.float32(2))[0], n_batches.astype(np.int64)


def select_top(
    keys: Sequence[NDArray[np.number]], ranked: NDArray[np.bool_], n_top_genes: int
) -> NDArray[np.bool_]:
    """Mask of the first ranked genes by several keys, the last key first; ties keep their order."""
    order = np.lexsort(keys)
    selected = np.zeros(ranked.size, dtype=bool)
    selected[order[ranked[order]][:n_top_genes]] = True
    return selected
