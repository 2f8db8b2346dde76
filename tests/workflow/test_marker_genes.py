"""Marker genes of the workflow: those of scanpy on all cells, and what reruns their rules."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.datasets import simulate_plate, write_plate
from tests.workflow.conftest import CONFIG, PLATES, SAMPLE_STEPS
from tests.workflow.runs import ROOT, Project

pytestmark = pytest.mark.workflow

NUMBERS = ("scores", "logfoldchanges", "pvals", "pvals_adj", "pct_nz_group", "pct_nz_reference")
STEPS = {"cell_groups", *(f"group_sums/{plate}" for plate in PLATES), "markers", "report"}


def all_genes(project: Project, plates: dict[str, Path]) -> ad.AnnData:
    """Kept cells of all plates with all genes, normalised as the workflow does."""
    parts = []
    for name, path in plates.items():
        cells = pd.read_parquet(project.results / f"plates/{name}/size_factors.parquet")
        plate = ad.read_h5ad(path)[cells["row"].to_numpy()].copy()
        x = plate.X.multiply(1 / cells["size_factor"].to_numpy()[:, None]).tocsr()
        plate.X = np.log1p(x.astype(np.float32)).astype(np.float64)
        plate.obs = pd.DataFrame(index=[f"{name}-{i}" for i in range(plate.n_obs)])
        plate.obs["donor"] = f"donor of {name}"
        parts.append(plate)
    return ad.concat(parts)


def table_of(project: Project, name: str = "markers") -> pd.DataFrame:
    text = dict.fromkeys(("by", "group", "names"), str)
    return pd.read_csv(project.results / f"tables/{name}.tsv", sep="\t", dtype=text)


def assert_as_scanpy(
    found: pd.DataFrame, cells: ad.AnnData, by: str, *, least: float = 0, **options: str
) -> None:
    sc = pytest.importorskip("scanpy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sc.tl.rank_genes_groups(cells, by, pts=True, **options)
    found = found[found["by"] == by]
    assert list(found["group"].unique()) == list(cells.obs[by].cat.categories)
    for group, rows in found.groupby("group"):
        expected = sc.get.rank_genes_groups_df(cells, group)
        expected = expected[np.exp2(expected["logfoldchanges"]) >= least]
        assert len(rows) == min(100 if least else 7, len(expected))
        rows, best = rows.set_index("names"), expected["scores"][: len(rows)]
        # Genes of equal scores may change places.
        np.testing.assert_allclose(rows["scores"], best, rtol=1e-5)
        expected = expected.set_index("names").loc[rows.index]
        for name in NUMBERS:
            rtol = 1e-3 if name.startswith("pvals") else 1e-5
            np.testing.assert_allclose(rows[name], expected[name], rtol=rtol, atol=1e-30)


def test_markers_of_the_clusters_are_those_of_scanpy(built: Project, plates: dict[str, Path]):
    cells = all_genes(built, plates)
    cells.obs["leiden"] = ad.read_zarr(built.results / "atlas.zarr").obs["leiden"].to_numpy()
    found = table_of(built)
    assert cells.n_vars == 600
    assert found["by"].unique().tolist() == ["leiden"]
    assert found["logfoldchanges"].min() >= np.float32(np.log2(1.5))
    assert_as_scanpy(found, cells, "leiden", least=1.5, method="t-test")
    means = ad.read_h5ad(built.results / "markers.h5ad")
    assert set(means.var_names) == set(found["names"])
    assert means.obs["n_cells"].sum() == cells.n_obs


@pytest.fixture(scope="module")
def changed(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Markers of the sample's clusters and of a label, with those by Wilcoxon."""
    copy = built.copied(tmp_path_factory.mktemp("markers"))
    markers = {"by": ["leiden", "donor"], "n_genes": 7, "min_fold_change": 0, "wilcoxon": True}
    copy.change(markers=markers, map={"cells": "sample"}, report={"formats": ["pdf"]})
    # The sample comes from the atlas now, not from the store before its map.
    assert copy.build() == STEPS | {"atlas", "subset", *SAMPLE_STEPS}
    return copy


def test_without_a_map_the_sampled_cells_have_clusters(changed: Project, plates: dict[str, Path]):
    cells, sample = all_genes(changed, plates), ad.read_h5ad(changed.results / "umap.h5ad")
    found = table_of(changed)
    assert (found.groupby(["by", "group"]).size() == 7).all()
    cells.obs["donor"] = cells.obs["donor"].astype("category")
    assert_as_scanpy(found, cells, "donor", method="t-test")
    sampled = cells[sample.obs["atlas_row"]].copy()
    sampled.obs["leiden"] = sample.obs["leiden"].to_numpy()
    assert_as_scanpy(found, sampled, "leiden", method="t-test")


