"""Types of clusters by lists of marker genes: how high the genes rank in each cell.

The score of a list is a rank-sum statistic in units of its standard deviation for as many random
genes of the cell (Mann-Whitney's z with ties), whose ranks end at 1,500, as UCell's (Andreatta and
Carmona 2021). It depends on one cell alone: no plate changes the scores of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import blocks, elements
from scatlas.kernels import csr_arrays
from scatlas.kernels.counts import select_cpu
from scatlas.kernels.ranking.gene_lists_cpu import signed_rank_sums
from scatlas.matrix.annotate import shared_genes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.io.products.annotators import Annotator

MAX_RANK = 1500
# Scores are stored as integers of 1 / 100, so that sums over cells are exact in any order.
SCALE = 100
NO_SCORE = np.iinfo(np.int16).min
# A name has to be so unlikely for random genes, in any of the lists.
_ALPHA = 0.05


def list_scores(
    x: Any, names: pd.Index, annotator: Annotator, *, keep: NDArray[np.bool_], source: str
) -> NDArray[np.int16]:
    """Scores ``[n_kept_cells, n_labels]`` times 100 of counts, or values that rank as they do.

    `annotator` has 1 for genes up, -1 for genes down in its coefficients. Genes that `x` lacks are
    left out; a label without a gene up gets ``NO_SCORE``.
    """
    genes = shared_genes(annotator, names, source)
    n_genes = x.shape[1]
    slots = np.full(n_genes, -1, dtype=np.int64)
    slots[genes.of_matrix] = np.arange(genes.of_matrix.size)
    coef = annotator.coef[:, genes.of_annotator]
    of_lists, members = np.nonzero(coef)
    ends = np.searchsorted(of_lists, np.arange(len(coef) + 1))
    signs = coef[of_lists, members]
    excess, sizes = coef.sum(axis=1), np.abs(coef).sum(axis=1)
    spread = np.sqrt(np.maximum(sizes - excess**2 / n_genes, 1.0))
    lacks = ~(coef > 0).any(axis=1)

    def of_block(block: Any, kept: NDArray[np.bool_]) -> NDArray[np.int16]:
        chosen: Any = block if kept.all() else select_cpu.select_rows(block, kept)
        rows = csr_arrays(chosen)
        sums, moments = np.empty((kept.sum(), len(coef))), np.empty((kept.sum(), 2))
        limit = float(min(MAX_RANK, n_genes))
        signed_rank_sums(*rows, n_genes, slots, members, signs, ends, limit, sums, moments)
        mean, sd = moments.T
        sd = sd * np.sqrt(n_genes / max(n_genes - 1, 1))
        z = np.divide(
            mean[:, None] * excess - sums, sd[:, None] * spread, where=sd[:, None] > 0, out=sums
        )
        z[sd == 0] = 0.0  # of cells without counts
        bound = np.iinfo(np.int16).max
        scores = np.clip(np.rint(z * SCALE), -bound, bound).astype(np.int16)
        scores[:, lacks] = NO_SCORE
        return scores

    parts = blocks.stream(elements.as_rows(x), of_block, keep, combine=np.concatenate)
    return np.concatenate([*parts])


def vote_by_scores(
    sums: NDArray[np.float64], n_cells: NDArray[np.float64], n_best: NDArray[np.float64]
) -> pd.DataFrame:
    """Columns of :func:`scatlas.matrix.annotate.vote`, and ``score`` and ``second_score``, means of
    the cells, from ``[n_clusters, n_lists]``: sums of stored scores, cells that have one, and cells
    of which the list is the best.

    A list gets the vote by the highest mean score, if random genes would reach it in 5% of
    clusters, in any of the lists, and if no other list is the best of more cells.
    """
    from scipy.stats import norm  # a third of what the report imports

    means = np.divide(sums, n_cells * SCALE, where=n_cells > 0, out=np.full(sums.shape, -np.inf))
    totals = n_best.sum(axis=1)
    # So that there is a second one.
    means = np.pad(means, ((0, 0), (0, 1)), constant_values=-np.inf)
    shares = np.pad(n_best / np.maximum(totals, 1)[:, None], ((0, 0), (0, 1)))
    order = np.argsort(-means, axis=1, kind="stable")[:, :2]
    scores, parts = (np.take_along_axis(some, order, axis=1) for some in (means, shares))
    is_known = scores[:, 0] >= norm.isf(_ALPHA / sums.shape[1])
    is_known &= parts[:, 0] >= shares.max(axis=1)
    order = np.where(np.isfinite(scores), order, -1)
    return pd.DataFrame(
        {
            "n_cells": totals.astype(np.int64),
            "label": order[:, 0],
            "share": parts[:, 0],
            "second": order[:, 1],
            "second_share": parts[:, 1],
            "unknown": 1.0 - is_known,
            "score": scores[:, 0],
            "second_score": scores[:, 1],
            "vote": np.where(is_known, order[:, 0], -1),
        }
    )
