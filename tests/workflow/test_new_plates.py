"""New plates on a finished atlas: right, the same on each run, and the atlas stays as it is."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from scatlas.datasets import simulate_plate, write_plate
from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum
from scatlas.workflow import reproduce
from scatlas.workflow.provenance import read_record
from tests.helpers.files import files
from tests.helpers.h5ad_trees import assert_as_anndata_writes
from tests.helpers.once import once
from tests.workflow.conftest import EACH, made_once
from tests.workflow.runs import Project, assert_same_outputs

pytestmark = pytest.mark.workflow

# What new plates need of their config: the rest comes from the record of the atlas.
CONFIG = {
    "plates": "plates.tsv",
    "new_plates": {"obs": ["cell_line"]},
    "compute": {"block_budget": "16MB"},
}
STEPS = ("load", "qc_filter", "normalize", "map_plate")
ONCE = ("reference", "map_report")


@pytest.fixture(scope="session")
def source(shared: Path, plates: dict[str, Path]) -> Project:
    """Atlas of p1 and p2 with a map of all cells: read only."""
    known = {name: plates[name] for name in ("p1", "p2")}
    return made_once(shared / "mapped_source", EACH | {"map": {}, "subset": {}}, known, "atlas")


@pytest.fixture(scope="session")
def atlas(source: Project) -> Path:
    """Its store."""
    return source.results / "atlas.zarr"


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
    before = files(atlas)
    done = project.build("map_plates", cores=2)
    assert done == {*(f"{step}/{p}" for step in STEPS for p in new_plates), *ONCE}
    assert files(atlas) == before
    return project


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


def test_results_do_not_depend_on_cores_or_blocks(
    tmp_path: Path, mapped: Project, atlas: Path, new_plates: dict[str, Path]
):
    config = CONFIG | {"atlas": str(atlas), "compute": {"block_budget": "200MB"}}
    again = Project(tmp_path, config)
    again.write_plates(new_plates)
    again.build("map_plates", cores=1)
    assert_same_outputs(mapped.outputs(), again.outputs())


def test_a_new_file_of_a_plate_maps_that_plate_alone(
    tmp_path: Path, mapped: Project, new_plates: dict[str, Path]
):
    project = mapped.copied(tmp_path / "copy")
    assert "Nothing to be done" in project.run("map_plates").stdout
    before = project.outputs()
    write_plate(tmp_path / "p4.h5ad", simulate_plate(5, n_cells=100, n_genes=600))
    project.write_plates(new_plates | {"p4": tmp_path / "p4.h5ad"})
    assert project.build("map_plates") == {*(f"{step}/p4" for step in STEPS), "map_report"}
    after = project.outputs()
    changed = {name for name in after if before.get(name) != after[name]}
    assert not any("p3" in name or "reference." in name for name in changed)
    assert "mapped/p4.zarr/obs/leiden/codes/c/0" in changed


def test_plates_that_do_not_fit_are_refused_and_nothing_is_written(
    tmp_path: Path, mapped: Project, new_plates: dict[str, Path]
):
    plate = simulate_plate(4, n_cells=60, n_genes=600)
    genes = ad.read_zarr(mapped.results / "mapped/p3.zarr").var_names
    fourth = genes[::4]
    bad = {"few": plate[:, ~plate.var_names.isin(fourth)].copy(), "filtered": plate.copy()}
    bad["filtered"].obs["pass_filter"] = "minimal"
    sheet = {"p3": new_plates["p3"]}
    for name, adata in bad.items():
        sheet[name] = tmp_path / f"{name}.h5ad"
        write_plate(sheet[name], adata)
    project = mapped.copied(tmp_path / "copy")
    project.write_plates(sheet)
    done = project.run("map_plates", "--keep-going")
    assert done.returncode != 0
    assert f"plate few: it lacks {len(fourth)} of the atlas's {len(genes)} genes" in done.stdout
    filtered = "filtered.h5ad: qc.filter (pass_filter == 'full') keeps none of the 60 cells"
    assert filtered in done.stdout
    written = {path.name for path in (project.results / "mapped").iterdir()}
    assert written == {"reference.h5ad", "p3.zarr", "p4.zarr", "figures", "tables", "report.html"}
    reference = project.results / "mapped/reference.h5ad"
    assert_as_anndata_writes(reference, project.folder / "theirs.h5ad")

    # A share of missing genes that the config allows.
    project.change(new_plates=CONFIG["new_plates"] | {"max_missing_genes": 0.3})
    project.write_plates({"few": sheet["few"]})
    project.build("map_plates")
    few = ad.read_zarr(project.results / "mapped/few.zarr")
    assert few[:, fourth].X.nnz == 0
    assert few.var_names.tolist() == genes.tolist()
    assert (
        "are missing and count as zero" in (project.results / "logs/map_plate/few.log").read_text()
    )


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory, mapped: Project, atlas: Path) -> Project:
    """A new version of the atlas, with both plates: read only."""
    project = mapped.copied(tmp_path_factory.mktemp("extended"))
    before = files(atlas)
    assert project.build("extend") == {"extend"}
    assert files(atlas) == before
    return project


def test_a_new_version_has_the_old_cells_and_the_new_ones(
    extended: Project, atlas: Path, new_plates: dict[str, Path]
):
    old, new = ad.read_zarr(atlas), ad.read_zarr(extended.results / "atlas.zarr")
    kept = new[: old.n_obs]
    assert kept.obs_names.tolist() == old.obs_names.tolist()
    assert (kept.X != old.X).nnz == 0
    for name in ("X_pca", "X_umap"):
        np.testing.assert_array_equal(kept.obsm[name], old.obsm[name])
    for name in old.obs:
        assert kept.obs[name].astype(object).equals(old.obs[name].astype(object)), name
    assert new.var.equals(old.var)
    np.testing.assert_array_equal(new.varm["PCs"], old.varm["PCs"])
    assert new.uns["umap"]["params"]["a"] == old.uns["umap"]["params"]["a"]
    start = old.n_obs
    for plate in new_plates:
        cells = ad.read_zarr(extended.results / f"mapped/{plate}.zarr")
        part = new[start : start + cells.n_obs]
        assert (part.X != cells.X).nnz == 0
        np.testing.assert_array_equal(part.obsm["X_umap"], cells.obsm["X_umap"])
        for name in ("plate", "leiden", "cell_line", "unlike_atlas", "map_distance"):
            assert list(part.obs[name]) == list(cells.obs[name]), name
        start += cells.n_obs
    assert start == new.n_obs
    assert new.obs["unlike_atlas"][: old.n_obs].isna().all()
    assert new.obs_names.is_unique


def test_the_record_says_which_plates_were_mapped_onto_what(extended: Project, atlas: Path):
    record, old = read_record(extended.results / "atlas.zarr"), read_record(atlas)
    assert record["config"] == old["config"]
    assert record["extends"] == checksum(atlas)
    mapped = [plate for plate in record["plates"] if plate.get("mapped")]
    assert [plate["plate"] for plate in mapped] == ["p3", "p4"]
    assert record["plates"][:2] == old["plates"]
    assert all(plate["n_cells"] > 100 for plate in mapped)
    with pytest.raises(InputError, match="plate 'p3' and others were mapped onto an atlas"):
        reproduce.main([str(extended.results / "atlas.zarr"), "--directory", "unused"])


def test_plates_can_be_mapped_onto_a_new_version(
    extended: Project, mapped: Project, tmp_path: Path
):
    """Components and drift are measured by the plates from which they were computed."""
    atlas = extended.results / "atlas.zarr"
    project = Project(tmp_path, CONFIG | {"atlas": str(atlas)})
    write_plate(tmp_path / "p5.h5ad", simulate_plate(5, n_cells=80, n_genes=600))
    project.write_plates({"p5": tmp_path / "p5.h5ad"})
    project.build("map_plates")
    here, before = (
        ad.read_h5ad(p.results / "mapped/reference.h5ad").uns["variance"] for p in (project, mapped)
    )
    assert here.index.tolist() == ["p1", "p2"]
    np.testing.assert_allclose(here["share"], before["share"], rtol=1e-9)
