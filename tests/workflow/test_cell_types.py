"""Types of cells in the whole workflow: from labelled cells and a model, with doubt."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import scatlas as sa
from scatlas import pl
from scatlas.datasets import simulate_plate, write_plate
from scatlas.errors import ConfigError, InputError
from scatlas.workflow.command_line.main import main
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.sections import Annotate
from scatlas.workflow.labelled_cells import cells_of_plates, check_file
from scatlas.workflow.report._types import genes_of_types
from tests.helpers.plates import write
from tests.workflow.conftest import PLATES
from tests.workflow.runs import Project, errors

pytestmark = [pytest.mark.workflow, pytest.mark.usefixtures("warm_check")]
SOURCES = {"reference": "cell_type", "model": "cell_type_model"}
ABSENT = "TYPE_OF_NO_CELL"


class Plan:
    """Plan of Snakemake, which takes a second, or the error of one of its rules."""

    problem = ""

    def __call__(self, *_: object) -> str:
        if self.problem:
            raise InputError(self.problem)
        return "total 1"


@pytest.fixture(scope="module")
def annotated(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Atlas with types by labelled cells, which lack the last cell line, and by a model of the form
    of CellTypist's.
    """
    project = built.copied(tmp_path_factory.mktemp("annotate"))
    for name in PLATES:  # a test changes one of them
        plate = ad.read_h5ad(built.folder.parent / f"{name}.h5ad")
        plate.var["gene_id"] = [f"ENSG{number:011}" for number in range(plate.n_vars)]
        write(plate, project.folder / f"{name}.h5ad")
    project.write_plates({name: project.folder / f"{name}.h5ad" for name in PLATES})
    parts = [simulate_plate(number, n_cells=400, n_genes=600) for number in (8, 9)]
    cells = ad.concat(parts, keys=["d8", "d9"], label="donor", index_unique="-")
    cells.obs["half"] = np.where(cells.obs["cell_line"].astype(str) < "SIM_0004", "low", "high")
    write(cells, project.folder / "all.h5ad")
    write_celltypist(project.folder / "model.pkl", cells)
    cells = cells[cells.obs["cell_line"] != "SIM_0006"].copy()
    write(cells, project.folder / "cells.h5ad")
    write_marker_table(project.folder / "genes.csv", cells)
    project.change(
        annotate={
            "reference": "cells.h5ad",
            "label": ["half", "cell_line"],
            "groups": "donor",
            "model": "model.pkl",
            "markers": "genes.csv",
        },
        markers={"by": ["cell_type"], "n_genes": 20},
        pseudobulk={"by": ["cell_type"]},
    )
    project.build()
    return project


def write_marker_table(path: Path, cells: ad.AnnData) -> None:
    """Genes that a type has much more often than every other one, and a type of no cell."""
    table = pd.DataFrame(cells.X.toarray() > 0, columns=cells.var_names)
    shares = table.groupby(cells.obs["cell_line"].astype(str).to_numpy()).mean()
    rows = ["label,up,down"]
    for name, own in shares.iterrows():
        rest = shares.drop(index=name)
        up, down = (own - rest.max()).nlargest(8).index, (rest.min() - own).nlargest(2).index
        rows.append(f'{name},"{", ".join(up)}",{" ".join(down)}')
    rows.append(f"{ABSENT},{' '.join(shares.sum().nsmallest(8).index)},")
    path.write_text("\n".join(rows))


