"""The presets of one plate, run end to end, agree with the steps of their documents in scanpy.

Plates are simulated, with fewer cells than the published ones, and with cells and genes on both
sides of the documents' bounds. The presets run unchanged except for the paths, the number of
variable genes (the decomposition of the documents' 5,000 takes half a minute) and the GPUs of the
multi-GPU preset.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp
import yaml
from sklearn.metrics import adjusted_rand_score

from scatlas.datasets import simulate_plate
from scatlas.workflow.config.loading import load
from tests.workflow.runs import ROOT, Project

pytestmark = pytest.mark.workflow

N_CELLS, N_GENES, N_TOP = 600, 11_000, 600
# Genes of cells at and beyond the documents' bounds: 200 and 10,000 stay.
ODD_CELLS = (199, 200, 10_000, 10_001, 10_500)


@dataclass
class Run:
    """A finished atlas and scanpy's results for the same plate."""

    project: Project
    plate: ad.AnnData
    kept: np.ndarray  # bool [cells of the plate]
    hvg: pd.DataFrame  # of the ranked genes
    embedded: ad.AnnData  # variable genes, components, graph, clusters

    def atlas(self) -> ad.AnnData:
        return ad.read_zarr(self.project.results / "atlas.zarr")

    def on_the_map(self) -> ad.AnnData:
        return ad.read_h5ad(self.project.results / "umap.h5ad")


@pytest.fixture(
    scope="module",
    params=["brain-1.3m", pytest.param("cell-atlas-11m", marks=pytest.mark.weekly)],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    plate = one_plate()
    (sheet,) = pd.read_csv(ROOT / f"config/{request.param}.tsv", sep="\t").itertuples()
    source = folder / Path(sheet.path).name
    if source.suffix == ".zarr":
        # anndata warns of this format, which the published store has.
        with ad.settings.override(zarr_write_format=2), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            plate.write_zarr(source)
    else:
        plate.write_h5ad(source)
    preset = yaml.safe_load((ROOT / f"config/{request.param}.yaml").read_text())
    small = {"plates": "plates.tsv", "outdir": "results", "backend": "cpu"}
    config = preset | small | {"hvg": preset["hvg"] | {"n_top_genes": N_TOP}}
    config.get("compute", {}).pop("cluster", None)
    project = Project(folder / "project", config)
    project.write_plates({sheet.plate: source})
    project.build("atlas", "embedding")
    return Run(project, plate, *by_hand(plate, request.param))


def one_plate() -> ad.AnnData:
    """Ordinary cells, cells at the bounds, and genes that few cells express."""
    plate = simulate_plate(1, n_cells=N_CELLS, n_genes=N_GENES)
    rng = np.random.default_rng(0)
    x = np.zeros((N_CELLS + len(ODD_CELLS), N_GENES), np.float32)
    x[:N_CELLS] = plate.X.toarray()
    many = np.flatnonzero((x > 0).sum(axis=1) >= 400)
    rare = np.arange(0, N_GENES, 25)
    x[:, rare] = 0
    for row, n_genes in zip(x[N_CELLS:], ODD_CELLS, strict=True):
        genes = rng.choice(np.setdiff1d(np.arange(N_GENES), rare), n_genes, replace=False)
        row[genes] = rng.integers(1, 4, n_genes)
    for i, gene in enumerate(rare):
        # No cell, or 8 to 12, some below and some above the bounds.
        if n_cells := (0, 8, 9, 10, 11, 12)[i % 6]:
            cells = [*rng.choice(many, n_cells - 1, replace=False), len(x) - 1]
            x[cells, gene] = rng.integers(1, 30, n_cells)
    obs = pd.DataFrame(index=[f"cell{i}" for i in range(len(x))])
    obs["line"] = [*plate.obs["cell_line"].astype(str), *["none"] * len(ODD_CELLS)]
    return ad.AnnData(sp.csr_matrix(x), obs=obs, var=pd.DataFrame(index=plate.var_names))


def by_hand(plate: ad.AnnData, preset: str) -> tuple[np.ndarray, pd.DataFrame, ad.AnnData]:
    """The cells of the documents in order; steps of both documents occur once."""
    adata = plate.copy()
    sc.pp.calculate_qc_metrics(adata, percent_top=None, inplace=True)
    n_genes = adata.obs["n_genes_by_counts"]
    kept = ((n_genes <= 10_000) & (n_genes >= 200)).to_numpy()
    adata = adata[kept].copy()
    if preset == "cell-atlas-11m":
        adata = adata[:, adata.var["n_cells_by_counts"] >= 10].copy()
    sc.pp.normalize_total(adata, target_sum=10_000)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=N_TOP, flavor="cell_ranger")
    hvg = adata.var
    adata = adata[:, adata.var["highly_variable"]].copy()
    exact = adata.copy()
    exact.X = exact.X.astype(np.float64)
    sc.pp.scale(exact, zero_center=False)
    sc.pp.pca(exact, n_comps=100, mask_var=None, svd_solver="arpack", dtype="float64")
    # One document has the following steps; the workflow runs them for both.
    n_pcs = 50 if preset == "brain-1.3m" else None
    sc.pp.neighbors(exact, n_neighbors=15, n_pcs=n_pcs)
    sc.tl.leiden(exact, flavor="igraph", n_iterations=2, directed=False)
    exact.X = adata.X
    return kept, hvg, exact


