"""Moments of the kept cells of a plate, taken while its counts are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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


class BlockMoments(NamedTuple):
    """Kept cells of a block, bool ``[n_cells]``, and their moments; None without such a cell."""

    keep: NDArray[np.bool_]
    moments: Moments | None


def block_moments(kept_cells: KeptCells, first: int, block: CheckedCounts) -> BlockMoments:
    """Moments of the kept cells of a block, from the thread that has it in its cache."""
    metrics = qc_metrics(block.totals, np.diff(block.indptr), block.masked)
    keep = kept_cells(first, metrics)
    if not keep.any():
        return BlockMoments(keep, None)
    x = csr(block.counts, block.indices, block.indptr, block.per_gene.shape[0])
    # Empty cells have no values: their scale only has to be in the range of the others.
    scales = share_scales(block.totals, keep, max(1, int(block.totals.max())))
    return BlockMoments(keep, normalized_moments(x, scales))


class PlateMoments:
    """Moments of a plate's kept cells, added up block by block."""

    def __init__(self) -> None:
        self._keep: list[NDArray[np.bool_]] = []
        self._moments: Moments | None = None

    def add(self, part: BlockMoments | None) -> None:
        """Add a block that follows those before; None if the kept cells are not known."""
        if part is None:
            return
        self._keep.append(part.keep)
        if part.moments is not None:
            parts = [part.moments] if self._moments is None else [self._moments, part.moments]
            self._moments = merge_in_place(parts)

    def write(self, path: Path, totals: NDArray[np.int64]) -> None:
        """Write ``moments.parquet``; `totals` are those of all cells."""
        if self._moments is None:
            write_moments(path, "no cell was kept")
            return
        rows = np.flatnonzero(np.concatenate(self._keep))
        write_moments(path, rounded_moments(self._moments), cells_digest(rows, totals[rows]))
