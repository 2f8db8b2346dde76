"""Scores of sets of genes, in two passes: means of genes, then means over genes of each cell."""

from __future__ import annotations

import logging
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import blocks, columns, elements
from scatlas._util.numbers import random_state_of, whole_number
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


@blocks.passes(2, "means of the genes, then the scores")
def score_genes(
    adata: AnnData,
    gene_list: Sequence[str] | pd.Index,
    *,
    ctrl_as_ref: bool = True,
    ctrl_size: int = 50,
    gene_pool: Sequence[str] | pd.Index | None = None,
    n_bins: int = 25,
    score_name: str = "score",
    random_state: int | np.random.RandomState | None = 0,
    copy: bool = False,
    use_raw: bool | None = None,
    layer: str | None = None,
) -> AnnData | None:
    """Score the cells by a set of genes (Satija et al. 2015; Tirosh et al. 2016).

    A cell's score is the mean over the genes of the set less the mean over control genes. For
    these, the genes of the pool are ranked by their mean over the cells and cut into bins of as
    many genes, and from each bin with a gene of the set some are drawn at random.

    The same bins and control genes as :func:`scanpy.tl.score_genes`, with the same random
    numbers (of another generator: NumPy's global one is left alone). Means are exact; those of
    float32 values scanpy sums in float32, which can swap two genes of nearly the same mean.

    Parameters
    ----------
    adata
        X holds log-normalised data, as a rule, in memory or Dask, on the CPU or a GPU.
    gene_list
        Genes of the set. Those that are not there are left out, with a warning in the log.
    ctrl_as_ref
        Draw from all genes of a bin, and leave out genes of the set then; ``False`` draws from
        those that are not of the set.
    ctrl_size
        Genes drawn from each bin; all of a bin that has no more.
    gene_pool
        Genes to bin and to draw from, all of ``gene_list`` among them; all genes when left out.
    n_bins
        The pool is cut into bins of ``round(n / (n_bins - 1))`` genes, at least 2.
    score_name
        Column of ``obs``.
    random_state
        Seed; None draws one.
    copy
        Return a changed copy and leave ``adata`` as it is.
    use_raw
        Score ``adata.raw``; left out, if there is one and no ``layer`` is given.
    layer
        Score ``adata.layers[layer]``.

    Returns
    -------
    None, or the copy. Written: ``obs[score_name]``, float64. A NaN counts in no mean.

    Raises
    ------
    InputError
        None of the genes exists, one is not in the pool or has no finite mean, no control gene is
        left, or genes have the same name.

    References
    ----------
    R. Satija et al., Nat. Biotechnol. 33 (2015). I. Tirosh et al., Science 352 (2016). Reference
    implementation: scanpy 1.11.5, ``tools/_score_genes.py``.
    """
    adata = adata.copy() if copy else adata
    (score,) = _scores(
        adata,
        [(columns.as_names(gene_list, "gene_list"), ctrl_size)],
        ctrl_as_ref=ctrl_as_ref,
        gene_pool=gene_pool,
        n_bins=n_bins,
        random_state=random_state,
        use_raw=use_raw,
        layer=layer,
    )
    adata.obs[score_name] = score
    return adata if copy else None


@blocks.passes(2, "the scores of both phases share them")
def score_genes_cell_cycle(
    adata: AnnData,
    *,
    s_genes: Sequence[str] | pd.Index,
    g2m_genes: Sequence[str] | pd.Index,
    copy: bool = False,
    ctrl_as_ref: bool = True,
    gene_pool: Sequence[str] | pd.Index | None = None,
    n_bins: int = 25,
    random_state: int | np.random.RandomState | None = 0,
    use_raw: bool | None = None,
    layer: str | None = None,
) -> AnnData | None:
    """Score the cells by the genes of phases S and G2M, and name the phase (Tirosh et al. 2016).

    Parameters
    ----------
    adata
        As for :func:`score_genes`.
    s_genes, g2m_genes
        Genes of the phases. As many control genes are drawn from a bin as the shorter list has.
    copy
        Return a changed copy and leave ``adata`` as it is.
    ctrl_as_ref, gene_pool, n_bins, random_state, use_raw, layer
        As for :func:`score_genes`; the seed is that of both scores.

    Returns
    -------
    None, or the copy. Written: ``obs['S_score']`` and ``obs['G2M_score']``, float64, and
    ``obs['phase']``: ``'G1'`` where both scores are negative, else that of the higher score
    (``'S'`` where they are the same).

    Raises
    ------
    InputError
        As :func:`score_genes`.
    """
    adata = adata.copy() if copy else adata
    sets = columns.as_names(s_genes, "s_genes"), columns.as_names(g2m_genes, "g2m_genes")
    size = min(map(len, sets))
    s_score, g2m_score = _scores(
        adata,
        [(genes, size) for genes in sets],
        ctrl_as_ref=ctrl_as_ref,
        gene_pool=gene_pool,
        n_bins=n_bins,
        random_state=random_state,
        use_raw=use_raw,
        layer=layer,
    )
    phase = np.where(g2m_score > s_score, "G2M", "S").astype(object)
    phase[(s_score < 0) & (g2m_score < 0)] = "G1"
    adata.obs["S_score"], adata.obs["G2M_score"], adata.obs["phase"] = s_score, g2m_score, phase
    return adata if copy else None


