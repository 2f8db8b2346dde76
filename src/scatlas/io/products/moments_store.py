"""Moments of a plate's kept cells, ``moments.parquet``, taken while `load` reads its counts.

They save `hvg` a pass. The file is a cache: no result depends on whether it holds moments, so it is
in no manifest.
"""

from __future__ import annotations

import hashlib
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.blocks import csr
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.read_errors import reading
from scatlas.io.tables.table import METRICS
from scatlas.kernels.moments.count_moments_cpu import normalized_moments
from scatlas.kernels.moments.moments_cpu import Moments, merge_in_place
from scatlas.kernels.moments.shares import ShareMoments, rounded_moments, share_scales

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.kernels.counts.check_cpu import CheckedCounts

    # Called with the first row of a block and with its cells' QC metrics by name; returns which of
    # them are kept, bool [cells]. Several threads call it.
    KeptCells = Callable[[int, Mapping[str, NDArray[Any]]], NDArray[np.bool_]]


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


class PlateMoments:
    """Moments of a plate's kept cells, which the threads that check its blocks add up.

    A thread takes the moments of its block while that is in its cache. Threads also merge the
    blocks, in their order: the main thread would take as long for that as for all its other work.
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
