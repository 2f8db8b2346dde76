"""Options with other values than the defaults, compared with scanpy's functions."""

from __future__ import annotations

import shutil
import warnings
from collections import Counter
from contextlib import nullcontext as nothing
from dataclasses import dataclass, replace
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import zarr

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project

pytestmark = [
    pytest.mark.workflow,
    # For the plate with a duplicate name, which is intended.
    pytest.mark.filterwarnings("ignore:Observation names are not unique:UserWarning"),
]

N_COMPS = CONFIG["pca"]["n_comps"]
N_TOP = CONFIG["hvg"]["n_top_genes"]
MIN_CELLS = 12
MAX_VALUE = 2.5
FLAVOR = "cell_ranger"
OPTIONS = {
    "backend": "cpu",
    "genes": "intersect",
    "qc": CONFIG["qc"] | {"min_cells": MIN_CELLS},
    "map": {"cells": "sample"},
    "hvg": {"n_top_genes": N_TOP, "flavor": FLAVOR},
    "scale": {"max_value": MAX_VALUE},
}


# Characters with a meaning for Snakemake, a shell or a format string.
ODD = "A & B {plate} {x} * [1-9]? 'ü\" $HOME 細胞"
DONOR = "donor {plate} {x} of"


@dataclass
class Run:
    """A finished atlas, its plates, and scanpy's results for them."""

    project: Project
    plates: dict[str, ad.AnnData]
    hvg: dict[str, pd.DataFrame]  # of frequent genes
    genes: list[str]
    merged: ad.AnnData

    def atlas(self) -> ad.AnnData:
        return ad.read_zarr(self.project.results / "atlas.zarr")

    def table(self, plate: str) -> pd.DataFrame:
        return pd.read_parquet(self.project.results / f"plates/{plate}/hvg.parquet")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two Zarr stores and an address with different genes and orders, and equal cell names."""
    folder = tmp_path_factory.mktemp("options")
    plates = odd_plates()
    write_zarr(folder / ODD / "p1.zarr", plates["p1"], 3)
    write_zarr(folder / ODD / "p.2.zarr", plates["p.2"], 2)
    write_plate(folder / "p3.h5ad", plates["p3"])
    project = Project(folder / "project", CONFIG | OPTIONS)
    places: dict[str, Path | str] = {n: folder / ODD / f"{n}.zarr" for n in ("p1", "p.2")}
    places["p3"] = (folder / "p3.h5ad").as_uri()
    assert places["p3"].startswith("file:///")
    project.write_plates(places)
    sheet = project.folder / "plates.tsv"
    sheet.write_text(sheet.read_text().replace("donor of", DONOR))
    project.build("atlas")
    for plate in plates.values():
        plate.obs_names_make_unique()
    return Run(project, plates, *by_hand(plates))


def odd_plates() -> dict[str, ad.AnnData]:
    rng = np.random.default_rng(0)
    p1, p2, p3 = (simulate_plate(i, n_cells=250, n_genes=600) for i in (1, 2, 3))
    p1, p2, p3 = p1[:, 20:], p2[:, rng.permutation(600)[:570]], p3[:, ::-1][:, 15:]
    plates = {"p1": p1.copy(), "p.2": p2.copy(), "p3": p3.copy()}
    alike = {"p1": ["shared", "twice", "twice"], "p.2": ["own", "p.2"], "p3": ["shared"]}
    for name, cells in alike.items():
        names = plates[name].obs_names.to_numpy(dtype=object, copy=True)
        names[passed(plates[name])[: len(cells)]] = cells
        plates[name].obs_names = names
        plates[name].obs["size_factor"] = np.arange(250) * 0.5  # as other tools compute them
    return plates


def passed(plate: ad.AnnData) -> np.ndarray:
    return np.flatnonzero(plate.obs["pass_filter"] == "full")


def write_zarr(path: Path, plate: ad.AnnData, zarr_format: int) -> None:
    # anndata warns of both formats: one is old, the other will have shards soon.
    path.parent.mkdir(exist_ok=True)
    with ad.settings.override(zarr_write_format=zarr_format), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        plate.write_zarr(path)
    assert (path / ("zarr.json" if zarr_format == 3 else ".zgroup")).is_file()


def by_hand(plates: dict[str, ad.AnnData]) -> tuple[dict, list[str], ad.AnnData]:
    """Ranked genes of each plate, genes of the atlas, log-normalised cells of all plates."""
    tables, adatas = {}, {}
    for name, plate in plates.items():
        adata = plate[passed(plate)].copy()
        sc.pp.normalize_total(adata)
        sc.pp.log1p(adata)
        seen = adata.copy()
        sc.pp.filter_genes(seen, min_cells=MIN_CELLS)
        sc.pp.highly_variable_genes(seen, n_top_genes=N_TOP, flavor=FLAVOR)
        tables[name], adatas[name] = seen.var, adata
    votes = Counter(g for table in tables.values() for g in table.index[table["highly_variable"]])
    common = set.intersection(*(set(plate.var_names) for plate in plates.values()))
    enough = CONFIG["consensus"]["min_plates"]
    genes = [g for g in plates["p1"].var_names if g in common and votes[g] >= enough]
    merged = ad.concat({name: a[:, genes] for name, a in adatas.items()}, label="plate")
    return tables, genes, merged


def changed(run: Run, folder: Path, **options: object) -> Run:
    """Atlas with other options, built in a copy of the folder."""
    project = run.project.copied(folder / "copy")
    project.change(**options)
    assert project.build("atlas") == {"pca", "atlas"}
    return replace(run, project=project)


def test_variable_genes_are_chosen_among_those_that_enough_cells_express(run: Run):
    for name, theirs in run.hvg.items():
        ours = run.table(name)
        assert list(ours.index) == list(run.plates[name].var_names)
        assert ours["highly_variable"].sum() == N_TOP
        assert set(ours.index[ours["highly_variable"]]) == set(
            theirs.index[theirs["highly_variable"]]
        )
        rare = ~ours.index.isin(theirs.index)
        assert ours["dispersions_norm"].isna().equals(pd.Series(rare, index=ours.index))
        # Premise: without the bound rare genes are among the most variable.
        everything = run.plates[name][passed(run.plates[name])].copy()
        sc.pp.normalize_total(everything)
        sc.pp.log1p(everything)
        sc.pp.highly_variable_genes(everything, n_top_genes=N_TOP, flavor=FLAVOR)
        assert everything.var["highly_variable"].to_numpy()[rare].any()


def test_the_atlas_has_the_common_genes_in_the_first_plates_order(run: Run):
    assert list(run.atlas().var_names) == run.genes
    lost = set(run.hvg["p.2"].query("highly_variable").index) - set(run.plates["p1"].var_names)
    assert lost, "the premise: variable genes that the first plate lacks"
    for other in ("p.2", "p3"):
        there = [gene for gene in run.plates[other].var_names if gene in set(run.genes)]
        assert sorted(there) == sorted(run.genes)
        assert there != run.genes, "the premise: another order"


def test_values_come_from_all_genes_of_a_plate(run: Run):
    atlas = run.atlas()
    assert list(atlas.obs["plate"]) == list(run.merged.obs["plate"])
    assert list(atlas.obs["donor"]) == [f"{DONOR} {plate}" for plate in run.merged.obs["plate"]]
    np.testing.assert_array_equal(atlas.obs["pcnt_mito"], run.merged.obs["pcnt_mito"])
    theirs = run.merged.X.copy()
    theirs.sort_indices()
    np.testing.assert_array_equal(atlas.X.indptr, theirs.indptr)
    np.testing.assert_array_equal(atlas.X.indices, theirs.indices)
    # scatlas rounds to float32 once, scanpy four times (total, factor, product, logarithm).
    np.testing.assert_allclose(atlas.X.data, theirs.data, rtol=5e-7)


def test_a_source_column_gives_way_to_ours_and_stays(run: Run):
    atlas = run.atlas()
    theirs = run.merged.obs["size_factor"]
    np.testing.assert_array_equal(atlas.obs["source_size_factor"], theirs)
    assert (atlas.obs["size_factor"].to_numpy() != theirs.to_numpy()).any()
    log = (run.project.results / "logs/select_genes/p1.log").read_text()
    assert "plate p1: obs had a column 'size_factor': it is 'source_size_factor' now" in log


def test_cells_that_are_called_alike_get_names_of_their_own(run: Run):
    atlas = run.atlas()
    assert atlas.obs_names.is_unique
    names = {plate: list(atlas.obs_names[atlas.obs["plate"] == plate]) for plate in run.plates}
    assert names["p1"][:3] == ["shared-p1", "twice", "twice-1"]
    assert names["p.2"][:2] == ["own", "p.2"]
    assert names["p3"][0] == "shared-p3"
    theirs = run.merged.obs_names
    assert (atlas.obs_names != theirs).sum() == 2, "all other cells keep theirs"
    log = (run.project.results / "logs/concat_on_disk.log").read_text()
    assert "2 cells have a name that occurs on more than one plate" in log


@pytest.mark.parametrize("zero_center", [False, True], ids=["not centred", "centred"])
def test_components_are_those_of_the_scaled_and_clipped_genes(
    run: Run, tmp_path: Path, zero_center: bool
):
    if zero_center:
        run = changed(run, tmp_path, scale={"max_value": MAX_VALUE, "zero_center": True})
    scaled = run.merged.copy()
    with pytest.warns(match="densifies") if zero_center else nothing():
        sc.pp.scale(scaled, zero_center=zero_center, max_value=MAX_VALUE)
    values = scaled.X if zero_center else scaled.X.data
    assert (values == MAX_VALUE).sum() > 100, "the premise: some values are clipped"
    assert_same_components(run.atlas(), scaled, zero_center=True)


def test_components_without_centring(run: Run, tmp_path: Path):
    run = changed(run, tmp_path, scale=None, pca={"n_comps": N_COMPS, "zero_center": False})
    assert_same_components(run.atlas(), run.merged, zero_center=False)


def assert_same_components(atlas: ad.AnnData, theirs: ad.AnnData, *, zero_center: bool) -> None:
    exact = theirs.copy()
    exact.X = exact.X.astype(np.float64)
    options = {"svd_solver": "arpack", "mask_var": None, "dtype": "float64"}
    sc.pp.pca(exact, n_comps=N_COMPS, zero_center=zero_center, **options)
    signs = np.sign((atlas.varm["PCs"] * exact.varm["PCs"]).sum(axis=0))
    np.testing.assert_allclose(atlas.varm["PCs"] * signs, exact.varm["PCs"], atol=1e-6)
    for key in ("variance", "variance_ratio"):
        np.testing.assert_allclose(atlas.uns["pca"][key], exact.uns["pca"][key], rtol=1e-6)
    spread = exact.obsm["X_pca"].std(axis=0)
    np.testing.assert_allclose(
        atlas.obsm["X_pca"] * signs / spread, exact.obsm["X_pca"] / spread, atol=1e-5
    )


def test_zarr_stores_that_change_are_loaded_again(run: Run, tmp_path: Path):
    """Written again, in both formats; then a count in one and a column in the other, which their
    root metadata do not show.
    """
    project = run.project.copied(tmp_path / "copy")
    sources = run.project.folder.parent / ODD
    shutil.copytree(sources, tmp_path / "before")
    stores = [f"results/plates/{plate}/counts.zarr/zarr.json" for plate in run.plates]

    def loaded(plate: str) -> ad.AnnData:
        return ad.read_zarr(project.results / f"plates/{plate}/counts.zarr")

    try:
        for plate, zarr_format in {"p1": 3, "p.2": 2}.items():
            other = run.plates[plate].copy()
            other.X.data[0] += 1
            shutil.rmtree(sources / f"{plate}.zarr")
            write_zarr(sources / f"{plate}.zarr", other, zarr_format)
        assert project.build(*stores) == {"load/p1", "load/p.2"}
        assert loaded("p.2").X.sum() == run.plates["p.2"].X.sum() + 1
        roots = [path for path in sources.glob("*/*") if path.is_file()]
        ages = [path.stat().st_mtime_ns for path in roots]
        counts = zarr.open_array(sources / "p1.zarr/X/data", mode="r+")
        counts[0] += 1
        column = zarr.open_array(sources / "p.2.zarr/obs/pcnt_mito", mode="r+")
        column[0] = 0.5
        assert [path.stat().st_mtime_ns for path in roots] == ages, "a premise of this test"
        assert project.build(*stores) == {"load/p1", "load/p.2"}
        assert project.build(*stores) == set()
    finally:
        shutil.rmtree(sources)
        shutil.copytree(tmp_path / "before", sources)
    assert loaded("p1").X.sum() == run.plates["p1"].X.sum() + 2
    assert loaded("p.2").obs["pcnt_mito"].iloc[0] == 0.5


def test_seurat_v3_ranks_the_counts_of_the_kept_cells(
    tmp_path: Path, two: Project, plates: dict[str, Path]
):
    bounds = {"qc": CONFIG["qc"] | {"min_genes": 60, "min_cells": MIN_CELLS}}
    hvg = {"n_top_genes": N_TOP, "flavor": "seurat_v3"}
    project = two.copied(tmp_path / "copy")
    project.change(**CONFIG | bounds | {"backend": "cpu", "hvg": hvg})
    plates = {name: plates[name] for name in ("p1", "p2")}
    project.build("results/consensus_genes.tsv")
    tables = {}
    for name, path in plates.items():
        adata = ad.read_h5ad(path)
        sc.pp.filter_cells(adata, min_genes=60)
        adata = adata[passed(adata)].copy()
        tables[name] = sa.pp.highly_variable_genes(adata, **hvg, min_cells=MIN_CELLS, inplace=False)
        ours = pd.read_parquet(project.results / f"plates/{name}/hvg.parquet")
        columns = ["means", "variances", "highly_variable_rank", "variances_norm"]
        assert list(ours) == [*columns, "highly_variable"]
        pd.testing.assert_frame_equal(ours, tables[name][list(ours)], check_names=False)
        sc.pp.filter_genes(adata, min_cells=MIN_CELLS)
        theirs = sc.pp.highly_variable_genes(adata, **hvg, inplace=False)
        np.testing.assert_allclose(
            ours.loc[theirs.index, "variances_norm"], theirs["variances_norm"], rtol=1e-12
        )
    found = pd.read_parquet(project.results / "consensus.parquet")
    votes = sum(table["highly_variable"].astype(int) for table in tables.values())
    assert list(found.index) == list(votes.index[votes >= CONFIG["consensus"]["min_plates"]])
    norms = pd.DataFrame([table["variances_norm"] for table in tables.values()])
    np.testing.assert_allclose(found["variances_norm"], norms[found.index].mean(), rtol=1e-14)
