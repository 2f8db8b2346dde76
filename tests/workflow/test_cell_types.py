"""Types of cells in the whole workflow: from labelled cells and a model, with doubt."""

from __future__ import annotations

import json
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import yaml

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from scatlas.errors import ConfigError
from scatlas.workflow.command_line.main import main
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.sections import Annotate
from tests.helpers.plates import write
from tests.workflow.runs import Project, errors

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("warm_check")]
SOURCES = {"reference": "cell_type", "model": "cell_type_model"}


@pytest.fixture(scope="module")
def annotated(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Atlas with types by labelled cells, which lack the last cell line, and by a model."""
    project = built.copied(tmp_path_factory.mktemp("annotate"))
    for name in ("p1", "p2", "p3"):  # a test changes one of them
        plate = ad.read_h5ad(built.folder.parent / f"{name}.h5ad")
        write(plate, project.folder / f"{name}.h5ad")
    project.write_plates({name: project.folder / f"{name}.h5ad" for name in ("p1", "p2", "p3")})
    parts = [simulate_plate(number, n_cells=400, n_genes=600) for number in (8, 9)]
    cells = ad.concat(parts, keys=["d8", "d9"], label="donor", index_unique="-")
    cells.obs["half"] = np.where(cells.obs["cell_line"].astype(str) < "SIM_0004", "low", "high")
    write(cells, project.folder / "all.h5ad")
    model = sa.tl.train_annotator(cells, "cell_line", groups="donor")
    sa.io.write_annotator(project.folder / "model.h5ad", model)
    cells = cells[cells.obs["cell_line"] != "SIM_0006"].copy()
    write(cells, project.folder / "cells.h5ad")
    project.change(
        annotate={
            "reference": "cells.h5ad",
            "label": ["half", "cell_line"],
            "groups": "donor",
            "model": "model.h5ad",
        },
        markers={"by": ["cell_type"], "n_genes": 20},
        pseudobulk={"by": ["cell_type"]},
    )
    project.build()
    return project


def test_known_types_are_right_and_those_of_no_labelled_cell_unknown(annotated: Project):
    obs = ad.read_zarr(annotated.results / "atlas.zarr").obs
    truth, types = (obs[name].astype(object) for name in ("cell_line", "cell_type"))
    lacking = truth == "SIM_0006"
    assert types[lacking].isna().mean() >= 0.9
    assert types[~lacking].isna().mean() <= 0.1
    assert (types == truth)[~lacking & types.notna()].mean() >= 0.98
    model = obs["cell_type_model"].astype(object)
    assert (model == truth)[model.notna()].mean() >= 0.98
    assert "SIM_0006" not in obs["cell_type"].cat.categories
    assert obs["cell_type_half"].notna().sum() >= types.notna().sum()
    assert obs["cell_type_probability"].dtype == np.float32
    assert set(Annotate(**annotated.config["annotate"]).columns) <= set(obs)


def test_answers_are_those_of_the_function(annotated: Project):
    """Stored ones, of kept cells, joined in the order of the atlas."""
    atlas = ad.read_zarr(annotated.results / "atlas.zarr")
    raw = ad.read_h5ad(annotated.folder / "p2.h5ad")
    for source, key in SOURCES.items():
        sa.tl.annotate(raw, annotated.results / f"annotator/{source}.h5ad", key_added=key)
    own = atlas.obs[atlas.obs["plate"] == "p2"]
    for name in [f"{key}{end}" for key in SOURCES.values() for end in ("", "_runner_up")]:
        assert own[name].astype(object).fillna("").tolist() == (
            raw.obs.loc[own.index, name].astype(object).fillna("").tolist()
        )


def test_tables_count_each_cell_once(annotated: Project):
    results = annotated.results
    obs = ad.read_zarr(results / "atlas.zarr").obs
    tables = {
        name: pd.read_csv(results / f"tables/annotation{name}.tsv", sep="\t", dtype={"leiden": str})
        for name in ("", "_by_plate", "_agreement", "_genes")
    }
    for source, key in SOURCES.items():
        votes = tables[""][tables[""]["source"] == source].set_index("leiden")
        assert votes["n_cells"].to_dict() == obs["leiden"].astype(str).value_counts().to_dict()
        unknown = obs[key].isna().groupby(obs["leiden"].astype(str)).mean()
        np.testing.assert_allclose(votes["unknown"], unknown.loc[votes.index], atol=6e-5)
        first = obs.groupby(obs["leiden"].astype(str))[key].agg(
            lambda types: types.value_counts().idxmax() if types.notna().any() else np.nan
        )
        ties = votes["share"] == votes["its share"]
        same = votes["name"].fillna("") == first.loc[votes.index].astype(object).fillna("")
        assert (same | ties).all()
        genes = tables["_genes"]
        assert set(genes.loc[genes["source"] == source, "name"]) >= set(obs[key].cat.categories)
        plates = tables["_by_plate"].query(f"source == '{source}' and name == 'unknown'")
        assert plates["n_cells"].sum() == obs[key].isna().sum()
    agreement = tables["_agreement"]
    assert agreement["n_cells"].sum() == len(obs)
    assert list(agreement) == ["cell_line", *SOURCES.values(), "n_cells"]
    page = (results / "report.html").read_text()
    assert all(f'id="table-annotation{name}"' in page for name in tables)
    sample = ad.read_h5ad(results / "umap.h5ad").obs
    same = obs.loc[sample.index, "cell_type"].astype(object).fillna("")
    assert sample["cell_type"].astype(object).fillna("").tolist() == same.tolist()
    sums = ad.read_h5ad(results / "pseudobulk.h5ad").obs
    assert sums["n_obs_aggregated"].sum() == obs["cell_type"].notna().sum()


def test_clusters_get_the_vote_as_a_proposed_name(
    annotated: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(annotated.folder)
    assert main(["label", "--config", "my.yaml", "--out", "names.tsv"]) == 0
    names = pd.read_csv("names.tsv", sep="\t", dtype=str, keep_default_na=False)
    votes = pd.read_csv(
        annotated.results / "tables/annotation.tsv", sep="\t", dtype=str, keep_default_na=False
    ).query("source == 'reference'")
    assert names["cluster_name"].tolist() == votes["name"].tolist()


def test_check_says_what_is_wrong(
    annotated: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(annotated.folder)
    others = ad.read_h5ad("cells.h5ad")
    others.var_names = [f"ENSG{number:011}" for number in range(others.n_vars)]
    write(others, Path("others.h5ad"))

    def said(**annotate: object) -> str:
        config = annotated.config | {"annotate": annotate, "outdir": "other"}
        Path("bad.yaml").write_text(yaml.safe_dump(config))
        assert main(["check", "--config", "bad.yaml"]) == 1
        return capsys.readouterr().out

    assert "annotate.reference: nope.h5ad does not exist" in said(
        reference="nope.h5ad", label=["cell_line"]
    )
    assert "'cell_lines', which annotate names; did you mean cell_line?" in said(
        reference="cells.h5ad", label=["cell_lines"]
    )
    assert "annotate.key: plate p1 has an obs column 'drug' already" in said(
        reference="cells.h5ad", label=["cell_line"], key="drug"
    )
    text = said(reference="others.h5ad", label=["cell_line"])
    assert "shares 0 of its 600 genes with plate p1: there is 'ENSG00000000000'" in text
    config = annotated.config | {"annotate": {"reference": "cells.h5ad"}}
    with pytest.raises(ConfigError, match="reference has no label: give label"):
        load(config)


def test_new_plates_get_types_by_the_atlas_s_classifiers(annotated: Project):
    write_plate(annotated.folder / "p7.h5ad", simulate_plate(7, n_cells=200, n_genes=600))
    config = {"atlas": "results/atlas.zarr", "plates": "new.tsv", "outdir": "new"}
    (annotated.folder / "new.tsv").write_text("plate\tpath\tdonor\np7\tp7.h5ad\tdonor of p7\n")
    (annotated.folder / "my.yaml").write_text(yaml.safe_dump(config))
    try:
        done = annotated.run("map_plates", "extend")
        assert done.returncode == 0, done.stdout[-4000:]
    finally:
        annotated.write_config()
    mapped = ad.read_zarr(annotated.folder / "new/mapped/p7.zarr").obs
    raw = ad.read_h5ad(annotated.folder / "p7.h5ad")
    sa.tl.annotate(raw, annotated.results / "annotator/reference.h5ad")
    expected = raw.obs.loc[mapped.index, "cell_type"].astype(object).fillna("")
    assert mapped["cell_type"].astype(object).fillna("").tolist() == expected.tolist()
    extended = ad.read_zarr(annotated.folder / "new/atlas.zarr").obs
    new = extended.loc[mapped.index, "cell_type"].astype(object).fillna("")
    assert new.tolist() == expected.tolist()


def test_changes_rerun_what_they_concern(annotated: Project, tmp_path: Path):
    assert annotated.planned() == set()
    project = annotated.copied(tmp_path / "other")
    project.change(leiden={"resolution": 0.3})
    assert not {"annotate", "annotator"} & project.planned()
    assert "labels" in project.planned()
    project.change(leiden={}, annotate=project.config["annotate"] | {"key": "kind"})
    assert not {"annotate", "annotator"} & project.planned()
    project.change(annotate=annotated.config["annotate"])
    plate = ad.read_h5ad(annotated.folder / "p2.h5ad")
    write(plate[:-5].copy(), annotated.folder / "p2.h5ad")  # the sheet's path
    ran = project.build("atlas")
    assert {name for name in ran if name.startswith("annotat")} == {"annotate/p2"}
    manifest = json.loads((project.results / "manifests/annotate/p2.json").read_text())
    assert set(manifest["unknown"]) == set(SOURCES)
    project.change(labels=["taken.tsv"])
    cell = ad.read_zarr(project.results / "atlas.zarr").obs_names[0]
    (project.folder / "taken.tsv").write_text(f"cell\tcell_type\n{cell}\tx\n")
    done = project.run("atlas")
    assert any("a table of labels has a column 'cell_type', too" in e for e in errors(done.stdout))
