"""Values of any measured gene for the cells of an atlas, from the counts of its plates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd
from anndata.io import read_elem

from scatlas import blocks
from scatlas.columns import GeneRule, close_names, common_genes, gene_positions
from scatlas.errors import InputError
from scatlas.io import open_tables, read_cells, read_matrix
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import size_factors_by_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scipy import sparse

# Columns of var with gene symbols, where the index has gene ids.
_SYMBOLS = ("feature_name", "gene_symbols", "gene_symbol", "gene_name", "gene_names", "symbol")


@dataclass(frozen=True)
class MeasuredGenes:
    """``counts.zarr`` and ``size_factors.parquet`` by plate, in the order of the atlas.

    ``rule`` and ``gene_names`` are the config's keys ``genes`` and ``qc.gene_names``.
    """

    stores: Mapping[str, Path]
    size_factors: Mapping[str, Path]
    rule: GeneRule = "same"
    gene_names: str | None = None

    @classmethod
    def beside(cls, atlas: Path | str) -> MeasuredGenes:
        """Find the plates of an atlas in its folder; refuse those that have changed."""
        store = Store.find(atlas)
        if store.is_url:
            raise InputError(
                f"{atlas}: the counts of its plates are only in the folder where it was built: "
                "give the atlas there"
            )
        folder = Path(store.path).absolute().parent
        with store.open() as root:
            if "uns/scatlas/plates" not in root:
                raise InputError(
                    f"{atlas} does not say which plates it has (uns['scatlas']): give an "
                    "atlas.zarr of the workflow"
                )
            record = {name: str(root[f"uns/scatlas/{name}"][()]) for name in ("config", "plates")}
        config = json.loads(record["config"])
        names = [row["plate"] for row in json.loads(record["plates"])]
        found = cls(
            {name: folder / f"plates/{name}/counts.zarr" for name in names},
            {name: folder / f"plates/{name}/size_factors.parquet" for name in names},
            config["genes"],
            config["qc"]["gene_names"],
        )
        for path in (*found.stores.values(), *found.size_factors.values()):
            if not path.exists():
                raise InputError(
                    f"{atlas}: the counts of its plates are not beside it ({path} is missing): "
                    "give the atlas in the folder where it was built"
                )
        found._check_cells(Path(store.path))
        return found

    def _check_cells(self, atlas: Path) -> None:
        """Compare the size factors of the atlas's cells with those of the plates."""
        column = Column.find(atlas, open_with_zarr_python(atlas)["obs"], "size_factor")
        tables = (read_cells(path, ["size_factor"]) for path in self.size_factors.values())
        factors = np.concatenate([table["size_factor"] for table in tables])
        if column and np.array_equal(column.array(0, column.n_rows), factors):
            return
        raise InputError(
            f"{atlas}: the plates beside it have other cells or size factors than it: "
            "run scatlas run first"
        )

    @cached_property
    def of_plates(self) -> dict[str, pd.Index]:
        """Names of the genes of each plate."""
        lists: dict[str, pd.Index] = {}
        last = pd.Index([])
        for plate, store in self.stores.items():
            with open_tables(store) as (_, var):
                names = pd.Index(np.asarray(var.index(), object), name=None)
            # One copy of equal names: 500 plates of 20,000 genes would take 1 GB for them.
            last = last if names.equals(last) else names
            lists[plate] = last
        return lists

    @cached_property
    def genes(self) -> pd.Index:
        """Names of the measured genes, by the config's ``genes``."""
        distinct = list({id(names): names for names in self.of_plates.values()}.values())
        return common_genes(distinct, "intersect" if self.rule == "intersect" else "union")

    def annotation(self, columns: Iterable[str]) -> pd.DataFrame:
        """Texts and flags about :attr:`genes` in columns of var, each from the first plate that has
        the gene and the column; numbers are left out.
        """
        table = pd.DataFrame(index=self.genes)
        done: set[int] = set()
        for plate, store in self.stores.items():
            if id(self.of_plates[plate]) in done:
                continue
            done.add(id(self.of_plates[plate]))
            var = read_elem(open_with_zarr_python(store)["var"])
            for name in (name for name in columns if name in var):
                if var[name].dtype == bool or not pd.api.types.is_numeric_dtype(var[name]):
                    texts = var[name].astype(object).reindex(self.genes)
                    first = table.get(name, texts)
                    table[name] = np.where(first.isna(), texts, first)
        return table

    @cached_property
    def symbols(self) -> pd.Series:
        """Symbol by gene, from the column of var that the config names, or one of a usual name."""
        table = self.annotation([self.gene_names] if self.gene_names else _SYMBOLS)
        return pd.Series(dtype=object) if table.empty else table.iloc[:, 0].dropna().astype(str)

    def find(self, names: Iterable[str], key: str) -> list[str]:
        """Genes by name, or by symbol where no gene has the name; ``key`` is that of the config, or
        the option, which names them.
        """
        names = list(dict.fromkeys(names))
        positions = gene_positions(self._names, names, key)
        if None in positions:
            raise InputError(self._missing(names[positions.index(None)], key))
        return list(dict.fromkeys(self.genes[positions]))

    @cached_property
    def _names(self) -> pd.DataFrame:
        """A table by gene with its symbol, or its name again where it has none."""
        return pd.DataFrame(
            {"symbol": self.symbols.reindex(self.genes).fillna(self.genes.to_series())}
        )

    def _missing(self, name: str, key: str) -> str:
        lacking = [plate for plate, names in self.of_plates.items() if name not in names]
        if len(lacking) < len(self.of_plates):
            return (
                f"{key}: plate {lacking[0]} has no gene {name!r}, and 'genes: intersect' leaves "
                "out genes that a plate lacks: leave the name out, or set 'genes: union'"
            )
        n = len(self.genes)
        hint = close_names(self._names, name)
        return f"{key}: no plate measures a gene {name!r} (there are {n:,} genes): {hint}"

    def blocks(
        self, genes: pd.Index, *, counts: bool = False, **sizes: Any
    ) -> Iterator[sparse.csr_matrix]:
        """Values of some genes for the cells of the atlas, by blocks in their order and in one
        pass, whose threads share the blocks of all plates: log-normalised with the bits of X of the
        atlas, or counts. A plate that lacks a gene has zeros. ``sizes`` are options of
        :func:`scatlas.io.read_matrix`.
        """
        parts = []
        for plate, store in self.stores.items():
            cells = read_cells(self.size_factors[plate], ["row", "size_factor"])
            x, _ = read_matrix(store, compact=True, **sizes)
            at = self.of_plates[plate].get_indexer(genes)
            here = at[at >= 0]
            if counts:
                values = blocks.select_genes(blocks.select_rows(x, cells["row"].to_numpy()), here)
            else:
                factors = size_factors_by_row(cells, x.shape[0])
                values = select_and_log_normalize(x, here, size_factors=factors)
            if here.size < at.size:
                values = blocks.spread_genes(values, np.flatnonzero(at >= 0), at.size)
            parts.append(values)
        yield from blocks.stream(da.concatenate(parts))
