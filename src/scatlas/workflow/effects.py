"""Effects of conditions on disk (config: effects): an h5ad and Parquet files, a model at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from anndata.io import read_elem, sparse_dataset

from scatlas.errors import InputError
from scatlas.io import open_tables
from scatlas.io.files.hdf5_writing import write_element
from scatlas.matrix.effects_groups import (
    N_CELLS,
    as_obs,
    drop_small,
    fit_groups,
    label_samples,
    with_labels,
)
from scatlas.matrix.effects_moderation import false_discovery_rates, t_pvalues

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import h5py
    from numpy.typing import NDArray

    from scatlas.matrix.effects import Effects
    from scatlas.workflow.config.sections import Effects as Options

# Values that are read and written at once, and bytes of a chunk of the h5ad.
_AT_ONCE, _CHUNK_BYTES = 2**21, 2**20


@dataclass(frozen=True)
class Sums:
    """Merged sums of the replicates of all plates, on disk."""

    counts: Any  # [n_rows, n_genes], CSR on disk
    genes: pd.Index
    samples: pd.DataFrame  # as label_samples makes them, with their number as row
    numbers: NDArray[np.int64]  # of the sample of each row: one on several plates is added up
    plates: NDArray[np.object_]  # of each row
    lacks: dict[str, NDArray[np.bool_]]  # by plate, the genes that it does not measure
    left_out: list[tuple[str, ...]]

    @classmethod
    def read(cls, merged: Path, stores: Mapping[str, Path], wanted: Options) -> Sums:
        """Read the labels of the sums; those of few cells are left out."""
        file = zarr.open_group(merged, mode="r")
        obs, genes = read_elem(file["obs"]), read_elem(file["var"]).index
        lacks = {}
        for plate, store in stores.items():
            with open_tables(store) as (_, var):
                lacks[plate] = ~genes.isin(var.read([]).index)
        names = wanted.condition, wanted.control, wanted.within, wanted.replicate, wanted.block
        rows = label_samples(obs, *names)
        groups = rows.groupby([*rows], observed=True, sort=False)
        numbers = groups.ngroup().fillna(-1).to_numpy(np.int64)  # -1: without a value of within
        n_cells = obs[N_CELLS].to_numpy()
        samples = rows[~rows.duplicated() & (numbers >= 0)]
        samples = samples.assign(row=numbers[rows.index.get_indexer(samples.index)])
        samples[N_CELLS] = np.bincount(numbers[numbers >= 0], n_cells[numbers >= 0])[samples["row"]]
        samples, few = drop_small(samples.astype({N_CELLS: np.int64}), wanted.min_cells)
        plates = obs["plate"].to_numpy(object)
        return cls(sparse_dataset(file["X"]), genes, samples, numbers, plates, lacks, few)

    def effects(self, wanted: Options) -> Iterator[tuple[tuple[str, ...], Effects]]:
        """Effects of each group; what has none is added to ``left_out``."""
        options = {"method": wanted.method, "control": wanted.control, "robust": wanted.robust}
        return fit_groups(self.samples, self.counts_of, self.genes, self.left_out, **options)

    def counts_of(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Counts of some samples; NaN for genes that a plate of a sample does not measure."""
        order = np.full(self.numbers.max() + 1, -1)
        order[samples] = np.arange(samples.size)
        of_rows = np.where(self.numbers >= 0, order[self.numbers], -1)
        rows = np.flatnonzero(of_rows >= 0)
        some_lack = any(missing.any() for missing in self.lacks.values())
        counts = np.zeros((samples.size, self.genes.size), np.float64 if some_lack else np.int32)
        highest = np.iinfo(np.int32).max // len(self.lacks)  # a sample has a row on each plate
        step = max(1, _AT_ONCE // max(1, self.genes.size))
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > step) + 1):
            for first in range(run[0], run[-1] + 1, step):
                part = self.counts[first : min(first + step, run[-1] + 1)]
                if counts.dtype == np.int32 and part.nnz and part.data.max() > highest:
                    counts = counts.astype(np.float64)
                for to, row in zip(of_rows[first:], part.toarray(), strict=False):
                    if to >= 0:
                        np.add(counts[to], row, out=counts[to], casting="unsafe")
        for row in rows if some_lack else ():
            counts[of_rows[row], self.lacks[self.plates[row]]] = np.nan
        return counts


