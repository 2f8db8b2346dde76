"""Doublets found by simulating doublets of counts (Scrublet)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import whole_number
from scatlas.errors import InputError
from scatlas.matrix import doublet_scores

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

logger = logging.getLogger(__name__)

# As in scanpy: genes in fewer cells, and cells with fewer genes, are left out.
_MIN_CELLS, _MIN_GENES = 3, 3
_TARGET_SUM = 1e6


class Capture(NamedTuple):
    """Scores of one capture."""

    cells: NDArray[np.int64]  # positions of its cells
    scores_sim: NDArray[np.float64]
    parents: NDArray[np.int64]  # [simulated doublets, 2], positions of the two cells of each
    threshold: float | None  # predicted doublets are above it; None if there is none
    n_neighbors: int


@dataclass(frozen=True)
class Doublets:
    """Result of :func:`scrublet_of_counts`."""

    score: NDArray[np.float64]  # [cells], NaN for cells without a score
    predicted: NDArray[np.bool_]
    captures: dict[Any, Capture]  # by name; without captures one item, ""


def scrublet_of_counts(
    x: Any,
    names: pd.Index,
    *,
    mask: NDArray[np.bool_] | None = None,
    batch: ArrayLike | None = None,
    sim_doublet_ratio: float = 2.0,
    expected_doublet_rate: float = 0.05,
    n_prin_comps: int = 30,
    n_neighbors: int | None = None,
    threshold: float | None = None,
    n_top_genes: int | None = None,
    random_state: int = 0,
) -> Doublets:
    """:func:`scrublet` of counts without an AnnData.

    Parameters
    ----------
    x
        Counts [cells x genes], in memory or Dask.
    names
        Genes.
    mask
        bool [cells], cells to include; None for all.
    batch
        Capture of each cell [cells]; cells without a value form the capture ``"none"``.
    sim_doublet_ratio, expected_doublet_rate, n_prin_comps, n_neighbors, threshold, n_top_genes
        As in :func:`scrublet`.
    random_state
        As in :func:`scrublet`.

    Raises
    ------
    InputError
        As :func:`scrublet`.
    """
    from scatlas.elements import check_array

    if not 0 < expected_doublet_rate < 1:
        raise InputError(f"expected_doublet_rate={expected_doublet_rate} must lie between 0 and 1")
    if not sim_doublet_ratio > 0:
        raise InputError(f"sim_doublet_ratio={sim_doublet_ratio} must be above 0")
    n_prin_comps = whole_number(n_prin_comps, "n_prin_comps", least=1)
    if n_neighbors is not None:
        n_neighbors = whole_number(n_neighbors, "n_neighbors", least=1)
    x = check_array(x, "the array")
    mask = np.ones(x.shape[0], bool) if mask is None else mask
    scored, cells, totals = _embed_cells(x, names, mask, n_prin_comps, n_top_genes)
    positions = np.flatnonzero(scored)
    score = np.full(x.shape[0], np.nan)
    predicted = np.zeros(x.shape[0], bool)
    captures = {}
    for name, members in _split_captures(batch, scored):
        scores = doublet_scores.score_cells(
            cells[members],
            totals[members],
            sim_doublet_ratio=sim_doublet_ratio,
            expected_doublet_rate=expected_doublet_rate,
            n_neighbors=n_neighbors,
            random_state=random_state,
        )
        where = f" of {name}" if name else ""
        if not scores.sim.size:
            logger.warning("%d cells%s are too few to find doublets", members.size, where)
        bound = threshold if threshold is not None else doublet_scores.find_threshold(scores.sim)
        if bound is None and scores.sim.size:
            logger.warning(
                "the scores of simulated doublets%s do not have two modes, so no cell is predicted "
                "to be a doublet: look at their histogram and give a threshold",
                where,
            )
        at = positions[members]
        score[at] = scores.obs
        predicted[at] = scores.obs > (np.inf if bound is None else bound)
        captures[name] = Capture(at, scores.sim, at[scores.parents], bound, scores.n_neighbors)
    return Doublets(score, predicted, captures)


def _split_captures(
    batch: ArrayLike | None, scored: NDArray[np.bool_]
) -> list[tuple[str, NDArray[np.int64]]]:
    """Name of each capture and the positions of its cells among those with a score."""
    import pandas as pd

    if batch is None:
        return [("", np.arange(np.count_nonzero(scored)))]
    values = pd.Categorical(pd.Series(np.asarray(batch, dtype=object))[scored])
    named = [(str(v), np.flatnonzero(values.codes == i)) for i, v in enumerate(values.categories)]
    none = np.flatnonzero(values.codes < 0)
    return [*named, *([("none", none)] if none.size else [])]


def _embed_cells(
    x: Any, names: pd.Index, mask: NDArray[np.bool_], n_comps: int, n_top_genes: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.number]]:
    """Cells to score, bool [cells]; their components; their totals in the genes of these."""
    from scatlas.kernels.linalg import project_cpu
    from scatlas.matrix.components import components
    from scatlas.matrix.gene_scale import GeneScale
    from scatlas.matrix.gram import GramAccumulator
    from scatlas.matrix.hvg import hvg_of_counts
    from scatlas.matrix.size_factors import size_factors

    detected = blocks.reduce(_count_detections, _DetectionCounts.merge, x, mask).without_rare()
    has_genes = detected.n_genes >= _MIN_GENES
    scored = mask.copy()
    scored[mask] = has_genes
    if not has_genes.any():
        raise InputError("no cell has counts of three genes, so no doublets can be found")
    factors = np.full(x.shape[0], np.nan)
    factors[scored] = size_factors(detected.totals[has_genes])[0]
    table = hvg_of_counts(x, names, factors, n_top_genes=n_top_genes, genes=detected.frequent)
    genes = np.flatnonzero(table["highly_variable"])
    if min(genes.size, int(np.count_nonzero(scored))) < n_comps:
        raise InputError(
            f"{n_comps} components (n_prin_comps) are too many for {scored.sum():,} cells and "
            f"{genes.size:,} highly variable genes"
        )
    logger.info("searching doublets in %d genes", genes.size)
    totals, normalize = [], _normalizer(genes)
    with GramAccumulator(genes.size) as gram:
        for part, block in blocks.stream(x, normalize, scored, combine=_join_halves):
            totals.append(part)
            gram.add(block)
    stats = gram.result()
    scale = GeneScale.from_stats(stats, zero_center=True, max_value=None)
    loadings = components(scale.stats(stats, None), n_comps).PCs / scale.std[:, None]
    offset = scale.mean @ loadings

    def project(block: Any, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        return project_cpu.project(normalize(block, mask)[1], loadings, offset, dtype=np.float64)

    cells = np.concatenate(list(blocks.stream(x, project, scored)))
    return scored, cells, np.concatenate(totals)


@dataclass
class _DetectionCounts:
    """Detected cells and genes in consecutive cells; can be merged with those of later cells."""

    totals: NDArray[np.number]  # of each cell
    n_genes: NDArray[np.int64]  # above zero in each cell
    n_cells: NDArray[np.int64]  # in which each gene is above zero
    # Cell, gene and count of the positive counts of genes that few cells have so far.
    rare: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.number]]

    @property
    def frequent(self) -> NDArray[np.bool_]:
        """Mask of genes in enough cells [genes]."""
        return self.n_cells >= _MIN_CELLS

    @staticmethod
    def merge(parts: list[_DetectionCounts]) -> _DetectionCounts:
        """Counts of all cells of the parts, which follow each other."""
        offsets = np.cumsum([0, *(part.totals.size for part in parts[:-1])])
        n_cells = np.sum([part.n_cells for part in parts], axis=0)
        cells = np.concatenate(
            [part.rare[0] + offset for part, offset in zip(parts, offsets, strict=True)]
        )
        genes = np.concatenate([part.rare[1] for part in parts])
        counts = np.concatenate([part.rare[2] for part in parts])
        is_rare = n_cells[genes] < _MIN_CELLS
        return _DetectionCounts(
            np.concatenate([part.totals for part in parts]),
            np.concatenate([part.n_genes for part in parts]),
            n_cells,
            (cells[is_rare], genes[is_rare], counts[is_rare]),
        )

    def without_rare(self) -> _DetectionCounts:
        """The same, but totals and numbers of genes include the frequent genes only."""
        cells, _, counts = self.rare
        totals, n_genes = self.totals.copy(), self.n_genes.copy()
        np.subtract.at(totals, cells, counts.astype(totals.dtype))
        np.subtract.at(n_genes, cells, 1)
        return _DetectionCounts(totals, n_genes, self.n_cells, self.rare)


def _count_detections(block: Any, mask: NDArray[np.bool_]) -> _DetectionCounts:
    import scipy.sparse as sp

    from scatlas.kernels.counts import qc_cpu, select_cpu

    block = select_cpu.select_rows(blocks.on_host(block), mask)
    block = block if sp.issparse(block) else sp.csr_matrix(block)
    n_cells = qc_cpu.gene_positive(block)
    rare = np.flatnonzero((n_cells[block.indices] < _MIN_CELLS) & (block.data > 0))
    cells = np.searchsorted(block.indptr, rare, side="right") - 1
    return _DetectionCounts(
        qc_cpu.row_sums(block),
        qc_cpu.row_positive(block),
        n_cells,
        (cells.astype(np.int64), block.indices[rare].astype(np.int64), block.data[rare]),
    )


def _normalizer(genes: NDArray[np.int64]) -> Callable[..., tuple[Any, Any]]:
    """Function that returns totals in these genes, and normalised counts, of a block's cells."""
    from scatlas.kernels.counts import normalize_cpu, qc_cpu, select_cpu

    def normalize(block: Any, mask: NDArray[np.bool_]) -> tuple[Any, Any]:
        block = select_cpu.select_rows(blocks.on_host(block), mask)
        block = select_cpu.select_genes(block, genes)
        totals = qc_cpu.row_sums(block)
        return totals, normalize_cpu.scale_rows(
            block, _TARGET_SUM / np.where(totals == 0, 1, totals)
        )

    return normalize


def _join_halves(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    totals, normalized = zip(*parts, strict=True)
    return np.concatenate(totals), blocks.join(list(normalized))
