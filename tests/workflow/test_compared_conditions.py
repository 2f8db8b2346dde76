"""Effects of conditions in the workflow: those of the function, and what runs them again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scatlas as sa
from scatlas.datasets import write_plate
from scatlas.workflow import conditions
from scatlas.workflow.config.sections import Effects
from scatlas.workflow.report._effects import effects
from scatlas.workflow.report._page import ReportWriter
from tests.helpers.report_files import CAPTIONS
from tests.workflow.conftest import PLATES
from tests.workflow.runs import Project, errors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.workflow
OPTIONS = {"condition": "drug", "control": "DMSO_TF", "replicate": "sample", "block": "plate"}
TARGETS = (
    *("results/effects.h5ad", "results/pseudobulk.h5ad", "results/explore.html"),
    "results/tables/composition.tsv",
)


@pytest.fixture(scope="module")
def compared(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """An atlas with effects within a label of all cells, and sums by cluster."""
    project = built.copied(tmp_path_factory.mktemp("effects"))
    sections = {"pseudobulk": {"by": ["leiden"]}, "explore": {"page": True}}
    project.change(effects={**OPTIONS, "within": ["phase"]}, **sections)
    jobs = project.build(*TARGETS)
    sums = {f"{step}/{p}" for step in ("effect_sums", "pseudobulk") for p in PLATES}
    # The sums of marker genes are not made again: their groups are the same.
    steps = {"effects", "merge_pseudobulk", "cell_groups", "edistance", "composition", "explore"}
    assert jobs == {*sums, *steps}
    return project


def kept_cells(plates: dict[str, Path]) -> ad.AnnData:
    """The cells that the workflow keeps, with raw counts."""
    parts = {name: ad.read_h5ad(path) for name, path in plates.items()}
    parts = {name: part[part.obs["pass_filter"] == "full"] for name, part in parts.items()}
    cells = ad.concat(parts, label="plate", index_unique="-")
    cells.obs["sample"] = cells.obs["sample"].astype(str)
    return cells


def test_effects_are_those_of_the_function(compared: Project, plates: dict[str, Path]):
    found = ad.read_h5ad(compared.results / "effects.h5ad")
    own = sa.tl.effects(kept_cells(plates), **OPTIONS, within="phase")
    order = found.obs_names
    assert sorted(order) == sorted(own.obs_names)
    own = own[order]
    np.testing.assert_allclose(found.X, own.X, rtol=1e-6)
    np.testing.assert_allclose(found.layers["t"], own.layers["t"], rtol=1e-6)
    for name in ("mean_expression", "df"):
        models = dict(zip(found.obs["phase"], found.obs["model"], strict=True))
        theirs = dict(zip(own.obs["phase"], own.obs["model"], strict=True))
        for group, number in models.items():
            np.testing.assert_allclose(
                found.varm[name][:, number], own.varm[name][:, theirs[group]], rtol=1e-12
            )
    numbers = ["n_replicates", "n_controls", "n_cells", "df_residual", "n_genes", "n_significant"]
    pd.testing.assert_frame_equal(found.obs[numbers], own.obs[numbers], check_dtype=False)
    table = pd.read_csv(compared.results / "tables/effects.tsv", sep="\t")
    assert table["n_significant"].tolist() == found.obs["n_significant"].tolist()
    left_out = pd.read_csv(compared.results / "tables/effects_left_out.tsv", sep="\t")
    assert len(left_out) == len(own.uns["effects"]["left_out"])
    assert found.uns["effects"]["samples"]["scaling_factor"].gt(0).all()


def test_files_of_each_group_have_the_rows_of_get_effects(compared: Project):
    found = ad.read_h5ad(compared.results / "effects.h5ad")
    rows = sa.get.effects(found).astype({"phase": str, "drug": str})
    files = sorted((compared.results / "effects").glob("*.parquet"))
    assert [path.stem for path in files] == sorted(found.obs["phase"].cat.categories)
    table = pd.concat(map(pd.read_parquet, files)).astype({"phase": str, "drug": str, "gene": str})
    keys = ["phase", "drug", "gene"]
    both = table.merge(rows, on=keys, validate="one_to_one", suffixes=("", "_of_get"))
    assert len(both) == len(table) == len(rows)
    for name in ("log2_fold_change", "t", "p_value", "fdr", "standard_error", "mean_expression"):
        np.testing.assert_allclose(both[name], both[f"{name}_of_get"], rtol=1e-5)


def test_the_explorer_has_the_effects(compared: Project):
    page = (compared.results / "explore.html").read_text()
    assert 'id="block-effect-0"' in page


def test_distances_and_shares_are_those_of_the_functions(
    compared: Project, monkeypatch: pytest.MonkeyPatch
):
    atlas = ad.read_zarr(compared.results / "atlas.zarr")
    keys = ["phase", "drug"]
    own = sa.tl.edistance(atlas, **OPTIONS, within="phase").set_index(keys)
    path = compared.results / "tables/edistance.tsv"
    table = pd.read_csv(path, sep="\t", index_col=keys).fillna({"reason": ""}).loc[own.index]
    pd.testing.assert_frame_equal(table, own, check_dtype=False, rtol=1e-9, check_index_type=False)
    effects = ad.read_h5ad(compared.results / "effects.h5ad").obs
    expected = own.loc[[*zip(effects["phase"], effects["drug"], strict=True)]]
    np.testing.assert_allclose(effects["edistance"], expected["edistance"], rtol=1e-9)
    np.testing.assert_array_equal(effects["edistance_p_value"], expected["p_value"])

    # Cells are read in blocks: other ones have the same sums, but for rounding.
    monkeypatch.setattr(conditions, "_ROWS", 70)
    wanted = Effects(**OPTIONS, within=["phase"])
    parts = conditions.distances(compared.results / "atlas.zarr", wanted, seed=0).set_index(keys)
    pd.testing.assert_frame_equal(parts.loc[own.index], own, check_dtype=False, rtol=1e-6)

    path = compared.results / "tables/composition.tsv"
    shares = pd.read_csv(path, sep="\t", dtype={"cluster": str}).fillna({"reason": ""})
    keys = ["drug", "leiden"]
    shares = shares.rename(columns={"cluster": "leiden"}).set_index(keys)
    assert set(shares.pop("by")) == {"leiden"}
    own = sa.tl.composition(atlas, **OPTIONS, groups="leiden").set_index(keys)
    pd.testing.assert_frame_equal(
        shares.loc[own.index], own, check_dtype=False, rtol=1e-9, check_index_type=False
    )
    parts = conditions.shares(compared.results / "atlas.zarr", wanted, ["leiden"])
    parts = parts.rename(columns={"cluster": "leiden"}).set_index(keys).drop(columns="by")
    pd.testing.assert_frame_equal(parts.loc[own.index], own, check_dtype=False)
    few = wanted.model_copy(update={"min_cells": 10_000})
    table = conditions.shares(compared.results / "atlas.zarr", few, ["leiden"])
    assert (
        table["reason"].tolist()[0].startswith("no replicate of the control 'DMSO_TF' has 10,000")
    )
    assert len(table) == 1
    assert [*table.columns] == [*pd.read_csv(path, sep="\t", nrows=0)]


def test_the_report_shows_distances_and_shares(compared: Project, tmp_path: Path):
    tables = shutil.copytree(compared.results / "tables", tmp_path / "tables")
    wanted = Effects(**OPTIONS, within=["phase"]).model_dump()

    def items(*, is_sample: bool) -> dict[str, Any]:
        writer = ReportWriter(CAPTIONS, tmp_path / "figures", tables, ["pdf"], n_plates=3)
        made = effects(writer, compared.results / "effects.h5ad", wanted, is_sample=is_sample)
        return {item.id: item for item in made}

    shown = items(is_sample=False)
    assert "distance of its cells from the control" in shown["figure-effect_strength"].caption
    assert "edistance" in [name for name, _ in shown["table-effects"].head]
    shown["figure-share_changes-leiden"].finish()
    assert (tmp_path / "figures/share_changes/leiden.pdf").is_file()
    assert "sampled cells" not in shown["figure-share_changes-leiden"].caption
    assert shown["table-composition"].rows[0].cells[0].text == "leiden"
    assert "sampled cells" in items(is_sample=True)["figure-share_changes-leiden"].caption

    # Without a value there is no picture, and the table says why.
    table = pd.read_csv(tables / "composition.tsv", sep="\t", nrows=1)
    table.assign(p_value=np.nan, reason="a reason").to_csv(
        tables / "composition.tsv", sep="\t", index=False
    )
    shown = items(is_sample=False)
    assert "figure-share_changes-leiden" not in shown
    assert shown["table-composition"].rows[0].cells[-1].text == "a reason"


def test_sums_by_cluster(compared: Project, plates: dict[str, Path]):
    sums = ad.read_h5ad(compared.results / "pseudobulk.h5ad")
    atlas = ad.read_zarr(compared.results / "atlas.zarr").obs
    cells = kept_cells(plates)
    assert len(atlas) == cells.n_obs
    for row, name in enumerate(sums.obs_names):
        own = (atlas["leiden"].astype(str) == str(sums.obs["leiden"].iloc[row])).to_numpy()
        own &= (atlas["plate"] == sums.obs["plate"].iloc[row]).to_numpy()
        assert own.sum() == sums.obs.loc[name, "n_obs_aggregated"]
        expected = np.asarray(cells.X[own].sum(axis=0)).ravel()
        np.testing.assert_array_equal(sums.X[row].toarray()[0], expected)


def test_a_changed_plate_sums_its_own_cells_alone(
    compared: Project, plates: dict[str, Path], tmp_path: Path
):
    project = compared.copied(tmp_path / "copy")
    adata = ad.read_h5ad(plates["p2"])
    kept = np.flatnonzero(adata.obs["pass_filter"] == "full")[0]
    adata.X.data[adata.X.indptr[kept]] += 1
    write_plate(tmp_path / "p2.h5ad", adata)
    project.write_plates(plates | {"p2": tmp_path / "p2.h5ad"})
    jobs = project.build("results/effects.h5ad")
    summed = {name for name in jobs if name.startswith(("load", "qc_filter", "effect_sums"))}
    assert summed == {"load/p2", "qc_filter/p2", "effect_sums/p2"}
    assert {"pca", "edistance", "effects"} < jobs


def test_samples_of_several_plates_are_added_up(
    compared: Project, plates: dict[str, Path], tmp_path: Path
):
    """Else each plate of a donor would count as one more."""
    project = compared.copied(tmp_path / "copy")
    options = {**OPTIONS, "replicate": "cell_line", "block": None, "p_values": False}
    project.change(effects=options)
    project.build("results/effects.h5ad")
    found = ad.read_h5ad(project.results / "effects.h5ad")
    own = sa.tl.effects(kept_cells(plates), "drug", "DMSO_TF", replicate="cell_line")[
        found.obs_names
    ]
    np.testing.assert_allclose(found.layers["t"], own.layers["t"], rtol=1e-6)
    assert found.obs["n_replicates"].tolist() == own.obs["n_replicates"].tolist()
    assert found.obs["n_replicates"].max() <= 6
    (file,) = (project.results / "effects").glob("*.parquet")
    assert "p_value" not in pd.read_parquet(file)
    project.change(effects={**OPTIONS, "control": "DMSO"})
    done = project.run("results/effects.h5ad")
    assert done.returncode
    assert errors(done.stdout) == {"obs['drug'] has no control 'DMSO': try 'DMSO_TF'"}
