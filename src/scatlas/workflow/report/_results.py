"""What the report reads of a finished run, a plate at a time where plates are large."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import pl
from scatlas.columns import MAX_NUMBERS, name_of_gaps
from scatlas.errors import InputError
from scatlas.io import read_cells
from scatlas.io.files.local_zarr import open_rows, open_store
from scatlas.io.tables.cell_parquet import kept_names
from scatlas.io.tables.column import Column, ColumnCodes
from scatlas.workflow.cell_filter import BOUNDS, DEVIATIONS
from scatlas.workflow.explore import read_markers
from scatlas.workflow.labels import Labels
from scatlas.workflow.report import _tables
from scatlas.workflow.report._odd_plates import PlateComparison, facts_of_plates

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Up to this many cells are drawn as points.
MAX_POINTS = 200_000
# Text of more values has no use as colours.
_MAX_TEXTS = 10_000
QC_COLUMNS = ["total_counts", "n_genes_by_counts", "pct_counts_mt", "keep"]


class CellTables(Mapping[str, pd.DataFrame]):
    """QC metrics of the cells by plate, read when asked for and not kept."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)

    def __getitem__(self, plate: str) -> pd.DataFrame:
        return read_cells(self._paths[plate], QC_COLUMNS)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


class AtlasMap:
    """Coordinates and ``obs`` columns of all cells of an ``atlas.zarr`` with ``obsm['X_umap']``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._root = root = open_store(path)
        self._obs, self._xy = root["obs"], open_rows(path, "obsm/X_umap")
        self.n_cells: int = self._xy.shape[0]
        self.columns: list[str] = list(self._obs.attrs["column-order"])

    @cached_property
    def n_sample(self) -> int:
        """Cells with which the map was computed; all others were projected."""
        return int(self._root["uns/map/n_sample"][()])

    def can_colour(self, column: str) -> bool:
        """Whether the atlas has a column, with numbers or not too many values."""
        if column not in self.columns:
            return False
        kind = self._column(column).kind
        if kind in ("number", "nullable") or self._codes(column) is not None:
            return True
        logger.warning(
            "obs[%r] has more than %s values: no picture shows it", column, f"{_MAX_TEXTS:,}"
        )
        return False

    def picture(self, color: str) -> Figure:
        """Draw the map: points, or the density of very many cells."""
        low = color == "leiden_share"  # low values are the remarkable ones
        column = self._column(color)
        if self.n_cells <= MAX_POINTS:
            return pl.umap(self._path, color, lowest_on_top=low)
        codes = None if column.dtype.kind == "f" else self._codes(color)
        is_integer = column.kind in ("number", "nullable") and column.dtype.kind in "iu"
        if codes is None or (is_integer and len(codes.names) > MAX_NUMBERS):

            def read(lo: int, hi: int) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
                values = column.values(lo, hi).astype(np.float64)
                values[column.gaps(lo, hi)] = np.nan
                return self._xy[lo:hi], values

            return pl.umap_density(read, self.n_cells, color, low=low)
        levels = codes  # mypy forgets in a lambda that it is not None
        names, number = _names_in_use(levels)
        return pl.umap_density(
            lambda lo, hi: (self._xy[lo:hi], number[levels.read(lo, hi)]),
            self.n_cells,
            color,
            names=names,
            no_value=name_of_gaps(color, self.columns, names),
        )

    def n_values(self, color: str) -> int | None:
        """Number of values of a column; None if it measures cells."""
        column = self._column(color)
        codes = None if column.dtype.kind == "f" else self._codes(color)
        return None if codes is None else len(codes.names)

    def crosstab(self, column: str) -> pd.DataFrame:
        """Cells of each cluster by the values of a column, which has some 10,000 at most."""
        leiden, other = self._codes("leiden"), self._codes(column)
        assert leiden is not None
        assert other is not None
        shape = len(leiden.names), len(other.names) + 1  # the first: no value
        counts = np.zeros(shape[0] * shape[1], np.int64)
        for lo, hi in leiden.column.spans(wide=True):
            pair = leiden.read(lo, hi) * shape[1] + other.read(lo, hi) + 1
            counts += np.bincount(pair, minlength=counts.size)
        names = [*other.names, name_of_gaps(column, self.columns, other.names)]
        table = pd.DataFrame(np.roll(counts.reshape(shape), -1, axis=1), leiden.names, names)
        return table.loc[:, table.any()]

    def _column(self, name: str) -> Column:
        return Column.open(self._path, self._obs, name)

    def _codes(self, name: str) -> ColumnCodes | None:
        return ColumnCodes.open(self._column(name), most=_MAX_TEXTS)


def _names_in_use(codes: ColumnCodes) -> tuple[list[str], NDArray[np.int64]]:
    """Names that cells have, as `pl.umap` orders them, and the new code of each old one."""
    sizes = np.zeros(len(codes.names) + 1, np.int64)  # the first: no value
    for lo, hi in codes.column.spans(wide=True):
        sizes += np.bincount(codes.read(lo, hi) + 1, minlength=len(sizes))
    used = [name for name, size in zip(codes.names, sizes[1:], strict=True) if size]
    names = natsorted(used) if used == sorted(used) else used
    position = {name: i for i, name in enumerate(names)}
    return names, np.array([*(position.get(name, -1) for name in codes.names), -1])


@dataclass(frozen=True)
class Results:
    """Files of a run, and their content; mappings are by plate, in the order of the plate sheet."""

    qc: Mapping[str, Path]  # qc.parquet
    summaries: Mapping[str, Path]  # qc_summary.json
    hvg: Mapping[str, Path]  # hvg.parquet
    genes: Path  # consensus_genes.tsv
    pca: Path  # pca.zarr
    manifests: Path  # folder of the manifests and run records
    umap: Path | None = None  # umap.h5ad, without atlas.zarr or for types of cells
    integrated: Path | None = None  # integrated.h5ad, if the config asks for it
    effects: Path | None = None  # effects.h5ad
    doublets: Mapping[str, Path] = field(default_factory=dict)  # doublets.json
    markers: Path | None = None  # markers.tsv, if the config asks for it
    means: Path | None = None  # markers.h5ad
    labels_store: Path | None = None  # labels.zarr, if clusters or cells have names
    atlas: Path | None = None  # atlas.zarr, if it has the map of all cells
    too_few_cells: Mapping[str, int] = field(default_factory=dict)  # plates that choose no genes
    left_out: Mapping[str, str] | None = None  # the reasons; None if bad plates stop a run

    def __post_init__(self) -> None:
        for name in ("summaries", "hvg"):
            if list(getattr(self, name)) != list(self.qc):
                raise InputError(
                    f"the plates of {name} ({', '.join(getattr(self, name))}) are not those of qc "
                    f"({', '.join(self.qc)}): give each plate to all three, in one order"
                )

    @cached_property
    def labels(self) -> Labels:
        return Labels.open(self.labels_store)

    @property
    def qc_tables(self) -> CellTables:
        return CellTables(self.qc)

    @cached_property
    def qc_summaries(self) -> dict[str, dict[str, Any]]:
        """Cells in, kept and removed, thresholds and medians of each plate; rules in their turn."""
        summaries = {p: json.loads(path.read_text("utf-8")) for p, path in self.summaries.items()}
        for summary in summaries.values():
            for facts in ("removed", "thresholds"):
                summary[facts] = {
                    rule: summary[facts][rule]
                    for rule in ("filter", *BOUNDS, *DEVIATIONS, "doublets")
                    if rule in summary[facts]
                }
        return summaries

    @cached_property
    def plate_bounds(self) -> pd.DataFrame | None:
        """Bounds of the plates or of groups of their cells; None without ``qc.mads``."""
        has_bounds = all("bounds" in summary for summary in self.qc_summaries.values())
        return _tables.bounds(self.qc_summaries) if has_bounds else None

    @property
    def n_cells(self) -> tuple[int, int]:
        """Cells that were read and kept."""
        plates = self.qc_summaries.values()
        return sum(plate["n_cells"] for plate in plates), sum(plate["n_kept"] for plate in plates)

    @property
    def finished(self) -> str:
        """Day on which the map was finished, such as 5 May 2026; empty without a record of it."""
        step = "atlas" if self.atlas else "embedding"
        try:
            record = json.loads((self.manifests / f"runs/{step}.json").read_bytes())
            return f"{datetime.fromisoformat(record['finished']):%-d %B %Y}"
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    @cached_property
    def median_pct_mt(self) -> dict[str, float]:
        """Median mitochondrial share of the cells kept, in per cent, by plate; NaN for none."""
        return {plate: _median_kept(path, "pct_counts_mt") for plate, path in self.qc.items()}

    @cached_property
    def clusters_by_plate(self) -> pd.DataFrame:
        """Cells on the map of each cluster (rows) on each plate (columns)."""
        if self.atlas_map is None:
            obs = self.cells.obs
            return pd.crosstab(obs["leiden"].astype(str), obs["plate"].astype(str))
        return self.atlas_map.crosstab("plate").rename_axis("leiden")

    @cached_property
    def comparison(self) -> PlateComparison:
        facts = facts_of_plates(
            self.qc_summaries,
            self.median_pct_mt,
            # A plate that chooses no genes of the atlas shares few, which is not odd.
            {plate: list[str]() for plate in self.variable_genes} | self.choosing_genes,
            self.ranked,
            self.clusters_by_plate,
        )
        return PlateComparison(facts)

    @cached_property
    def doublet_facts(self) -> dict[str, dict[str, Any]]:
        """Rates and histograms of doublet scores, by plate and capture."""
        summaries = {p: json.loads(path.read_text("utf-8")) for p, path in self.doublets.items()}
        return {
            f"{plate}, {capture}" if capture else plate: facts
            for plate, summary in summaries.items()
            for capture, facts in summary["captures"].items()
        }

    @cached_property
    def variable_genes(self) -> dict[str, list[str]]:
        """Highly variable genes of each plate, in the plate's order."""
        return {plate: _variable_genes(path) for plate, path in self.hvg.items()}

    @property
    def choosing_genes(self) -> dict[str, list[str]]:
        """Highly variable genes of the plates that choose those of the atlas."""
        plates = self.variable_genes.items()
        return {plate: genes for plate, genes in plates if plate not in self.too_few_cells}

    @cached_property
    def consensus(self) -> pd.Index:
        """Genes of the atlas."""
        return pd.Index(pd.read_csv(self.genes, sep="\t", dtype=str, keep_default_na=False)["gene"])

    def fact(self, step: str, name: str) -> list[str]:
        """A list in the manifest of a step; empty if there is none."""
        path = self.manifests / f"{step}.json"
        return json.loads(path.read_text("utf-8")).get(name, []) if path.is_file() else []

    @cached_property
    def ranked(self) -> pd.Index:
        """Genes of the atlas that are highly variable; the others are named in the config."""
        return self.consensus[~self.consensus.isin(self.fact("consensus", "also"))]

    @cached_property
    def variance(self) -> pd.DataFrame:
        """Variance of each component, its share of the whole, and the running sum of shares."""
        group = open_store(self.pca)
        table = pd.DataFrame({key: group[key][:] for key in ("variance", "variance_ratio")})
        table.index = pd.RangeIndex(1, len(table) + 1, name="component")
        return table.assign(cumulative=table["variance_ratio"].cumsum())

    @cached_property
    def cells(self) -> ad.AnnData:
        """The subset's ``obs`` and ``obsm['X_umap']``, without its counts."""
        assert self.umap is not None
        return _cells(self.umap)

    @property
    def n_sample(self) -> int:
        """Cells with which the map was computed."""
        # The sample of a map may be all cells of the atlas: their table would take half a minute.
        return self.atlas_map.n_sample if self.atlas_map else self.cells.n_obs

    @cached_property
    def atlas_map(self) -> AtlasMap | None:
        return None if self.atlas is None else AtlasMap(self.atlas)

    @cached_property
    def marker_table(self) -> pd.DataFrame:
        assert self.markers is not None
        return read_markers(self.markers)

    @cached_property
    def group_means(self) -> ad.AnnData:
        """Means and shares of the marker genes in all groups."""
        return ad.read_h5ad(self.means)

    @cached_property
    def mixed_cells(self) -> ad.AnnData:
        """The sample with its maps before and after the correction, if both were made."""
        assert self.integrated is not None
        return _cells(self.integrated)

    @cached_property
    def mixing(self) -> pd.DataFrame:
        """Scores of the mixed cells."""
        with h5py.File(self.integrated) as file:
            return ad.io.read_elem(file["uns/integrate/scores"])


def _cells(path: Path) -> ad.AnnData:
    with h5py.File(path) as file:
        maps = {name: file["obsm"][name][:] for name in file["obsm"] if name.startswith("X_umap")}
        return ad.AnnData(obs=ad.io.read_elem(file["obs"]), obsm=maps)


def _variable_genes(path: Path) -> list[str]:
    """Of one plate; pandas' own reader of tables takes ten times as long."""
    is_variable = read_cells(path, ["highly_variable"])["highly_variable"].to_numpy(bool)
    return [gene for genes in kept_names(path, is_variable)[1] for gene in genes.to_pylist()]


def _median_kept(path: Path, column: str) -> float:
    """Median of the numbers of the cells kept; pandas' own takes three times as long."""
    table = read_cells(path, [column, "keep"])
    kept = table[column].to_numpy(np.float64)[table["keep"].to_numpy(bool)]
    known = kept[~np.isnan(kept)]
    return float(np.median(known, overwrite_input=True)) if known.size else np.nan
