"""Doublets of each plate: scores in the atlas, and removal with ``filter: true``."""

from __future__ import annotations

import json
import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import roc_auc_score

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

N_DOUBLETS = 25
OPTIONS = {"doublets": {"expected_doublet_rate": 0.08, "by": "lane", "min_cells": 100}}


def with_doublets(number: int) -> ad.AnnData:
    """Plate of two lanes, with doublets of two cell lines of one lane."""
    cells = simulate_plate(number, n_cells=420, n_genes=600)
    cells.obs["lane"] = [f"lane{i % 2}" for i in range(cells.n_obs)]
    rng = np.random.default_rng(number)
    line, lane = cells.obs["cell_line"].cat.codes.to_numpy(), np.arange(cells.n_obs) % 2
    first = rng.choice(
        np.flatnonzero(cells.obs["pass_filter"] == "full"), N_DOUBLETS, replace=False
    )
    second = [rng.choice(np.flatnonzero((line != line[i]) & (lane == lane[i]))) for i in first]
    two = cells[first].copy()
    two.X = two.X + cells.X[second]
    two.obs_names = [f"two{i}" for i in range(N_DOUBLETS)]
    both = ad.concat([cells, two])
    both.var = cells.var
    both.X = sp.csr_matrix(both.X)
    return both


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two plates with scored doublets: read only."""
    folder = tmp_path_factory.mktemp("doublets")
    paths = {f"p{i}": folder / f"p{i}.h5ad" for i in (1, 2)}
    for i, path in enumerate(paths.values(), start=1):
        write_plate(path, with_doublets(i))
    project = Project(folder / "project", CONFIG | OPTIONS | {"subset": {"n_cells": 400}})
    project.change(report={"colors": ["doublet_score", "predicted_doublet"]})
    project.write_plates(paths)
    project.plates = paths
    project.build("atlas")
    return project


def table_of(project: Project, plate: str) -> pd.DataFrame:
    return pd.read_parquet(project.results / f"plates/{plate}/doublets.parquet")


def test_scores_are_those_of_the_function_on_the_kept_cells(told: Project):
    for plate, path in told.plates.items():
        adata = ad.read_h5ad(path)
        keep = (adata.obs["pass_filter"] == "full").to_numpy()
        kept = adata[keep].copy()
        n_top = CONFIG["hvg"]["n_top_genes"]
        options = {"n_top_genes": n_top, "batch_key": "lane", "expected_doublet_rate": 0.08}
        sa.pp.scrublet(kept, **options)
        table = table_of(told, plate)
        np.testing.assert_array_equal(table["keep"], keep)
        np.testing.assert_allclose(
            table.loc[keep, "doublet_score"], kept.obs["doublet_score"], rtol=1e-12
        )
        assert table.loc[~keep, "doublet_score"].isna().all()
        summary = json.loads((told.results / f"plates/{plate}/doublets.json").read_text())
        doubtful = [lane for lane, facts in summary["captures"].items() if "doubt" in facts]
        called = kept.obs.groupby("lane", observed=True)["predicted_doublet"].mean()
        assert doubtful == called.index[called > 3 * 0.08].tolist()
        np.testing.assert_array_equal(
            table.loc[keep, "predicted_doublet"],
            kept.obs["predicted_doublet"] & ~kept.obs["lane"].isin(doubtful),
        )
        two = table.index[keep].str.startswith("two")
        # Two hundred cells per lane, each with ten neighbours.
        assert roc_auc_score(two, table.loc[keep, "doublet_score"]) > 0.85


def test_the_atlas_tells(told: Project):
    atlas = ad.read_zarr(told.results / "atlas.zarr")
    tables = [table_of(told, plate) for plate in told.plates]
    wanted = pd.concat([table[table["keep"]] for table in tables])
    assert atlas.obs["predicted_doublet"].dtype == bool
    for name in ("doublet_score", "predicted_doublet"):
        np.testing.assert_array_equal(atlas.obs[name], wanted[name])
    assert atlas.obs["predicted_doublet"].sum() > 10, "a premise of the test below"
    summary = json.loads((told.results / "plates/p1/doublets.json").read_text())
    assert summary["n_kept"] == tables[0]["keep"].sum()


def test_left_out_they_count_for_nothing(told: Project):
    """Changes the project, so it runs last."""
    doublets = {plate: table_of(told, plate) for plate in told.plates}
    told.config["doublets"] = OPTIONS["doublets"] | {"filter": True}
    told.change(pseudobulk={"by": ["lane"]})
    ran = told.build()
    assert {"doublets/p1", "normalize/p1", "hvg/p2", "select_genes/p2"} <= ran
    assert not {f"{step}/{plate}" for step in ("load", "qc_filter") for plate in told.plates} & ran
    atlas = ad.read_zarr(told.results / "atlas.zarr")
    assert not atlas.obs["predicted_doublet"].any()
    taken = {}
    for plate, before in doublets.items():
        after = table_of(told, plate)
        np.testing.assert_array_equal(after["doublet_score"], before["doublet_score"])
        left = before["keep"] & ~before["predicted_doublet"]
        np.testing.assert_array_equal(after["keep"], left)
        assert (atlas.obs["plate"] == plate).sum() == left.sum()
        sums = ad.read_h5ad(told.results / "pseudobulk.h5ad").obs
        assert sums.loc[sums["plate"] == plate, "n_obs_aggregated"].sum() == left.sum()
        taken[plate] = int(before["predicted_doublet"].sum())
    cells = pd.read_csv(told.results / "tables/cells.tsv", sep="\t", index_col="plate")
    assert cells.loc[list(taken), "removed by doublets"].to_dict() == taken
    assert cells.loc["all plates", "kept"] == atlas.n_obs
    assert "doublet_score" in ad.read_h5ad(told.results / "umap.h5ad").obs
    figures = {path.name for path in (told.results / "figures").rglob("*.png")}
    assert {"doublets.png", "doublet_score.png"} <= figures
    rates = pd.read_csv(told.results / "tables/doublet_rates.tsv", sep="\t", index_col="capture")
    assert list(rates.index) == [f"p{i}, lane{j}" for i in (1, 2) for j in (0, 1)]
    assert rates["predicted doublets"].sum() == sum(taken.values())

    told.change(doublets={"by": "well"})
    done = told.run()
    assert done.returncode != 0
    assert re.search(r"error: plate p\d has no obs column 'well', which doublets.by", done.stdout)
