"""Components of another method (map.use) in place of the principal ones: map, clusters, atlas."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scatlas as sa
from scatlas.workflow.provenance import read_record
from tests.workflow.conftest import SAMPLE_STEPS
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow


def written(project: Project, atlas: ad.AnnData, name: str = "latent.h5ad") -> pd.DataFrame:
    """A file of components of the atlas's cells in another order, and of one more cell."""
    rng = np.random.default_rng(0)
    x = atlas.obsm["X_pca"][:, :6] @ rng.normal(size=(6, 4)) + 3
    table = pd.DataFrame(x.astype(np.float32), index=atlas.obs_names)
    mixed = table.iloc[rng.permutation(len(table))]
    mixed = pd.concat([mixed, pd.DataFrame([[0.0] * 4], index=["another"])])
    cells = ad.AnnData(obs=pd.DataFrame(index=mixed.index))
    cells.obsm["X_scVI"] = mixed.to_numpy(np.float32)
    cells.write_h5ad(project.folder / name)
    return table


def test_the_map_is_of_the_components_of_a_file(built: Project, tmp_path: Path):
    project = built.copied(tmp_path / "copy")
    before = ad.read_zarr(project.results / "atlas.zarr")
    table = written(project, before)
    project.change(map={"use": "latent.h5ad"})
    jobs = project.build("atlas", "results/umap.h5ad")
    # Neither plates nor principal components are computed again.
    wanted = {"latent", "subset", *SAMPLE_STEPS, "map", "atlas"}
    assert {job for job in jobs if "/" not in job} - {"cell_groups", "markers"} == wanted
    atlas = ad.read_zarr(project.results / "atlas.zarr")
    np.testing.assert_array_equal(atlas.obsm["X_scVI"], table.loc[atlas.obs_names])
    np.testing.assert_array_equal(atlas.obsm["X_pca"], before.obsm["X_pca"])
    assert not np.array_equal(atlas.obsm["X_umap"], before.obsm["X_umap"])
    record = read_record(project.results / "atlas.zarr")
    assert record["config"]["map"]["use"] == "latent.h5ad"
    sample = ad.read_h5ad(project.results / "umap.h5ad")
    assert sample.uns["neighbors"]["params"]["use_rep"] == "X_scVI"
    again = ad.AnnData(obs=sample.obs, obsm={"X_scVI": sample.obsm["X_scVI"]})
    sa.pp.neighbors(again, use_rep="X_scVI")
    np.testing.assert_array_equal(
        sample.obsp["distances"].toarray(), again.obsp["distances"].toarray()
    )
    refused(project, atlas)


def refused(project: Project, atlas: ad.AnnData) -> None:
    """What the file may lack, and new plates, which have no such components."""
    few = ad.AnnData(obs=pd.DataFrame(index=atlas.obs_names[3:]))
    few.obsm["X_scVI"] = np.ones((few.n_obs, 4))
    few.write_h5ad(project.folder / "few.h5ad")
    for change, sentence in (
        ({"use": "few.h5ad"}, f"few.h5ad lacks 3 of the atlas's {atlas.n_obs:,} cells"),
        ({"use": "latent.h5ad", "use_rep": "X_other"}, "has no obsm['X_other']; it has X_scVI"),
    ):
        project.change(map=change)
        done = project.run("atlas")
        assert done.returncode != 0
        assert sentence in done.stdout
    project.change(map={"use": "latent.h5ad"}, atlas=str(project.results / "atlas.zarr"))
    done = project.run()
    assert "which new plates lack: build the atlas again" in done.stdout
