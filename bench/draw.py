"""Draw counts of simulated cells on the GPU, with the model of ``bench/make_plates.py``.

Each random number depends on seed, plate and counter, so the same arguments give the same counts on
any GPU, block by block.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cupy as cp
import numpy as np
from make_plates import LINES, Study

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLUSTERS = 2200  # median per cell, as in `make_plates`
_SIZES = 256  # upper bound of the size of a cluster
_FIRST = 2**44  # counters per block of cells


class Cells(NamedTuple):
    """Counts of a block of cells, CSR on the GPU."""

    counts: cp.ndarray  # int64 [n_values]
    genes: cp.ndarray  # int64 [n_values], ascending in a cell
    indptr: cp.ndarray  # int64 [n_cells + 1]
    line: NDArray[np.int64]  # [n_cells]


class Plate:
    """Cells of one plate; each block can be drawn alone.

    Parameters
    ----------
    study
        Genes and cell lines.
    plate
        Number of the plate, from 1: sets batch effect and shares of the lines.
    clusters
        Median number of clusters per cell.
    """

    def __init__(self, study: Study, plate: int, clusters: float = CLUSTERS) -> None:
        rng = np.random.default_rng([study.seed, 1, plate])
        batch = np.where(rng.random(study.n_genes) < 0.3, rng.normal(0, 0.35, study.n_genes), 0)
        weights = np.exp(study.lines + batch)
        self.cumulated = cp.asarray(np.cumsum(weights / weights.sum(axis=1)[:, None], axis=1))
        self.log1m = cp.asarray(study.log1m)
        self.shares = rng.dirichlet(np.full(LINES, 3.0))
        self.study, self.plate, self.clusters = study, plate, clusters

    @cached_property
    def _kernel(self) -> cp.RawKernel:
        return cp.RawKernel(Path(__file__).with_name("draw.cu").read_text(), "draw")

    def draw(self, block: int, n_cells: int) -> Cells:
        """Draw the cells of a block."""
        n_genes = self.study.n_genes
        rng = np.random.default_rng([self.study.seed, 1, self.plate, block])
        line = rng.choice(LINES, n_cells, p=self.shares)
        low, high = self.clusters / 9, self.clusters * 3.2
        clusters = np.clip(rng.lognormal(np.log(self.clusters), 0.45, n_cells), low, high)
        ends = np.cumsum(clusters.astype(np.int64) + 1)
        n = int(ends[-1])
        key = cp.empty(n, np.int64)
        arguments = (
            *(cp.asarray(ends), cp.asarray(line.astype(np.int32)), self.cumulated, self.log1m),
            *(np.int64(n_cells), np.int64(n_genes)),
            *(np.uint64(1000 * self.study.seed + self.plate), np.uint64(block * _FIRST)),
            *(np.int64(n), key),
        )
        self._kernel((min(-(-n // 256), 2**16),), (256,), arguments)
        key.sort()
        cell_genes = key // _SIZES  # cell * n_genes + gene
        is_first = cp.ones(n, bool)
        cp.not_equal(cell_genes[1:], cell_genes[:-1], out=is_first[1:])
        starts = cp.flatnonzero(is_first)
        cell_genes = cell_genes[starts]
        # Sums of the sizes up to each cluster: a gene's count is a difference of two.
        before = cp.zeros(n + 1, np.int64)
        before[1:] = cp.cumsum(key % _SIZES)
        edges = cp.append(starts, cp.asarray([n], starts.dtype))
        counts = cp.diff(before[edges])
        bounds = cp.arange(n_cells + 1, dtype=np.int64) * n_genes
        return Cells(counts, cell_genes % n_genes, cp.searchsorted(cell_genes, bounds), line)