def _scores(
    adata: AnnData,
    requests: list[tuple[list[str], int]],
    *,
    ctrl_as_ref: bool,
    gene_pool: Sequence[str] | pd.Index | None,
    n_bins: int,
    random_state: int | np.random.RandomState | None,
    use_raw: bool | None,
    layer: str | None,
) -> list[NDArray[np.float64]]:
    """Scores [n_cells] by each of several sets of genes with their numbers of control genes per
    bin, in the same two passes, with the options of :func:`scatlas.tl.score_genes`.
    """
    n_bins = whole_number(n_bins, "n_bins", least=2)
    if use_raw is None:
        use_raw = layer is None and adata.raw is not None
    x = elements.as_rows(
        elements.check_array(
            elements.get_matrix(adata, layer=layer, use_raw=use_raw), "the matrix to score"
        )
    )
    if x.shape[0] == 0:
        raise InputError("score_genes needs at least one cell, but the AnnData has none")
    names = (adata.raw if use_raw else adata).var_names
    if not names.is_unique:
        raise InputError("names of genes occur twice: call adata.var_names_make_unique() first")
    pool = _positions(gene_pool, names)
    wanted = [
        (_find_genes(genes, names), whole_number(size, "ctrl_size")) for genes, size in requests
    ]
    means = _means_of_genes(x)
    masks = []
    for genes, ctrl_size in wanted:
        binned = _bins(means, names, pool, genes, n_bins)
        # The same seed for each set, as in scanpy, so that the random numbers are the same.
        state = random_state_of(random_state)
        control = _control_genes(*binned, genes, ctrl_as_ref, ctrl_size, state)
        logger.info("%d control genes for %d genes", control.size, genes.size)
        masks += [_mask(genes, names.size), _mask(control, names.size)]
    set_means = _means_of_cells(x, masks)
    return [set_means[:, 2 * i] - set_means[:, 2 * i + 1] for i in range(len(wanted))]


def _find_genes(listed: list[str], names: pd.Index) -> NDArray[np.intp]:
    """Positions of the genes that exist; logs the others."""
    genes = pd.Index(listed)
    missing = genes.difference(names, sort=False)
    if missing.size:
        logger.warning("genes that do not exist are left out: %s", missing.tolist())
    positions = names.get_indexer(genes.unique())
    positions = positions[positions >= 0]
    if positions.size == 0:
        raise InputError(f"none of the genes to score by exists: {genes.tolist()}")
    return positions


def _positions(gene_pool: Sequence[str] | pd.Index | None, names: pd.Index) -> NDArray[np.intp]:
    """Positions of the pool's genes, in scanpy's order."""
    if gene_pool is None:
        return np.arange(names.size)
    pool = pd.Index(columns.as_names(gene_pool, "gene_pool"), dtype="string").intersection(names)
    if pool.size == 0:
        raise InputError("none of the genes of gene_pool exists")
    return names.get_indexer(pool)


