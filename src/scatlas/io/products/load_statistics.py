"""What the pass of `load` over the counts of a plate adds up, and the moments that it stores.

``moments.parquet`` saves `hvg` a pass. The file is a cache: no result depends on whether it holds
moments, so it is in no manifest.
"""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.blocks import csr
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.read_errors import reading
from scatlas.io.tables.table import GENE_METRICS, METRICS
from scatlas.kernels.counts.check_cpu import RoundedCounts, round_counts
from scatlas.kernels.moments.count_moments_cpu import normalized_moments
from scatlas.kernels.moments.moments_cpu import Moments, merge_in_place
from scatlas.kernels.moments.shares import ShareMoments, rounded_moments, share_scales

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import scipy.sparse as sp
    from numpy.typing import NDArray

    from scatlas.kernels.counts.check_cpu import CheckedCounts

    # Called with the first row of a block and with its cells' QC metrics by name; returns which of
    # them are kept, bool [cells]. Several threads call it.
    KeptCells = Callable[[int, Mapping[str, NDArray[Any]]], NDArray[np.bool_]]

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
        """Sentence for the log about the share of stored values and of counts; "" without one."""
        n_values, n_counts = self.facts().values() if self._rounds else (0, 0)
        if not n_values:
            return ""
        share = 100 * n_counts / max(total, 1)
        return (
            f"{n_values:,} of {n_stored:,} values of {key} were fractional: rounded; they hold "
            f"{share:.1f}% of the counts"
        )


class LoadStatistics:
    """What the pass adds up: sums of genes in any order, the rest in the order of the blocks."""

    def __init__(self, n_genes: int, of_kept: KeptCellMoments | None) -> None:
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
    def total(self) -> int:
        return int(self.per_gene[:, 0].sum())

    @property
    def n_empty(self) -> int:
        return sum(int((totals == 0).sum()) for totals in self.totals)

    def cell_metrics(self) -> dict[str, np.ndarray]:
        totals, mt = np.concatenate(self.totals), np.concatenate(self.masked)
        return qc_metrics(totals, np.concatenate(self.n_genes), mt)

    def gene_metrics(self, mt: np.ndarray) -> dict[str, np.ndarray]:
        totals, n_cells = self.per_gene.T
        return dict(zip(GENE_METRICS, (mt, n_cells.copy(), totals.copy()), strict=True))

    def tell(self, key: str, notify: Callable[[str], object], rounded: RoundedValues) -> None:
        """Say what was mended, and what is odd."""
        if self.n_unsorted:
            notify(f"{key}/indices of {self.n_unsorted:,} cells were not sorted: sorted")
        if self.n_zeros:
            notify(f"{key} held {self.n_zeros:,} stored zeros: dropped")
        if notice := rounded.notice(key, self.n_values + self.n_zeros, self.total):
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


def cells_digest(rows: NDArray[np.int64], totals: NDArray[np.int64]) -> str:
    """BLAKE2b of the rows (in the plate, ascending) and totals of cells, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for values in (rows, totals):
        digest.update(np.ascontiguousarray(values, "<i8").data)
    return digest.hexdigest()


def write_moments(path: Path | str, moments: ShareMoments | str, cells: str = "") -> None:
    """Write the moments of the cells with this :func:`cells_digest`, or why there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(moments, str):
        table, facts = pa.table({}), {"reason": moments}
    else:
        table, facts = pa.table(moments._asdict()), {"cells": cells}
    with atomic_path(path) as partial:
        pq.write_table(table.replace_schema_metadata(facts), partial, use_dictionary=False)


def read_moments(path: Path | str, cells: str, n_genes: int) -> ShareMoments | str:
    """Moments of exactly these cells, or the reason why the file does not hold them."""
    import pyarrow.parquet as pq

    with reading(str(path), "moments"), pq.ParquetFile(path) as file:
        facts = {key.decode(): value.decode() for key, value in file.schema_arrow.metadata.items()}
        if "reason" in facts:
            return facts["reason"]
        if facts["cells"] != cells or file.metadata.num_rows != n_genes:
            return "load took the moments for other cells, or other totals of the cells"
        table = file.read(use_threads=False)
        return ShareMoments(*(table[name].to_numpy() for name in ShareMoments._fields))


def qc_metrics(
    totals: NDArray[np.int64], n_genes: NDArray[np.int64], masked: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """QC metrics by name, from counts, expressed genes and mitochondrial counts of each cell."""
    with np.errstate(invalid="ignore"):  # 0/0 in empty cells: NaN, as in scanpy
        share = masked / totals * 100
    return dict(zip(METRICS, (totals, n_genes, masked, share), strict=True))


class KeptCellMoments:
    """Moments of a plate's kept cells. Threads take those of a block while it is in their cache,
    and merge them in order: the main thread would take as long as for all its other work.
    """

    def __init__(self, kept_cells: KeptCells) -> None:
        self._kept_cells = kept_cells
        self._lock = Lock()
        # Moments of blocks by their numbers, until those before are merged.
        self._waiting: dict[int, tuple[NDArray[np.bool_], Moments | None]] = {}
        self._is_merging = False
        self._keep: list[NDArray[np.bool_]] = []
        self._moments: Moments | None = None

    def add(self, number: int, first: int, block: CheckedCounts) -> None:
        """Add a block; its first cell is `first` of the plate. Blocks may come in any order."""
        part = self._block_moments(first, block)
        with self._lock:
            self._waiting[number] = part
            if self._is_merging:  # that thread will merge this block, too
                return
            self._is_merging = True
        while True:
            with self._lock:
                next_part = self._waiting.pop(len(self._keep), None)
                if next_part is None:
                    self._is_merging = False
                    return
                keep, moments = next_part
                self._keep.append(keep)
            if moments is not None:
                parts = [moments] if self._moments is None else [self._moments, moments]
                self._moments = merge_in_place(parts)

    def _block_moments(
        self, first: int, block: CheckedCounts
    ) -> tuple[NDArray[np.bool_], Moments | None]:
        """Kept cells of a block, bool ``[n_cells]``, and their moments; None if there are none."""
        metrics = qc_metrics(block.totals, np.diff(block.indptr), block.masked)
        keep = self._kept_cells(first, metrics)
        if not keep.any():
            return keep, None
        x = csr(block.counts, block.indices, block.indptr, block.per_gene.shape[0])
        # Empty cells have no values: their scale only has to be in the range of the others.
        scales = share_scales(block.totals, keep, max(1, int(block.totals.max())))
        return keep, normalized_moments(x, scales)

    def write(self, path: Path, totals: NDArray[np.int64]) -> None:
        """Write ``moments.parquet`` after the last block; `totals` are those of all cells."""
        if self._moments is None:
            write_moments(path, "no cell was kept")
            return
        rows = np.flatnonzero(np.concatenate(self._keep))
        write_moments(path, rounded_moments(self._moments), cells_digest(rows, totals[rows]))