def test_marker_genes_name_the_clusters_of_a_type(annotated: Project):
    obs = ad.read_zarr(annotated.results / "atlas.zarr").obs
    table = pd.read_csv(
        annotated.results / "tables/annotation.tsv", sep="\t", dtype={"leiden": str}
    ).query("source == 'markers'")
    names = table.set_index("leiden")["vote"]
    truth = obs.groupby("leiden", observed=True)["cell_line"].agg(
        lambda c: c.value_counts().idxmax()
    )
    pure = obs.groupby("leiden", observed=True)["cell_line"].agg(
        lambda c: c.value_counts(normalize=True).iloc[0] > 0.9
    )
    known = truth[pure & (truth != "SIM_0006")].astype(str)
    assert known.size >= 3
    assert (names[known.index] == known).mean() >= 0.8
    assert ABSENT not in names.to_list()
    assert (table.loc[table["vote"].notna(), "score"] > 2).all()
    of_cells = obs["cell_type_markers"].astype(object).fillna("").to_numpy()
    assert (of_cells == names.fillna("")[obs["leiden"].astype(str)].to_numpy()).all()
    assert names.isna().to_list() == (table["unknown"] == 1).to_list()


def write_celltypist(path: Path, cells: ad.AnnData) -> None:
    """Write what celltypist pickles of the cell lines; its genes are symbols."""
    logged = cells.copy()
    sa.pp.normalize_total(logged, target_sum=1e4)
    sa.pp.log1p(logged)
    scaler = StandardScaler().fit(logged.X.toarray())
    x = np.minimum(scaler.transform(logged.X.toarray()), 10)
    classifier = LogisticRegression(C=0.01).fit(x, cells.obs["cell_line"].astype(str))
    classifier.features = cells.var_names.to_numpy()
    model = {"Model": classifier, "Scaler_": scaler, "description": {"date": "2026"}}
    path.write_bytes(pickle.dumps(model))


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
        lost = votes["unknown"] > votes["share"]
        assert votes["vote"].fillna("").equals(votes["name"].where(~lost).fillna(""))
        given = obs.groupby(obs["leiden"].astype(str))[f"{key}_vote"].first()
        assert (given.astype(object).fillna("")[votes.index] == votes["vote"].fillna("")).all()
        genes = tables["_genes"]
        assert set(genes.loc[genes["source"] == source, "name"]) >= set(obs[key].cat.categories)
        plates = tables["_by_plate"].query(f"source == '{source}' and name == 'unknown'")
        assert plates["n_cells"].sum() == obs[key].isna().sum()
    agreement = tables["_agreement"]
    assert agreement["n_cells"].sum() == len(obs)
    assert list(agreement) == ["cell_line", *SOURCES.values(), "cell_type_markers", "n_cells"]
    page = (results / "report.html").read_text()
    assert all(f'id="table-annotation{name}"' in page for name in ("", "_agreement", "_genes"))
    for figure in ("unknown_shares", "type_genes"):
        drawn = {path.stem for path in (results / "figures" / figure).glob("*.png")}
        assert drawn == {*SOURCES.values(), "cell_type_markers"}
        assert all(f'id="figure-{figure}-{key}"' in page for key in drawn)
    sample = ad.read_h5ad(results / "umap.h5ad").obs
    same = obs.loc[sample.index, "cell_type"].astype(object).fillna("")
    assert sample["cell_type"].astype(object).fillna("").tolist() == same.tolist()
    sums = ad.read_h5ad(results / "pseudobulk.h5ad").obs
    assert sums["n_obs_aggregated"].sum() == obs["cell_type"].notna().sum()


def test_unknown_cells_are_no_type_and_shown_as_unknown(annotated: Project):
    results = annotated.results
    sample = ad.read_h5ad(results / "umap.h5ad")
    genes = pd.read_csv(results / "tables/annotation_genes.tsv", sep="\t")
    genes = genes[genes["source"] == "reference"]
    cells, best = genes_of_types(results / "umap.h5ad", sample.obs, "cell_type", genes)
    assert list(best) == sample.obs["cell_type"].cat.categories.tolist()
    for name, first in genes.set_index("name")["genes"].str.split(" ").items():
        assert best[name] == [gene for gene in first if gene in sample.var_names][:3]
    assert cells.to_df().equals(sample.to_df()[cells.var_names])
    types = sample.obs["cell_type"].astype(object).fillna("unknown")
    assert cells.obs["cell_type"].tolist() == types.tolist()
    obs = ad.read_zarr(results / "atlas.zarr").obs
    assert "unknown" not in {
        *obs["cell_type"].cat.categories,
        *obs["cell_type_vote"].cat.categories,
    }
    legend = pl.umap(results / "atlas.zarr", "cell_type").axes[0].get_legend()
    assert legend.get_texts()[-1].get_text() == "unknown"