def _bins(
    means: NDArray[np.float64],
    names: pd.Index,
    pool: NDArray[np.intp],
    genes: NDArray[np.intp],
    n_bins: int,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions of the pool's genes with a finite mean, in the pool's order, and their bins of
    equal size, lowest means first; genes of equal mean share a bin.
    """
    pool = pool[np.isfinite(means[pool])]
    outside = genes[~np.isin(genes, pool)]
    if outside.size:
        raise InputError(
            f"genes to score by are not in gene_pool, or have no finite mean: "
            f"{names[np.sort(outside)].tolist()}"
        )
    size = int(np.round(pool.size / (n_bins - 1))) or pool.size + 1  # few genes: all in one bin
    return pool, _least_ranks(means[pool]) // size


def _least_ranks(values: NDArray[np.float64]) -> NDArray[np.intp]:
    """Rank of each value, from 1; equal values have the least of their ranks."""
    order = np.argsort(values)
    ascending = values[order]
    is_first = np.concatenate([[True], ascending[1:] != ascending[:-1]])
    ranks = np.empty(values.size, np.intp)
    ranks[order] = np.flatnonzero(is_first)[np.cumsum(is_first) - 1] + 1
    return ranks


def _control_genes(
    pool: NDArray[np.intp],
    bins: NDArray[np.intp],
    genes: NDArray[np.intp],
    ctrl_as_ref: bool,
    ctrl_size: int,
    state: np.random.RandomState,
) -> NDArray[np.intp]:
    """Positions of genes drawn from each bin that has a gene of the set, ascending."""
    own = np.isin(pool, genes)
    drawn = []
    for number in np.unique(bins[own]):
        inside = bins == number
        candidates = pool[inside if ctrl_as_ref else inside & ~own]
        if candidates.size == 0:
            n_own = int((inside & own).sum())
            logger.warning("a bin holds no genes but %d of those to score by", n_own)
        if ctrl_size < candidates.size:
            # The numbers that pandas' `sample` draws.
            chosen = state.choice(candidates.size, size=ctrl_size, replace=False)
            candidates = candidates[chosen]
        drawn.append(candidates)
    control = np.setdiff1d(np.concatenate(drawn), genes)
    if control.size == 0:
        hint = "try ctrl_as_ref=False, or a larger" if ctrl_as_ref else "try a larger"
        msg = f"no control genes in the bins of the {genes.size} to score by: {hint} gene_pool"
        raise InputError(msg)
    return control


def _mask(positions: NDArray[np.intp], n: int) -> NDArray[np.bool_]:
    mask = np.zeros(n, dtype=bool)
    mask[positions] = True
    return mask


def _means_of_genes(x: Any) -> NDArray[np.float64]:
    """Mean of each gene over the cells where it is not NaN, in one pass."""
    from scatlas.kernels.moments.pairs_cpu import pair_sum

    sum_genes = kernels_for("moments.count_moments", x).gene_sum_pairs
    count_genes = kernels_for("counts.qc", x).gene_totals

    def sum_block(block: Any) -> tuple[NDArray[np.float64], NDArray[np.int64] | int]:
        sums = sum_genes(block)
        if np.isfinite(sums).all():
            return sums, 0
        known, missing = _without_nan(block)
        return sum_genes(known), 0 if missing is None else count_genes(missing)

    def merge_parts(parts: list[Any]) -> Any:
        with np.errstate(all="ignore"):
            return reduce(lambda a, b: (np.stack(pair_sum(*a[0], *b[0])), a[1] + b[1]), parts)

    sums, n_missing = blocks.reduce(sum_block, merge_parts, x)
    with np.errstate(invalid="ignore"):
        return sums[0] / (x.shape[0] - n_missing)


def _means_of_cells(x: Any, masks: list[NDArray[np.bool_]]) -> NDArray[np.float64]:
    """Mean over the genes of each mask that are not NaN, ``[n_cells, n_masks]``, in one pass."""
    row_sums = kernels_for("counts.qc", x).row_sums

    def score_block(block: Any) -> NDArray[np.float64]:
        sums = np.stack([row_sums(block, mask) for mask in masks], axis=1)
        sizes = np.array([mask.sum() for mask in masks])
        if np.isfinite(sums).all():
            return sums / sizes
        known, missing = _without_nan(block)
        if missing is not None:
            sums = np.stack([row_sums(known, mask) for mask in masks], axis=1)
            sizes = sizes - np.stack([row_sums(missing, mask) for mask in masks], axis=1)
        with np.errstate(invalid="ignore"):
            return sums / sizes

    return blocks.join(list(blocks.stream(x, score_block)))


def _without_nan(block: Any) -> tuple[Any, Any]:
    """The block with zeros for NaN, and a block that counts the NaN (None if there are none)."""
    sparse = blocks.is_sparse(block)
    values = block.data if sparse else block
    if values.dtype.kind != "f":
        return block, None
    missing = np.isnan(values)
    if not missing.any():
        return block, None
    known = values.copy()
    known[missing] = 0
    parts = known, missing.astype(np.uint8)
    if not sparse:
        return parts
    return tuple(blocks.csr(part, block.indices, block.indptr, block.shape[1]) for part in parts)
