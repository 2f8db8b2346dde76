"""Effects of conditions on disk (config: effects): an h5ad and Parquet files, a model at a time."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from anndata.io import sparse_dataset

from scatlas.io.files.hdf5_writing import write_element
from scatlas.matrix.effects_groups import as_obs
from scatlas.matrix.effects_moderation import false_discovery_rates, t_pvalues

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import h5py
    from numpy.typing import NDArray

    from scatlas.matrix.effects_groups import GroupEffects

# Rows of a Parquet file that are made at once, and bytes of a chunk of the h5ad.
_ROWS, _CHUNK_BYTES = 2**21, 2**20


def counts_reader(file: h5py.File, measured: Mapping[str, pd.Index], genes: pd.Index) -> Any:
    """Function of rows of merged sums, which gives counts: NaN where a plate lacks a gene."""
    sums = sparse_dataset(file["X"])
    lacks = {plate: ~genes.isin(own) for plate, own in measured.items()}
    some_lack = any(missing.any() for missing in lacks.values())

    def counts_of(rows: NDArray[Any], plates: NDArray[Any]) -> NDArray[Any]:
        part = sums[rows]
        fits = not part.nnz or part.data.max() < np.iinfo(np.int32).max
        counts = part.astype(np.int32 if fits and not some_lack else np.float64).toarray()
        for plate in np.unique(plates) if some_lack else ():
            counts[np.ix_(plates == plate, lacks[plate])] = np.nan
        return counts

    return counts_of


class EffectsWriter:
    """An open ``effects.h5ad`` [conditions x genes] and the folder of Parquet files; :meth:`append`
    takes the models, :meth:`finish` the rest.
    """

    def __init__(
        self, file: h5py.File, folder: Path, genes: pd.Index, within: list[str], condition: str
    ) -> None:
        self.file, self.folder, self.genes = file, folder, genes
        self.within, self.condition = within, condition
        self.obs: list[pd.DataFrame] = []
        self.samples: list[pd.DataFrame] = []
        self._of_genes: list[pd.DataFrame] = []
        rows = max(1, _CHUNK_BYTES // (4 * max(1, genes.size)))
        for name in ("X", "layers/t"):
            file.create_dataset(
                *(name, (0, genes.size), np.float32),
                maxshape=(None, genes.size),
                chunks=(rows, max(1, genes.size)),
                compression="gzip",
                compression_opts=1,
                fillvalue=np.nan,
            ).attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})

    def append(self, found: GroupEffects, *, p_values: bool) -> None:
        """Write the effects of one value of the columns of ``within``."""
        group = dict(zip(self.within, found.key, strict=True))
        table = found.table(self.within, self.condition)
        at = self.genes.get_indexer(found.genes.index)
        for name, values in (("X", found.log2_fold_change), ("layers/t", found.t)):
            dataset = self.file[name]
            first, step = len(dataset), dataset.chunks[0]
            dataset.resize(first + len(values), axis=0)
            for lo in range(0, len(values), step):
                part = values[lo : lo + step]
                whole = np.full((len(part), self.genes.size), np.nan, np.float32)
                whole[:, at] = part
                dataset[first + lo : first + lo + len(part)] = whole
        self._of_genes.append(found.genes[["mean_expression", "df"]])
        self._write_parquet(group, table, found, p_values)
        self.obs.append(table.assign(model=len(self.obs)))
        self.samples.append(found.samples.assign(**group))

    def finish(self, options: Mapping[str, Any], left_out: pd.DataFrame) -> pd.DataFrame:
        """Write the tables of the h5ad; return that of the conditions."""
        table = pd.concat(self.obs)
        obs = as_obs(table, [*self.within, self.condition])
        self.file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        kind = {"encoding-type": "dict", "encoding-version": "0.1.0"}
        self.file["layers"].attrs.update(kind)
        write_element(self.file, "obs", obs)
        write_element(self.file, "var", pd.DataFrame(index=self.genes))
        of_genes = {
            name: np.column_stack([part[name].reindex(self.genes) for part in self._of_genes])
            for name in ("mean_expression", "df")
        }
        write_element(self.file, "varm", of_genes)
        samples = pd.concat(self.samples).astype(dict.fromkeys(self.within, str))
        uns = {**options, "samples": samples, "left_out": left_out}
        write_element(self.file, "uns", {"effects": uns})
        return table

    def _write_parquet(
        self, group: Mapping[str, str], table: pd.DataFrame, found: GroupEffects, p_values: bool
    ) -> None:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", "_".join(group.values())) or "all"
        path = self.folder / f"{name}.parquet"
        if path.exists():
            path = self.folder / f"{name}-{len(self.obs)}.parquet"
        labels = {**group, self.condition: ""}
        df = found.genes["df"].to_numpy()
        step = max(1, _ROWS // max(1, len(df)))
        writer = None
        for lo in range(0, len(table), step):
            part = _long(table.iloc[lo : lo + step], found, slice(lo, lo + step), df, p_values)
            columns = {
                label: pa.DictionaryArray.from_arrays(
                    pa.array(part["row"] if not value else np.zeros(part["row"].size, np.int32)),
                    pa.array([value] if value else table[self.condition].tolist()),
                )
                for label, value in labels.items()
            }
            genes = pa.array(found.genes.index.astype(str))
            columns["gene"] = pa.DictionaryArray.from_arrays(pa.array(part.pop("gene")), genes)
            part.pop("row")
            block = pa.table({**columns, **part})
            writer = writer or pq.ParquetWriter(path, block.schema, compression="zstd")
            writer.write_table(block)
        if writer:
            writer.close()


def _long(
    table: pd.DataFrame, found: GroupEffects, rows: slice, df: NDArray[Any], p_values: bool
) -> dict[str, NDArray[Any]]:
    """Columns of some conditions: a row for each gene with a value, in the order of the genes."""
    change, t = found.log2_fold_change[rows], found.t[rows]
    row, gene = np.nonzero(np.isfinite(t))
    own = t[row, gene]
    part: dict[str, NDArray[Any]] = {
        "row": (row + (rows.start or 0)).astype(np.int32),
        "gene": gene.astype(np.int32),
        "log2_fold_change": change[row, gene],
        "t": own,
        "mean_expression": found.genes["mean_expression"].to_numpy(np.float32)[gene],
    }
    if p_values:
        p = t_pvalues(own.astype(np.float64), df[gene])
        ends = np.searchsorted(row, np.arange(len(table) + 1))
        fdr = [false_discovery_rates(p[lo:hi]) for lo, hi in pairwise(ends)]
        with np.errstate(invalid="ignore"):
            part["standard_error"] = part["log2_fold_change"] / own
        part |= {"p_value": p, "fdr": np.concatenate(fdr)}
    return part
