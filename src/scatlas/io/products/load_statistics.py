"""What the pass of `load` over the counts of a plate adds up, rounds, and tells."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from scatlas.blocks import csr
from scatlas.io.products.moments_store import qc_metrics
from scatlas.io.tables.table import GENE_METRICS
from scatlas.kernels.counts.round_cpu import RoundedCounts, round_counts

if TYPE_CHECKING:
    from collections.abc import Callable

    import scipy.sparse as sp

    from scatlas.io.products.moments_store import PlateMoments
    from scatlas.kernels.counts.check_cpu import CheckedCounts


# Droplets without a cell have fewer genes; so have cells of a panel with fewer than _MANY_GENES.
_FEW_GENES, _MANY_GENES = 10, 1_000
# What a user does whose counts are fractional for a reason.
HOW_TO_ROUND = (
    "if these are expected counts, as of alevin, RSEM or a correction for ambient RNA, write "
    "'source: {fractional: round}' in the config, or round in a column 'fractional' of the plate "
    "sheet"
)


class RoundedValues:
    """Rounds blocks, in several threads at once, and keeps how much it has changed."""

    def __init__(self, *, rounds: bool) -> None:
        self._rounds = rounds
        self._parts: list[RoundedCounts] = []

    def __call__(self, block: sp.csr_matrix) -> sp.csr_matrix:
        """Round the values of a block."""
        if not self._rounds:
            return block
        found = round_counts(block.data)
        self._parts.append(found._replace(values=found.values[:0]))
        return csr(found.values, block.indices, block.indptr, block.shape[1])

    def facts(self) -> dict[str, int]:
        """Sums over the blocks, which are whole numbers: their order does not matter."""
        if not self._rounds:
            return {}
        return {
            "n_rounded_values": sum(part.n_changed for part in self._parts),
            "n_rounded_counts": sum(part.n_counts for part in self._parts),
        }

    def notice(self, key: str, n_stored: int, total: int) -> str:
        """Sentence for the log about the share of the stored values and of the counts; "" without
        one.
        """
        n_values, n_counts = self.facts().values() if self._rounds else (0, 0)
        if not n_values:
            return ""
        share = 100 * n_counts / max(total, 1)
        return (
            f"{n_values:,} of {n_stored:,} values of {key} were fractional: rounded; they hold "
            f"{share:.1f}% of the counts"
        )


class LoadStatistics:
    """What the pass over the blocks adds up: threads the sums of genes, in any order; the rest
    follows the order of the blocks.
    """

    def __init__(self, n_genes: int, of_kept: PlateMoments | None) -> None:
        self._of_kept = of_kept
        self.totals: list[np.ndarray] = []
        self.masked: list[np.ndarray] = []
        self.n_genes: list[np.ndarray] = []
        self.per_gene = np.zeros((n_genes, 2), np.int64)
        self._lock = Lock()
        self.n_values = self.max_count = self.n_unsorted = self.n_zeros = 0

    def add_genes(self, number: int, first: int, block: CheckedCounts) -> None:
        """Add the sums of genes of a block, whose first cell is ``first`` of the plate."""
        with self._lock:
            self.per_gene += block.per_gene
        if self._of_kept:
            self._of_kept.add(number, first, block)

    def add(self, block: CheckedCounts) -> np.ndarray:
        """Count a block that follows those before; returns the genes per cell."""
        n_genes = np.diff(block.indptr)
        self.totals.append(block.totals)
        self.masked.append(block.masked)
        self.n_genes.append(n_genes)
        self.n_values += block.counts.size
        self.max_count = max(self.max_count, block.highest)
        self.n_unsorted += block.n_unsorted
        self.n_zeros += block.n_zeros
        return n_genes

    @property
    def n_stored(self) -> int:
        """Values of the file, with zeros."""
        return self.n_values + self.n_zeros

    @property
    def total(self) -> int:
        """Sum of all counts."""
        return int(self.per_gene[:, 0].sum())

    @property
    def n_empty(self) -> int:
        """Cells without counts."""
        return sum(int((totals == 0).sum()) for totals in self.totals)

    def cell_metrics(self) -> dict[str, np.ndarray]:
        """Columns of obs."""
        totals, mt = np.concatenate(self.totals), np.concatenate(self.masked)
        return qc_metrics(totals, np.concatenate(self.n_genes), mt)

    def gene_metrics(self, mt: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of var."""
        totals, n_cells = self.per_gene.T
        return dict(zip(GENE_METRICS, (mt, n_cells.copy(), totals.copy()), strict=True))

    def tell(self, key: str, notify: Callable[[str], object], rounded: RoundedValues) -> None:
        """Say what was mended, and what is odd."""
        if self.n_unsorted:
            notify(f"{key}/indices of {self.n_unsorted:,} cells were not sorted: sorted")
        if self.n_zeros:
            notify(f"{key} held {self.n_zeros:,} stored zeros: dropped")
        if notice := rounded.notice(key, self.n_stored, self.total):
            notify(notice)
        if self.n_empty:
            notify(f"{self.n_empty:,} cells have no counts")
        n_few = sum(int((n < _FEW_GENES).sum()) for n in self.n_genes)
        n_cells = sum(map(len, self.n_genes))
        if 2 * n_few > n_cells and len(self.per_gene) >= _MANY_GENES:
            notify(
                f"{100 * n_few / n_cells:.0f}% of the {n_cells:,} barcodes have fewer than "
                f"{_FEW_GENES} genes, as in an unfiltered matrix: set qc.min_genes, or give the "
                "filtered matrix"
            )
