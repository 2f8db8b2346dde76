"""Wilcoxon rank sums over all row blocks: some genes at a time, as many as the memory holds."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.compute.memory import memory_budget
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError, TooLargeError
from scatlas.kernels import kernels_for
from scatlas.kernels.ranking.rank_sums_cpu import MAX_CELLS, standard_scores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from scatlas.tl._rank_groups import Groups

logger = logging.getLogger(__name__)

# Cells for which the normal approximation is poor, as scanpy hints.
_FEW = 25


def wilcoxon(
    x: Any,
    groups: Groups,
    genes: NDArray[np.int64] | None,
    nonzero: NDArray[np.int64],
    *,
    tie_correct: bool,
) -> Iterator[tuple[int, Any, Any]]:
    """Rank sum test of each group but the reference: yields its number, standard scores and
    two-sided p-values of the genes (None: all), 0 and 1 for constant ones; the matrix has no NaN.

    ``nonzero`` is as in :class:`scatlas.matrix.rank_statistics.GroupMoments`.
    """
    from scipy.stats import norm

    few = [groups.names[g] for g in range(len(groups.names)) if groups.sizes[g] <= _FEW]
    if few:
        logger.info("few cells for the normal approximation (25 or fewer): %s", ", ".join(few))
    genes = np.arange(x.shape[1]) if genes is None else genes
    codes, sizes = groups.all_compared()
    scores = _scores(x, codes, sizes, nonzero, genes, groups.reference, tie_correct=tie_correct)
    for group in groups.compared:
        known = np.where(np.isnan(scores[group]), 0.0, scores[group])
        yield group, known, 2.0 * norm.sf(np.abs(known))


def _scores(
    x: Any,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    nonzero: NDArray[np.int64],
    genes: NDArray[np.int64],
    reference: int | None,
    *,
    tie_correct: bool,
) -> NDArray[np.float64]:
    """Scores of each group and gene, in a pass over `x` for each set of genes that fits."""
    if sizes.sum() >= MAX_CELLS:
        msg = f"{sizes.sum():,} cells are too many to rank: method='wilcoxon' takes fewer than 2^31"
        raise InputError(msg)
    kernels = kernels_for("ranking.rank_sums", x)
    counts = nonzero.sum(axis=0)
    ranked = (sizes.sum(), counts) if reference is None else (sizes[reference], nonzero[reference])
    zeros = ranked[0] - ranked[1]
    ends = np.cumsum(counts) * kernels.bytes_per_value(x.dtype, sizes.size)
    budget, max_genes = memory_budget(x), kernels.max_genes_at_once(sizes.size)
    scores = np.empty((sizes.size, genes.size))
    first = n_passes = 0
    while first < genes.size:
        start = ends[first - 1] if first else 0
        last = int(np.searchsorted(ends, start + budget, side="right"))
        chosen = slice(first, min(max(last, first + 1), first + max_genes))
        try:
            nonzeros = kernels.NonzerosByGene(counts[chosen], x.dtype, sizes.size)
        except MemoryError as error:  # the base class of CuPy's and RMM's
            budget = _smaller_budget(budget, int(ends[chosen.stop - 1] - start), chosen, error)
            continue
        _gather(x, codes, genes[chosen], sizes.size, kernels, nonzeros)
        rank_sums = nonzeros.rank_sums(zeros[chosen], reference, n_threads())
        del nonzeros  # before the next ones are allocated
        scores[:, chosen] = standard_scores(
            rank_sums, nonzero[:, chosen], sizes, reference, tie_correct=tie_correct
        )
        first, n_passes = chosen.stop, n_passes + 1
    n_genes = f"{genes.size:,}"
    logger.info("wilcoxon: %d passes over X, 1 of them for means, %s genes", 1 + n_passes, n_genes)
    return scores


def _gather(
    x: Any,
    codes: NDArray[np.int64],
    genes: NDArray[np.int64],
    n_groups: int,
    kernels: Any,
    nonzeros: Any,
) -> None:
    """Fill `nonzeros` with the values of some genes, in one pass."""
    new_column = np.full(x.shape[1], -1, dtype=np.int64)
    new_column[genes] = np.arange(genes.size)
    work = partial(kernels.gather_nonzeros, new_column=new_column, n_groups=n_groups)
    for parts in blocks.stream(x, work, codes, combine=blocks.join_lists):
        for part in parts:
            nonzeros.add(part)


def _smaller_budget(budget: int, wanted: int, chosen: slice, error: MemoryError) -> int:
    """A smaller budget, because `wanted` bytes for some genes were not available."""
    if chosen.stop - chosen.start == 1:
        raise TooLargeError(
            f"the values of one gene take {wanted / 1e9:,.1f} GB, more than there is memory: "
            "use method='t-test', or fewer cells"
        ) from error
    logger.warning("no memory for the values of %d genes: half", chosen.stop - chosen.start)
    return min(budget, wanted) // 2
