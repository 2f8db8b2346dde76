"""Doublets of counts by simulated doublets."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.matrix import doublet_scores

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

logger = logging.getLogger(__name__)


# scanpy's: genes in fewer cells, and cells of fewer genes, play no part.
_MIN_CELLS, _MIN_GENES = 3, 3
_TARGET_SUM = 1e6


class Capture(NamedTuple):
    """What was found in one capture.

    Attributes
    ----------
    cells
        Positions of its cells [cells].
    scores_sim
        float64, scores of the simulated doublets.
    parents
        int64 [simulated doublets, 2], positions of the cells that they are made of.
    threshold
        None where there is none.
    n_neighbors
        As in :func:`scrublet`.
    """

    cells: NDArray[np.int64]
    scores_sim: NDArray[np.float64]
    parents: NDArray[np.int64]
    threshold: float | None
    n_neighbors: int


@dataclass(frozen=True)
class Doublets:
    """Result of :func:`scrublet_of_counts`.

    Attributes
    ----------
    score
        float64 [cells], NaN for cells that play no part.
    predicted
        bool [cells].
    captures
        By the name of the capture; of all cells, under ``""``, without captures.
    """

    score: NDArray[np.float64]
    predicted: NDArray[np.bool_]
    captures: dict[Any, Capture]


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
    """:func:`scrublet` of counts without an AnnData around them.

    Parameters
    ----------
    x
        Counts [cells x genes], in memory or Dask.
    names
        Genes.
    mask
        bool [cells], those that take part; None for all.
    batch
        Capture of each cell [cells]; cells without a value make one capture, called ``"none"``.
    sim_doublet_ratio, expected_doublet_rate, n_prin_comps, n_neighbors, threshold, n_top_genes
        As in :func:`scrublet`.
    random_state
        As in :func:`scrublet`.

    Raises
    ------
    InputError
        As :func:`scrublet`.
    """
    from scatlas.matrix.gene_moments import checked

    if not 0 < expected_doublet_rate < 1:
        msg = f"expected_doublet_rate={expected_doublet_rate} must lie between 0 and 1"
        raise InputError(msg)
    if not sim_doublet_ratio > 0:
        msg = f"sim_doublet_ratio={sim_doublet_ratio} must be above 0"
        raise InputError(msg)
    x = checked(x, "the array")
    mask = np.ones(x.shape[0], bool) if mask is None else mask
    takes_part, cells, totals = _embedded(x, names, mask, n_prin_comps, n_top_genes)
    positions = np.flatnonzero(takes_part)
    score = np.full(x.shape[0], np.nan)
    predicted = np.zeros(x.shape[0], bool)
    captures = {}
    for name, inside in _captures(batch, takes_part):
        found = doublet_scores.score(
            cells[inside],
            totals[inside],
            sim_doublet_ratio=sim_doublet_ratio,
            expected_doublet_rate=expected_doublet_rate,
            n_neighbors=n_neighbors,
            random_state=random_state,
        )
        of = f" of {name}" if name else ""
        if not found.sim.size:
            logger.warning("%d cells%s are too few to find doublets", inside.size, of)
        bound = threshold if threshold is not None else doublet_scores.threshold_of(found.sim)
        if bound is None and found.sim.size:
            logger.warning(
                "the scores of simulated doublets%s have no two modes, so that no cell is taken "
                "for a doublet: look at their histogram and give a threshold",
                of,
            )
        here = positions[inside]
        score[here] = found.obs
        predicted[here] = found.obs > (np.inf if bound is None else bound)
        captures[name] = Capture(here, found.sim, here[found.parents], bound, found.n_neighbors)
    return Doublets(score, predicted, captures)


def _captures(batch: ArrayLike | None, takes_part: NDArray[np.bool_]) -> list[tuple[str, Any]]:
    """Name of each capture and its cells among those that take part."""
    import pandas as pd

    if batch is None:
        return [("", np.arange(np.count_nonzero(takes_part)))]
    values = pd.Categorical(pd.Series(np.asarray(batch, dtype=object))[takes_part])
    named = [(str(v), np.flatnonzero(values.codes == i)) for i, v in enumerate(values.categories)]
    none = np.flatnonzero(values.codes < 0)
    return [*named, *([("none", none)] if none.size else [])]


def _embedded(
    x: Any, names: pd.Index, mask: NDArray[np.bool_], n_comps: int, n_top_genes: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.number]]:
    """Cells that take part, bool [cells]; these on the components; their totals in those genes."""
    from scatlas.matrix.components import components
    from scatlas.matrix.gene_scale import GeneScale
    from scatlas.matrix.gram import GramAccumulator
    from scatlas.matrix.hvg import hvg_of_counts
    from scatlas.matrix.size_factors import size_factors

    seen = blocks.reduce(_seen, _DetectionCounts.merge, x, mask).without_rare()
    enough = seen.n_genes >= _MIN_GENES
    takes_part = mask.copy()
    takes_part[mask] = enough
    if not enough.any():
        raise InputError("no cell has counts of three genes, so that no doublets can be found")
    factors = np.full(x.shape[0], np.nan)
    factors[takes_part] = size_factors(seen.totals[enough])[0]
    table = hvg_of_counts(x, names, factors, n_top_genes=n_top_genes, genes=seen.frequent)
    genes = np.flatnonzero(table["highly_variable"])
    least = min(genes.size, int(np.count_nonzero(takes_part)))
    if least < n_comps:
        msg = (
            f"{n_comps} components (n_prin_comps) are too many for {takes_part.sum():,} cells and "
            f"{genes.size:,} highly variable genes"
        )
        raise InputError(msg)
    logger.info("doublets are looked for in %d genes", genes.size)
    totals = []
    with GramAccumulator(genes.size) as gram:
        for part, block in blocks.stream(x, _normalised(genes), takes_part, combine=_both):
            totals.append(part)
            gram.add(block)
    stats = gram.result()
    scale = GeneScale.from_stats(stats, zero_center=True, max_value=None)
    found = components(scale.stats(stats, None), n_comps)
    loadings = found.PCs / scale.std[:, None]
    place = _projected(genes, loadings, scale.mean @ loadings)
    cells = np.concatenate(list(blocks.stream(x, place, takes_part)))
    return takes_part, cells, np.concatenate(totals)


@dataclass
class _DetectionCounts:
    """Cells and genes of a run of cells; adds up with the runs that follow it."""

    totals: NDArray[np.number]
    """Of each cell that takes part."""
    n_genes: NDArray[np.int64]
    n_cells: NDArray[np.int64]
    """Cells in which each gene is above zero [genes]."""
    rare: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.number]]
    """Cell, gene and count of what lies in genes that few cells have so far."""

    @property
    def frequent(self) -> NDArray[np.bool_]:
        """Genes in enough cells [genes]."""
        return self.n_cells >= _MIN_CELLS

    @staticmethod
    def merge(parts: list[_DetectionCounts]) -> _DetectionCounts:
        firsts = np.cumsum([0, *(part.totals.size for part in parts[:-1])])
        n_cells = np.sum([part.n_cells for part in parts], axis=0)
        cells = [part.rare[0] + first for part, first in zip(parts, firsts, strict=True)]
        moved = [(at, *part.rare[1:]) for at, part in zip(cells, parts, strict=True)]
        rare = tuple(np.concatenate(column) for column in zip(*moved, strict=True))
        still = n_cells[rare[1]] < _MIN_CELLS
        return _DetectionCounts(
            np.concatenate([part.totals for part in parts]),
            np.concatenate([part.n_genes for part in parts]),
            n_cells,
            tuple(column[still] for column in rare),
        )

    def without_rare(self) -> _DetectionCounts:
        """The same with totals and numbers of genes over the frequent genes alone."""
        cells, _, counts = self.rare
        totals, n_genes = self.totals.copy(), self.n_genes.copy()
        np.subtract.at(totals, cells, counts.astype(totals.dtype))
        np.subtract.at(n_genes, cells, 1)
        return _DetectionCounts(totals, n_genes, self.n_cells, self.rare)


def _seen(block: Any, mask: NDArray[np.bool_]) -> _DetectionCounts:
    from scatlas.kernels.counts import qc_cpu, select_cpu

    block = _as_csr(select_cpu.select_rows(blocks.on_host(block), mask))
    n_cells = qc_cpu.gene_positive(block)
    few = np.flatnonzero((n_cells[block.indices] < _MIN_CELLS) & (block.data > 0))
    cells = np.searchsorted(block.indptr, few, side="right") - 1
    return _DetectionCounts(
        qc_cpu.row_sums(block),
        qc_cpu.row_positive(block),
        n_cells,
        (cells.astype(np.int64), block.indices[few].astype(np.int64), block.data[few]),
    )


def _as_csr(block: Any) -> Any:
    import scipy.sparse as sp

    return block if sp.issparse(block) else sp.csr_matrix(block)


def _normalised(genes: NDArray[np.int64]) -> Callable[..., tuple[Any, Any]]:
    """Function of a block and its mask: totals of the cells in these genes, and their shares."""
    from scatlas.kernels.counts import normalize_cpu, qc_cpu, select_cpu

    def of_block(block: Any, mask: NDArray[np.bool_]) -> tuple[Any, Any]:
        block = select_cpu.select_rows(blocks.on_host(block), mask)
        block = select_cpu.select_genes(block, genes)
        totals = qc_cpu.row_sums(block)
        return totals, normalize_cpu.scale_rows(
            block, _TARGET_SUM / np.where(totals == 0, 1, totals)
        )

    return of_block


def _both(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    totals, shares = zip(*parts, strict=True)
    return np.concatenate(totals), blocks.join(list(shares))


def _projected(
    genes: NDArray[np.int64], loadings: NDArray[np.float64], offset: NDArray[np.float64]
) -> Callable[..., NDArray[np.float64]]:
    """Function of a block and its mask: the cells on the components."""
    from scatlas.kernels.linalg import project_cpu

    normalised, prepared = _normalised(genes), project_cpu.prepared(loadings)

    def of_block(block: Any, mask: NDArray[np.bool_]) -> NDArray[np.float64]:
        _, shares = normalised(block, mask)
        return project_cpu.project(shares, prepared, offset, dtype=np.float64)

    return of_block