def test_the_same_cells_stay(run: Run):
    (table,) = (run.project.results / "plates").glob("*/qc.parquet")
    np.testing.assert_array_equal(pd.read_parquet(table)["keep"], run.kept)
    odd = run.kept[-len(ODD_CELLS) :]
    assert odd.tolist() == [200 <= n <= 10_000 for n in ODD_CELLS], "a premise: cells on the bounds"
    assert list(run.atlas().obs_names) == list(run.embedded.obs_names)


def test_the_same_genes_vary(run: Run):
    (table,) = (run.project.results / "plates").glob("*/hvg.parquet")
    ours = pd.read_parquet(table)
    assert set(ours.index[ours["highly_variable"]]) == set(run.embedded.var_names)
    ranked = ours.index.isin(run.hvg.index)
    assert ours.loc[~ranked, "dispersions_norm"].isna().all()
    if load(run.project.config).qc.drop_rare_genes:
        n_cells = (run.plate.X > 0).sum(axis=0).A1
        assert set(n_cells[~ranked]) == {*range(10)} & set(n_cells), "counted before cells are lost"
        assert {8, 9, 10} <= set(n_cells), "a premise: genes on the bound"
        lost = run.plate[:, ~ranked].X[run.kept].sum(axis=1)
        assert (lost > 0).sum() > 100, "a premise: cells with counts in rare genes"
    else:
        assert ranked.all()
    for column in ("means", "dispersions"):
        np.testing.assert_allclose(ours.loc[ranked, column], run.hvg[column], rtol=1e-5, atol=1e-6)


def test_the_same_values(run: Run):
    ours, theirs = run.atlas(), run.embedded
    assert list(ours.var_names) == list(theirs.var_names)
    np.testing.assert_array_equal(ours.X.indptr, theirs.X.indptr)
    np.testing.assert_array_equal(ours.X.indices, theirs.X.indices)
    # scatlas rounds to float32 once, scanpy four times (total, factor, product, logarithm).
    np.testing.assert_allclose(ours.X.data, theirs.X.data, rtol=5e-7)


def test_the_same_components(run: Run):
    ours, theirs = run.atlas(), run.embedded
    assert ours.obsm["X_pca"].shape[1] == 100
    signs = np.sign((ours.varm["PCs"] * theirs.varm["PCs"]).sum(axis=0))
    for key in ("variance", "variance_ratio"):
        np.testing.assert_allclose(ours.uns["pca"][key], theirs.uns["pca"][key], rtol=1e-6)
    # Components rotate within pairs of nearly equal variance by the rounding of the values (3e-7)
    # divided by the gap of the pair, which is at least a hundredth.
    gap = -np.diff(theirs.uns["pca"]["variance"]) / theirs.uns["pca"]["variance"][1:]
    turn = 1e-6 / np.minimum(np.r_[np.inf, gap], np.r_[gap, np.inf]).min()
    spread = theirs.obsm["X_pca"].std(axis=0)
    np.testing.assert_allclose(
        ours.obsm["X_pca"] * signs / spread, theirs.obsm["X_pca"] / spread, atol=max(turn, 1e-4)
    )


def test_the_same_neighbours_and_clusters(run: Run):
    ours, theirs = run.on_the_map(), run.embedded[run.on_the_map().obs_names]
    assert ours.n_obs == theirs.n_obs == run.embedded.n_obs, "all cells are on the map"
    a, b = (x.obsp["distances"].astype(bool) for x in (ours, run.embedded))
    order = run.embedded.obs_names.get_indexer(ours.obs_names)
    b = b[order][:, order]
    # Exact in both; neighbours with distances within the rounding may swap.
    assert a.multiply(b).sum() >= 0.9999 * b.sum()
    assert ours.obsm["X_umap"].shape == (ours.n_obs, 2)
    # Leiden moves cells in a random order by gains that differ in their last bits, so cells
    # between two clusters may end in either.
    assert adjusted_rand_score(ours.obs["leiden"], theirs.obs["leiden"]) > 0.95
    assert adjusted_rand_score(ours.obs["leiden"], ours.obs["line"]) > 0.8
