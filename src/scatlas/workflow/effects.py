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
from anndata.io import read_elem, sparse_dataset
from scipy.sparse import csr_matrix

from scatlas.errors import InputError
from scatlas.io import open_tables
from scatlas.io.files.hdf5_writing import write_element
from scatlas.matrix.effects_groups import N_CELLS, as_obs, drop_small, fit_groups, label_samples
from scatlas.matrix.effects_moderation import false_discovery_rates, t_pvalues

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import h5py
    from numpy.typing import NDArray

    from scatlas.matrix.effects_groups import GroupEffects
    from scatlas.workflow.config.sections import Effects as Options

# Rows of a Parquet file that are made at once, and bytes of a chunk of the h5ad.
_ROWS, _CHUNK_BYTES = 2**21, 2**20


@dataclass(frozen=True)
class Sums:
    """Merged sums of the replicates of all plates, in an open h5ad."""

    counts: Any  # [n_rows, n_genes], CSR on disk
    genes: pd.Index
    samples: pd.DataFrame  # as label_samples makes them, with their number as row
    numbers: NDArray[np.int64]  # of the sample of each row: one on several plates is added up
    plates: NDArray[np.object_]  # of each row
    lacks: dict[str, NDArray[np.bool_]]  # by plate, the genes that it does not measure
    left_out: list[tuple[str, ...]]

    @classmethod
    def read(cls, file: h5py.File, stores: Mapping[str, Path], wanted: Options) -> Sums:
        """Read the labels of the sums; those of few cells are left out."""
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

    def effects(self, wanted: Options) -> Iterator[GroupEffects]:
        """Effects of each group; what has none is added to ``left_out``."""
        options = {"method": wanted.method, "control": wanted.control}
        return fit_groups(self.samples, self.counts_of, self.genes, self.left_out, **options)

    def counts_of(self, samples: NDArray[Any]) -> NDArray[Any]:
        """Counts of some samples; NaN for genes that a plate of a sample does not measure."""
        order = np.full(self.numbers.max() + 1, -1)
        order[samples] = np.arange(samples.size)
        of_rows = np.where(self.numbers >= 0, order[self.numbers], -1)
        rows = np.flatnonzero(of_rows >= 0)
        places = of_rows[rows], np.arange(rows.size)
        adds = csr_matrix((np.ones(rows.size, np.int64), places), (samples.size, rows.size))
        part = adds @ self.counts[rows]
        some_lack = any(missing.any() for missing in self.lacks.values())
        fits = not part.nnz or part.data.max() < np.iinfo(np.int32).max
        counts = part.astype(np.int32 if fits and not some_lack else np.float64).toarray()
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

    def append(self, found: GroupEffects) -> None:
        """Write the effects of one value of the columns of ``within``."""
        group = dict(zip(self.wanted.within, found.key, strict=True))
        table = found.table(self.wanted.within, self.wanted.condition)
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
        self._write_parquet(group, table, found)
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
        names = ("method", "control", "condition", *(["block"] if self.wanted.block else []))
        options = {name: getattr(self.wanted, name) for name in names}
        uns = {**options, "samples": samples, "left_out": left}
        write_element(self.file, "uns", {"effects": uns})
        return table.drop(columns="model"), left

    def _write_parquet(
        self, group: Mapping[str, str], table: pd.DataFrame, found: GroupEffects
    ) -> None:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", "_".join(group.values())) or "all"
        path = self.folder / f"{name}.parquet"
        if path.exists():
            path = self.folder / f"{name}-{len(self.obs)}.parquet"
        labels = {**group, self.wanted.condition: ""}
        df = found.genes["df"].to_numpy()
        step = max(1, _ROWS // max(1, len(df)))
        writer = None
        for lo in range(0, len(table), step):
            part = _long(
                table.iloc[lo : lo + step], found, slice(lo, lo + step), df, self.wanted.p_values
            )
            columns = {
                label: pa.DictionaryArray.from_arrays(
                    pa.array(part["row"] if not value else np.zeros(part["row"].size, np.int32)),
                    pa.array([value] if value else table[self.wanted.condition].tolist()),
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


def read_distances(path: Path, wanted: Options) -> pd.DataFrame:
    """E-distances and their p-values, by the labels of the conditions."""
    labels = [*wanted.within, wanted.condition]
    values = {"edistance": "edistance", "p_value": "edistance_p_value"}
    types = dict.fromkeys(labels, str) | dict.fromkeys(values, float)
    gaps: dict[str, Any] = {"keep_default_na": False, "na_values": dict.fromkeys(values, "")}
    table = pd.read_csv(path, sep="\t", dtype=types, usecols=[*types], **gaps)
    return table.rename(columns=values).set_index(labels)


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