def test_markers_that_differ_between_plates_are_offered_for_the_atlas(changed: Project):
    """``donor`` has one value on each plate; the clusters are on several."""
    genes = pd.read_csv(changed.results / "consensus_genes.tsv", sep="\t")["gene"]
    donors = table_of(changed).query("by == 'donor'").sort_values("rank", kind="stable")
    best = list(dict.fromkeys(donors["names"]))
    absent = [name for name in best if name not in set(genes)]
    assert 0 < len(absent) <= 20
    named = ", ".join(absent)
    sentence = (
        f"{len(absent)} of the {len(best)} first marker genes of donor are not among the genes of "
        "the atlas, which vary within plates. Components and clusters follow them with consensus: "
        f"{{also: [{named}]}}"
    )
    log, page = changed.results / "logs/markers.log", changed.results / "report.html"
    assert log.read_text().count(sentence) == page.read_text().count(sentence) == 1
    assert "first marker genes of leiden" not in log.read_text()


def test_wilcoxon_ranks_the_genes_of_the_sample(changed: Project):
    sample = ad.read_h5ad(changed.results / "umap.h5ad")
    found = table_of(changed, "markers_wilcoxon")
    figures = {path.name for path in (changed.results / "figures/markers_dots").glob("[!.]*")}
    assert figures == {f"{by}.{form}" for by in ("leiden", "donor") for form in ("png", "pdf")}
    assert (changed.results / "figures/cells_kept.pdf").read_bytes().startswith(b"%PDF")
    assert (found.groupby(["by", "group"]).size() == 7).all()
    assert set(found["names"]) <= set(sample.var_names)
    for by in ("leiden", "donor"):
        assert_as_scanpy(found, sample.copy(), by, method="wilcoxon")


def test_only_plates_with_other_labels_are_summed_again(changed: Project):
    changed.change(markers=changed.config["markers"] | {"n_genes": 5})
    assert changed.build() == {"markers", "report"}
    # Another donor on one plate.
    sheet = changed.folder / "plates.tsv"
    sheet.write_text(sheet.read_text().replace("donor of p2", "donor of p1"))
    done = changed.build("markers")
    assert {name for name in done if name.startswith("group_sums")} == {"group_sums/p2"}
    assert "markers" in done
    assert set(table_of(changed).query("by == 'donor'")["group"]) == {"donor of p1", "donor of p3"}


def test_many_small_plates_share_jobs_and_have_the_markers_of_single_ones(tmp_path: Path):
    """The second batch begins with a plate that is left out."""
    paths = {f"s{i}": tmp_path / f"s{i}.h5ad" for i in range(1, 10)}
    for number, path in enumerate(paths.values(), start=1):
        write_plate(path, simulate_plate(number, n_cells=60, n_genes=200))
    paths["s3"].write_text("no plate")
    config = CONFIG | {"markers": {"by": ["donor"], "n_genes": 5}, "hvg": {"n_top_genes": 50}}
    config["plates"] = {"sheet": "plates.tsv", "on_error": "skip"}
    project = Project(tmp_path / "project", config)
    project.write_plates(paths)
    table = "results/tables/markers.tsv"
    done = project.build(table)
    batches = {f"group_sums/s{i}" for i in (1, 3, 5, 7, 9)}
    assert {name for name in done if name.startswith("group_sums")} == batches
    together = (project.folder / table).read_bytes()
    assert set(table_of(project)["group"]) == {f"donor of s{i}" for i in range(1, 10) if i != 3}
    assert project.build(table) == set()

    plates, sums = project.results / "plates", []
    for name in (name for name in paths if name != "s3"):
        sums.append(f"{name}={tmp_path / name}.h5")
        run_script(
            "group_sums", f"--manifest {tmp_path / name}.json --by donor --stores "
            f"{name}={plates / name}/counts.zarr --size-factors "
            f"{name}={plates / name}/size_factors.parquet --groups "
            f"{project.results}/cell_groups.h5 --sums {tmp_path / name}.h5",
        )  # fmt: skip
    run_script(
        "markers", f"--manifest {tmp_path}/m.json --table {tmp_path}/m.tsv --n-genes 5 "
        f"--min-fold-change 1.5 --means {tmp_path}/m.h5ad --sums {' '.join(sums)}",
    )  # fmt: skip
    assert (tmp_path / "m.tsv").read_bytes() == together

    sheet = project.folder / "plates.tsv"
    sheet.write_text(sheet.read_text().replace("donor of s4", "donor of s1"))
    assert {n for n in project.build(table) if n.startswith("group_sums")} == {"group_sums/s3"}


def run_script(name: str, options: str) -> None:
    runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))["main"](options.split())
