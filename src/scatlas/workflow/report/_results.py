"""What the report reads of a finished run, a plate at a time where plates are large."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from scatlas.errors import InputError
from scatlas.io import read_cells
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.workflow.cell_filter import BOUNDS
from scatlas.workflow.report._atlas_map import AtlasMap

if TYPE_CHECKING:
    from pathlib import Path

    from anndata import AnnData

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


@dataclass(frozen=True)
class Results:
    """Files of a run, and their content; mappings are by plate, in the order of the plate sheet."""

    qc: Mapping[str, Path]  # qc.parquet
    summaries: Mapping[str, Path]  # qc_summary.json
    hvg: Mapping[str, Path]  # hvg.parquet
    genes: Path  # consensus_genes.tsv
    pca: Path  # pca.zarr
    umap: Path  # umap.h5ad
    manifests: Path  # folder of the manifests and run records
    integrated: Path | None = None  # integrated.h5ad, if the config asks for it
    doublets: Mapping[str, Path] = field(default_factory=dict)  # doublets.json
    markers: Path | None = None  # markers.tsv, if the config asks for it
    means: Path | None = None  # markers.h5ad
    atlas: Path | None = None  # atlas.zarr, if it has the map of all cells
    left_out: Mapping[str, str] | None = None  # the reasons; None if bad plates stop a run

    def __post_init__(self) -> None:
        for name in ("summaries", "hvg"):
            if list(getattr(self, name)) != list(self.qc):
                msg = (
                    f"the plates of {name} ({', '.join(getattr(self, name))}) are not those of qc "
                    f"({', '.join(self.qc)}): give each plate to all three, in one order"
                )
                raise InputError(msg)

    @property
    def qc_tables(self) -> CellTables:
        """QC metrics of each plate's cells."""
        return CellTables(self.qc)

    @cached_property
    def qc_summaries(self) -> dict[str, dict[str, Any]]:
        """Cells in, kept and removed, thresholds and medians of each plate; rules in their turn."""
        summaries = {p: json.loads(path.read_text("utf-8")) for p, path in self.summaries.items()}
        for summary in summaries.values():
            for facts in ("removed", "thresholds"):
                summary[facts] = {
                    rule: summary[facts][rule]
                    for rule in ("filter", *BOUNDS, "doublets")
                    if rule in summary[facts]
                }
        return summaries

    @property
    def n_cells(self) -> tuple[int, int]:
        """Cells that were read and kept."""
        plates = self.qc_summaries.values()
        return sum(plate["n_cells"] for plate in plates), sum(plate["n_kept"] for plate in plates)

    @cached_property
    def median_pct_mt(self) -> dict[str, float]:
        """Median mitochondrial share of the cells kept, in per cent, by plate; NaN for none."""
        tables = ((p, read_cells(path, ["pct_counts_mt", "keep"])) for p, path in self.qc.items())
        return {p: float(table.loc[table["keep"], "pct_counts_mt"].median()) for p, table in tables}

    @cached_property
    def clusters_by_plate(self) -> pd.DataFrame:
        """Cells on the map of each cluster (rows) on each plate (columns)."""
        if self.atlas_map is None:
            obs = self.cells.obs
            return pd.crosstab(obs["leiden"].astype(str), obs["plate"].astype(str))
        return self.atlas_map.crosstab("plate").rename_axis("leiden")

    @cached_property
    def doublet_facts(self) -> dict[str, dict[str, Any]]:
        """Rates and histograms of doublet scores, by plate and capture."""
        found = {p: json.loads(path.read_text("utf-8")) for p, path in self.doublets.items()}
        return {
            f"{plate}, {capture}" if capture else plate: facts
            for plate, summary in found.items()
            for capture, facts in summary["captures"].items()
        }

    @cached_property
    def variable_genes(self) -> dict[str, pd.Index]:
        """Highly variable genes of each plate, in the plate's order."""
        return {
            plate: pd.read_parquet(path, columns=["highly_variable"]).query("highly_variable").index
            for plate, path in self.hvg.items()
        }

    @cached_property
    def consensus(self) -> pd.Index:
        """Genes of the atlas."""
        return pd.Index(pd.read_csv(self.genes, sep="\t", dtype=str, keep_default_na=False)["gene"])

    @cached_property
    def variance(self) -> pd.DataFrame:
        """Variance of each component, its share of the whole, and the running sum of shares."""
        group = open_with_zarr_python(self.pca)
        found = pd.DataFrame({key: group[key][:] for key in ("variance", "variance_ratio")})
        found.index = pd.RangeIndex(1, len(found) + 1, name="component")
        return found.assign(cumulative=found["variance_ratio"].cumsum())

    @cached_property
    def cells(self) -> AnnData:
        """The subset's ``obs`` and ``obsm['X_umap']``, without its counts."""
        return _cells(self.umap)

    @property
    def n_sample(self) -> int:
        """Cells with which the map was computed."""
        # Of a map of all cells the sample may be all cells: their table would take half a minute.
        return self.atlas_map.n_sample if self.atlas_map else self.cells.n_obs

    @cached_property
    def atlas_map(self) -> AtlasMap | None:
        """The map of all cells, if the atlas has one."""
        return None if self.atlas is None else AtlasMap(self.atlas)

    @cached_property
    def marker_table(self) -> pd.DataFrame:
        """Marker genes of all groups."""
        text = dict.fromkeys(("by", "group", "names"), str)
        return pd.read_csv(self.markers, sep="\t", dtype=text, keep_default_na=False)

    @cached_property
    def group_means(self) -> AnnData:
        """Means and shares of the marker genes in all groups."""
        import anndata as ad

        return ad.read_h5ad(self.means)

    @cached_property
    def mixed_cells(self) -> AnnData:
        """The same of the mixed cells, with ``X_umap_harmony`` if there is a map of them."""
        assert self.integrated is not None
        return _cells(self.integrated)

    @cached_property
    def mixing(self) -> pd.DataFrame:
        """Scores of the mixed cells."""
        import anndata as ad
        import h5py

        with h5py.File(self.integrated) as file:
            return ad.io.read_elem(file["uns/integrate/scores"])


def _cells(path: Path) -> AnnData:
    import anndata as ad
    import h5py

    with h5py.File(path) as file:
        maps = {name: file["obsm"][name][:] for name in file["obsm"] if name.startswith("X_umap")}
        return ad.AnnData(obs=ad.io.read_elem(file["obs"]), obsm=maps)
