"""Moments of the kept cells of a plate, taken while its counts are loaded."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.blocks import csr
from scatlas.io.products.moments_store import cells_digest, write_moments
from scatlas.io.tables.table import METRICS
from scatlas.kernels.moments.count_moments_cpu import normalized_moments
from scatlas.kernels.moments.moments_cpu import Moments, merge_in_place
from scatlas.kernels.moments.shares import rounded_moments, share_scales

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.kernels.counts.check_cpu import CheckedCounts

    # Called with the first row of a block and with its cells' QC metrics by name; returns which of
    # them are kept, bool [cells]. Several threads call it.
    KeptCells = Callable[[int, Mapping[str, NDArray[Any]]], NDArray[np.bool_]]


def qc_metrics(
    totals: NDArray[np.int64], n_genes: NDArray[np.int64], masked: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """QC metrics of cells by name, ``[n_cells]``.

    Parameters
    ----------
    totals, n_genes, masked
        int64 ``[n_cells]``: counts, expressed genes and mitochondrial counts per cell.
    """
    with np.errstate(invalid="ignore"):  # 0/0 in empty cells: NaN, as in scanpy
        share = masked / totals * 100
    return dict(zip(METRICS, (totals, n_genes, masked, share), strict=True))


class KeptCellMoments:
    """Moments of a plate's kept cells, which the threads that check its blocks add up.

    A thread takes the moments of its block while that is in its cache. The blocks are merged in
    their order, but by the threads: the main thread would take as long for them as for all its
    other work on the blocks.

    Parameters
    ----------
    kept_cells
        Which cells of a block are kept.
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
