"""New plates on a finished atlas: right, the same on each run, and without a change of the atlas."""

from __future__ import annotations

import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from anndata.io import read_elem

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.zarr_writer.elements import consolidate, open_group_to_write, write_elem
from tests.workflow.conftest import once
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

# What new plates need of their config: the rest comes from the record of the atlas.
CONFIG = {
    "plates": "plates.tsv",
    "new_plates": {"obs": ["cell_line"]},
    "compute": {"block_budget": "16MB"},
}
STEPS = ("load", "qc_filter", "normalize", "map_plate")


def add_map(store: Path) -> None:
    """Add UMAP and clusters of all cells to an atlas.zarr."""
    adata = ad.read_zarr(store)
    sa.pp.neighbors(adata, n_neighbors=15)
    sa.tl.umap(adata)
    sa.tl.leiden(adata, flavor="igraph", n_iterations=2, directed=False)
    write_elem(open_group_to_write(store / "obsm"), "X_umap", adata.obsm["X_umap"])
    write_elem(open_group_to_write(store / "uns"), "umap", adata.uns["umap"])
    shutil.rmtree(store / "obs")
    write_frame(store / "obs", adata.obs)
    consolidate(store)


@pytest.fixture(scope="session")
def atlas(shared: Path, two: Project) -> Path:
    """Atlas of p1 and p2 with a map of all cells: read only."""
    store = shared / "mapped_atlas.zarr"
    with once(shared / "mapped_atlas.done") as first:
        if first:
            shutil.copytree(two.results / "atlas.zarr", store)
            add_map(store)
    return store


@pytest.fixture(scope="session")
def new_plates(shared: Path, plates: dict[str, Path]) -> dict[str, Path]:
    """The plate that the atlas lacks, and a smaller one."""
    small = shared / "p4.h5ad"
    with once(shared / "p4.done") as first:
        if first:
            write_plate(small, simulate_plate(4, n_cells=120, n_genes=600))
    return {"p3": plates["p3"], "p4": small}


@pytest.fixture(scope="module")
def mapped(
    tmp_path_factory: pytest.TempPathFactory, atlas: Path, new_plates: dict[str, Path]
) -> Project:
    """Both plates on the atlas: read only."""
    project = Project(tmp_path_factory.mktemp("mapped"), CONFIG | {"atlas": str(atlas)})
    project.write_plates(new_plates)
    before = contents(atlas)
    done = project.build("map_plates", cores=2)
    assert done == {*(f"{step}/{p}" for step in STEPS for p in new_plates), "reference"}
    assert contents(atlas) == before
    return project


def contents(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.rglob("*") if p.is_file()}


def test_cells_of_new_plates_get_labels_and_coordinates(
    mapped: Project, atlas: Path, new_plates: dict[str, Path]
):
    reference = ad.read_zarr(atlas)
    for plate, path in new_plates.items():
        cells = ad.read_zarr(mapped.results / f"mapped/{plate}.zarr")
        source = ad.read_h5ad(path)
        source = source[source.obs["pass_filter"] == "full"]
        assert cells.obs_names.tolist() == source.obs_names.tolist()
        assert cells.var_names.tolist() == reference.var_names.tolist()
        assert (cells.obs["plate"] == plate).all()
        assert (cells.obs["donor"] == f"donor of {plate}").all()
        # All genes are on the plate: X is what the workflow stores for an atlas.
        counts = source.X.toarray().astype(np.float64)
        factors = counts.sum(axis=1) / np.median(counts.sum(axis=1))
        genes = source.var_names.get_indexer(reference.var_names)
        np.testing.assert_allclose(
            cells.X.toarray(), np.log1p(counts / factors[:, None])[:, genes], rtol=1e-6
        )
        mean = reference.X.toarray().astype(np.float64).mean(axis=0)
        expected = (cells.X.toarray() - mean) @ reference.varm["PCs"]
        np.testing.assert_allclose(cells.obsm["X_pca"], expected, rtol=0, atol=1e-4)
        # The plate's own lines are kept under another name.
        assert cells.obs["source_cell_line"].tolist() == source.obs["cell_line"].tolist()
        right = (cells.obs["cell_line"].astype(str) == source.obs["cell_line"].astype(str)).mean()
        assert right > 0.95
        for name in ("leiden", "cell_line"):
            assert cells.obs[f"{name}_share"].between(0, 1).all()
            assert cells.obs[name].cat.categories.isin(reference.obs[name].cat.categories).all()
        # Cells of a line lie among those of the line.
        for line in cells.obs["cell_line"].unique():
            at = cells.obsm["X_umap"][cells.obs["cell_line"] == line]
            of_line = reference.obsm["X_umap"][reference.obs["cell_line"] == line]
            assert np.linalg.norm(np.median(at, axis=0) - np.median(of_line, axis=0)) < 3
        assert cells.obs["unlike_atlas"].dtype == bool
        assert cells.obs["unlike_atlas"].mean() < 0.3