class EffectsWriter:
    """An open ``effects.h5ad`` [conditions x genes] and the folder of Parquet files; :meth:`append`
    takes the models, :meth:`finish` the rest.
    """

    def __init__(self, file: h5py.File, folder: Path, genes: pd.Index, wanted: Options) -> None:
        self.file, self.folder, self.genes, self.wanted = file, folder, genes, wanted
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

    def append(self, key: tuple[str, ...], found: Effects, work: Path) -> None:
        """Write the effects of one value of the columns of ``within``; ``work`` is for a file."""
        group = dict(zip(self.wanted.within, key, strict=True))
        at = self.genes.get_indexer(found.genes.index)
        first, numbers, to_parquet = sum(map(len, self.obs)), [], None
        for dataset in (self.file["X"], self.file["layers/t"]):
            dataset.resize(first + len(found.conditions), axis=0)
        try:
            for rows, change, t in found.by_rows(work, max(1, _AT_ONCE // at.size)):
                here = slice(first + rows.start, first + rows.stop)
                for name, values in (("X", change), ("layers/t", t)):
                    whole = np.full((len(values), self.genes.size), np.nan, np.float32)
                    whole[:, at] = values
                    self.file[name][here] = whole
                part = self._long(group, found, rows, change, t)
                to_parquet = to_parquet or self._parquet(group, part.schema)
                to_parquet.write_table(part)
                numbers.append(found.n_genes(t))
        finally:
            if to_parquet:
                to_parquet.close()
        table = with_labels(found.summary(pd.concat(numbers)), group, self.wanted.condition)
        self._of_genes.append(found.genes[["mean_expression", "df"]])
        self.obs.append(table.assign(model=len(self.obs)))
        self.samples.append(found.samples.assign(**group))

    def finish(
        self, left_out: list[tuple[str, ...]], distances: pd.DataFrame
    ) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Write the tables of the h5ad; return those of the conditions, and of what has none."""
        labels = [*self.wanted.within, self.wanted.condition]
        if not self.obs:
            reason = left_out[0][-1] if left_out else "no cells have its values"
            raise InputError(
                f"effects: {self.wanted.condition} has no effects ({reason}): name another "
                "condition, replicate or block"
            )
        table = pd.concat(self.obs).join(distances, on=labels)
        obs = as_obs(table, labels)
        left = pd.DataFrame(left_out, columns=[*labels, "sample", "reason"], dtype=object)
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
        samples = pd.concat(self.samples).astype(dict.fromkeys(self.wanted.within, str))
        names = ["method", "control", "condition", "robust"]
        names += ["block"] if self.wanted.block else []
        options = {name: getattr(self.wanted, name) for name in names}
        uns = {**options, "samples": samples, "left_out": left}
        write_element(self.file, "uns", {"effects": uns})
        return table.drop(columns="model"), left

    def _parquet(self, group: Mapping[str, str], schema: pa.Schema) -> pq.ParquetWriter:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", "_".join(group.values())) or "all"
        path = self.folder / f"{name}.parquet"
        if path.exists():
            path = self.folder / f"{name}-{len(self.obs)}.parquet"
        return pq.ParquetWriter(path, schema, compression="zstd")

    def _long(
        self, group: Mapping[str, str], found: Effects, rows: slice, change: Any, t: Any
    ) -> pa.Table:
        """Some conditions with a row for each gene that has a value, in the order of the genes."""
        row, gene = np.nonzero(np.isfinite(t))
        own, n = t[row, gene], row.size
        numbers = {
            "log2_fold_change": change[row, gene],
            "t": own,
            "mean_expression": found.genes["mean_expression"].to_numpy(np.float32)[gene],
        }
        if self.wanted.p_values:
            p = t_pvalues(own, found.genes["df"].to_numpy()[gene])
            ends = np.searchsorted(row, np.arange(len(t) + 1))
            fdr = [false_discovery_rates(p[lo:hi]) for lo, hi in pairwise(ends)]
            with np.errstate(invalid="ignore"):
                numbers["standard_error"] = numbers["log2_fold_change"] / own
            numbers |= {"p_value": p, "fdr": np.concatenate(fdr)}
        columns = {name: (np.zeros(n, np.int32), [label]) for name, label in group.items()}
        conditions = found.conditions.index.astype(str).tolist()
        columns[self.wanted.condition] = (row + rows.start).astype(np.int32), conditions
        columns["gene"] = gene.astype(np.int32), found.genes.index.astype(str).tolist()
        texts = {
            name: pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(labels))
            for name, (codes, labels) in columns.items()
        }
        return pa.table({**texts, **numbers})


def read_distances(path: Path, wanted: Options) -> pd.DataFrame:
    """E-distances and their p-values, by the labels of the conditions."""
    labels = [*wanted.within, wanted.condition]
    values = {"edistance": "edistance", "p_value": "edistance_p_value"}
    types = dict.fromkeys(labels, str) | dict.fromkeys(values, float)
    gaps: dict[str, Any] = {"keep_default_na": False, "na_values": dict.fromkeys(values, "")}
    table = pd.read_csv(path, sep="\t", dtype=types, usecols=[*types], **gaps)
    return table.rename(columns=values).set_index(labels)
