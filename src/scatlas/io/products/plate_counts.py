"""Genes of an atlas that no copy has, from one pass over the counts of its plates beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dask.array as da
import numpy as np

from scatlas import blocks
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.products.gene_copy import all_genes
from scatlas.io.tables.cell_parquet import read_cells
from scatlas.io.tables.column import Column
from scatlas.io.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.io.files.anndata_file import Store


@dataclass(frozen=True)
class PlateCounts:
    """Plates of an atlas, in its order."""

    folders: list[Path]
    tables: list[pd.DataFrame]  # genes of each
    var: pd.DataFrame  # genes of any

    def counts(self, genes: Sequence[int]) -> tuple[da.Array, NDArray[np.float64]]:
        """Lazy counts of the atlas's cells and of genes, by their numbers in increasing order, and
        the size factor of each cell.
        """
        parts, factors = [], []
        for folder, table in zip(self.folders, self.tables, strict=True):
            cells = read_cells(folder / "size_factors.parquet", ["row", "size_factor"])
            x, _ = read_matrix(folder / "counts.zarr", compact=True)
            at = table.index.get_indexer(self.var.index[list(genes)])
            some = np.flatnonzero(at >= 0)
            x = blocks.select_genes(blocks.select_rows(x, cells["row"].to_numpy()), at[some])
            parts.append(blocks.spread_genes(x, some, len(genes)))
            factors.append(cells["size_factor"].to_numpy())
        return da.concatenate(parts), np.concatenate(factors)


def find_plate_counts(atlas: Store) -> PlateCounts | str:
    """Find the plates beside an atlas, or say why they cannot be read, as part of a sentence."""
    if atlas.is_url or atlas.kind != "zarr":
        return "the plates' counts are not beside it"
    plates = Path(atlas.path).absolute().parent / "plates"
    with atlas.open() as root, reading(atlas.path, "obs/plate"):
        if "obs/plate" not in root:
            return "its obs has no column 'plate'"
        names = Column.open(atlas.path, root["obs"], "plate").categories
        n_cells = root["X"].attrs["shape"][0]
    folders = [plates / str(name) for name in names]
    for folder in folders:
        for file in ("counts.zarr/zarr.json", "size_factors.parquet"):
            if not (folder / file).exists():
                return f"{(folder / file).as_posix().removesuffix('/zarr.json')} does not exist"
    if sum(len(read_cells(f / "size_factors.parquet", ["row"])) for f in folders) != n_cells:
        return f"{plates} holds other cells"
    tables = []
    for folder in folders:
        path = folder / "counts.zarr"
        tables.append(Table.open(path, open_store(path), "var").read())
    return PlateCounts(folders, tables, all_genes(tables))