def test_clusters_get_the_vote_as_a_proposed_name(
    annotated: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(annotated.folder)
    assert main(["label", "--config", "my.yaml", "--out", "names.tsv"]) == 0
    names = pd.read_csv("names.tsv", sep="\t", dtype=str, keep_default_na=False)
    votes = pd.read_csv(
        annotated.results / "tables/annotation.tsv", sep="\t", dtype=str, keep_default_na=False
    ).query("source == 'reference'")
    assert names["cluster_name"].tolist() == votes["vote"].tolist()
    assert names["vote"][votes["vote"].to_numpy() == ""].tolist() == ["unknown 100%"]


def test_check_says_what_is_wrong(
    annotated: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(annotated.folder)
    monkeypatch.setattr("scatlas.workflow.command_line.check.plan", plan := Plan())
    cells = ad.read_h5ad("cells.h5ad")

    def said(status: int = 1, outdir: str = "other", **annotate: object) -> str:
        config = annotated.config | {"annotate": annotate, "outdir": outdir}
        Path("bad.yaml").write_text(yaml.safe_dump(config))
        assert main(["check", "--config", "bad.yaml"]) == status
        return "".join(capsys.readouterr())

    def changed(change: Callable[[ad.AnnData], None], name: str = "others") -> str:
        other = cells.copy()
        change(other)
        write(other, Path(f"{name}.h5ad"))
        return f"{name}.h5ad"

    def rename(prefix: str) -> Callable[[ad.AnnData], None]:
        names = [f"{prefix}{number:011}" for number in range(cells.n_vars)]
        return lambda other: setattr(other, "var_names", names)

    def label(*names: str | None) -> Callable[[ad.AnnData], None]:
        def set_labels(other: ad.AnnData) -> None:
            lines = other.obs["cell_line"].astype(object).to_numpy()
            lines[: len(names)] = names
            other.obs["cell_line"] = pd.Series(lines, other.obs_names, dtype="category")

        return set_labels

    def move(other: ad.AnnData) -> None:
        cell = other.obs_names[other.obs["cell_line"] == "SIM_0001"][0]
        other.obs.loc[cell, "half"] = "high"

    plan.problem = "labels.smk: annotate.reference: nope.h5ad does not exist: correct it"
    text = said(reference="nope.h5ad", label=["cell_line"])
    assert text.count("annotate.reference: nope.h5ad does not exist") == 1
    plan.problem = ""
    assert "'cell_lines', which annotate names; did you mean cell_line?" in said(
        reference="cells.h5ad", label=["cell_lines"]
    )
    assert "annotate.key: plate p1 has an obs column 'drug' already" in said(
        reference="cells.h5ad", label=["cell_line"], key="drug"
    )
    said(0, reference=changed(rename("ENSG"), "ids"), label=["cell_line"])  # a var column has them
    text = said(reference=changed(rename("ENSMUSG"), "mouse"), label=["cell_line"])
    assert "shares 0 of its 600 genes with plate p1: there is 'ENSMUSG00000000000', here" in text
    text = said(reference=changed(label("NA")), label=["cell_line"])
    assert text == (
        "error: others.h5ad: 'NA' is no cell type: leave these cells without a label (a missing "
        "value)\n"
    )
    wanted = Annotate(reference="-", label=["half", "cell_line"])
    changes = {
        "has 1 cell, too few to learn from": label("rare"),
        "has 2 cells, too few to learn from": label("rare", "rare"),
        "'' is no cell type": label(""),
        "'Heterogeneous' is no cell type": label("Heterogeneous"),
        "type 'a|b' has a '|'": label("a|b"),
        "half: label 'SIM_0001' belongs to 'high' and to 'low'": move,
        "neither counts nor log1p": lambda other: sa.pp.normalize_total(other, target_sum=1e4),
        "h5ad has neither counts": lambda other: other.X.data.__imul__(-1),
    }
    for number, (sentence, change) in enumerate(changes.items()):
        with pytest.raises(InputError, match=re.escape(sentence)):
            check_file(changed(change, f"others{number}"), wanted)
    assert "no plate has an obs column 'cell_lin', which annotate names; did you mean" in said(
        label=["cell_lin"]
    )
    Path("bad.pkl").write_bytes(pickle.dumps({"Model": 1}))
    assert "bad.pkl is no CellTypist model: it has no entries" in said(model="bad.pkl")
    text = said(outdir="x" * 256, model="model.pkl")
    assert f"{'x' * 20}... is too long for the name of a folder" in text
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
    for key in SOURCES.values():  # new cells have the vote of the cluster that they fall into
        votes = extended[f"{key}_vote"].astype(object).fillna("")
        assert votes.groupby(extended["leiden"].astype(str)).nunique().eq(1).all()
        assert mapped[f"{key}_vote"].notna().any()


def test_labelled_plates_teach_the_others(annotated: Project, tmp_path: Path):
    """One has labels in obs; one, with some genes in another order, in the plate sheet; the third
    has none, and ids in place of symbols.
    """
    project = annotated.copied(tmp_path / "own")
    first, second, third = (ad.read_h5ad(project.folder / f"{name}.h5ad") for name in PLATES)
    first.obs["kind"] = first.obs["cell_line"]
    second = second[second.obs["cell_line"] == "SIM_0003", second.var_names[500::-1]].copy()
    third.var["symbol"] = third.var_names
    third.var_names = [f"ENSG{number:011}" for number in range(third.n_vars)]
    rows = []
    for name, plate, kind in zip(PLATES, (first, second, third), ("", "SIM_0003", ""), strict=True):
        write(plate, project.folder / f"own_{name}.h5ad")
        rows.append(f"{name}\town_{name}.h5ad\t{kind}\n")
    (project.folder / "plates.tsv").write_text("".join(["plate\tpath\tkind\n", *rows]))
    project.change(annotate={"label": ["kind"]}, markers={}, pseudobulk=None, genes="union")
    project.build("results/plates/p3/annotation.parquet")
    model = sa.io.read_annotator(project.results / "annotator/reference.h5ad")
    assert set(model.genes) <= set(second.var_names)
    assert set(model.labels) == set(first.obs["kind"])
    assert model.record["n_groups"] == 2
    kept = pd.read_parquet(project.results / "plates/p3/qc.parquet")["keep"].to_numpy()
    codes = pd.read_parquet(project.results / "plates/p3/annotation.parquet")["reference_codes"]
    known = codes.to_numpy() >= 0
    assert known.mean() >= 0.8
    truth = third.obs["cell_line"].astype(str).to_numpy()[kept][known]
    assert (model.labels[codes[known]] == truth).mean() >= 0.98
    folders = {name: project.results / "plates" / name for name in ("p1", "p3")}
    stores, kept = (
        {name: folder / file for name, folder in folders.items()}
        for file in ("counts.zarr", "qc.parquet")
    )
    with pytest.raises(InputError, match=r"share 0 genes: plate p1 has '.*', plate p3 'ENSG0"):
        cells_of_plates(stores, kept, {"p3": {"kind": "x"}}, Annotate(label=["kind"]))
    with pytest.raises(InputError, match="no plate has kind in obs or in the plate sheet"):
        cells_of_plates({"p3": stores["p3"]}, kept, {}, Annotate(label=["kind"]))


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
