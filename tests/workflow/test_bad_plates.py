"""Bad plates, configs and plate sheets end in one sentence, without incomplete outputs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scatlas.datasets import simulate_plates, write_plate, write_release
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project, errors

pytestmark = pytest.mark.workflow


def truncated(path: Path, adata: ad.AnnData) -> None:
    write_plate(path, adata)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def other_genes(path: Path, adata: ad.AnnData) -> None:
    names = adata.var_names.to_numpy(dtype=object, copy=True)
    names[20] = "unheard-of"
    adata.var_names = names
    write_plate(path, adata)


def no_column(path: Path, adata: ad.AnnData) -> None:
    del adata.obs["pass_filter"]
    write_plate(path, adata)


def no_cell(path: Path, adata: ad.AnnData) -> None:
    adata.obs["pass_filter"] = "minimal"
    write_plate(path, adata)


# Damage of each plate, and the words of the sentence besides the file: element and fix.
SPOILED: dict[str, tuple[Callable[[Path, ad.AnnData], None], tuple[str, ...]]] = {
    "truncated": (truncated, ("truncated", "copy or download it again")),
    "other_genes": (other_genes, ("gene 20 of var is 'unheard-of'", "set 'genes: intersect'")),
    "no_column": (no_column, ("no column 'pass_filter'", "set qc.filter to null")),
    "no_cell": (no_cell, ("keeps none of the 250 cells", "pass_filter == 'full'")),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, plates: dict[str, Path]) -> dict[str, Path]:
    """A good plate, and one for each kind of damage."""
    folder = tmp_path_factory.mktemp("spoiled")
    paths = {"good": plates["p1"]}
    for name, (spoil, _) in SPOILED.items():
        paths[name] = folder / f"{name}.h5ad"
        spoil(paths[name], ad.read_h5ad(plates["p2"]))
    return paths


def stores(plates: dict[str, Path]) -> list[str]:
    return [f"results/plates/{plate}/counts.zarr/zarr.json" for plate in plates]


def test_each_bad_plate_ends_its_job_with_one_sentence_and_its_mend_is_enough(
    tmp_path: Path, sources: dict[str, Path], plates: dict[str, Path]
):
    project = Project(tmp_path / "project", dict(CONFIG))
    project.write_plates(sources)

    failed = project.run("--keep-going", "--retries", "2", *stores(sources))

    assert failed.returncode != 0
    assert "Traceback" not in failed.stdout
    assert "Trying to restart" not in failed.stdout, "no retry mends a plate"
    said = failed.stdout.splitlines()[-len(SPOILED) :]
    assert failed.stdout.count("cannot go on: the end of this run says why") == len(SPOILED)
    for name, (_, wanted) in SPOILED.items():
        log = (project.results / f"logs/load/{name}.log").read_text()
        (sentence,) = [line for line in log.splitlines() if line.startswith("error: ")]
        sentence = sentence.removeprefix("error: ")
        assert f"error: {sentence}" in said, f"the end lacks the error of {name}"
        assert failed.stdout.count(sentence) == 1
        assert sentence.startswith(f"{sources[name]}: ")
        assert [part for part in wanted if part not in sentence] == []
        assert log.endswith(f"error: {sentence}\n"), f"{name} goes on after its error"
        assert left_over(project, name) == [f"manifests/load/{name}.refused"]
    assert "plates/good/counts.zarr/zarr.json" in left_over(project, "good"), "it runs regardless"

    for name in SPOILED:
        shutil.copy(plates["p2"], sources[name])
    assert project.build("--keep-going", *stores(sources)) == {f"load/{name}" for name in SPOILED}

    wanted = ad.read_h5ad(plates["p2"]).X.toarray()
    for name in SPOILED:
        counts = ad.read_zarr(project.results / f"plates/{name}/counts.zarr").X
        np.testing.assert_array_equal(counts.toarray(), wanted)
        assert not list(project.results.rglob("*.refused"))


def test_a_spoiled_release_ends_with_its_sentence_and_no_half_plate(tmp_path: Path):
    """A damaged page and an unknown token end their plates alone, wrong files the whole run."""
    place = {"plates": {"path": "tahoe", "by": "plate"}}
    project = Project(tmp_path / "project", {"outdir": "results"} | place)
    plates = [*simulate_plates(n_plates=3, n_cells=60, n_genes=200).values()]
    for adata in plates:
        adata.obs["pass_filter"] = "full"
    write_release(project.folder / "tahoe", plates, rows_per_group=20)
    first, second, third = sorted((project.folder / "tahoe/data").iterdir())  # a plate each
    column = pq.read_metadata(first).row_group(1).column(0)
    content = bytearray(first.read_bytes())
    content[(begin := column.dictionary_page_offset) : begin + 40] = bytes(40)
    first.write_bytes(content)
    table = pq.read_table(third)
    tokens = table["genes"].to_pylist()
    tokens[30][2] = 99_999
    table = table.set_column(0, "genes", pa.array(tokens))
    pq.write_table(table, third, row_group_size=20)

    stores = [f"results/plates/plate{n}/counts.zarr/zarr.json" for n in (1, 2, 3)]
    failed = project.run("--keep-going", *stores)
    damage, unknown = sorted(errors(failed.stdout))
    assert damage.startswith(f"plate1: tahoe/data/{first.name}: row group 1, columns genes, ")
    assert damage.endswith(": download this file again")
    where = f"tahoe/data/{third.name}: row group 1: row 10 holds token 99999, which"
    assert unknown.startswith(f"plate3: {where}")
    assert left_over(project, "plate1") == ["manifests/load/plate1.refused"]
    assert left_over(project, "plate3") == ["manifests/load/plate3.refused"]
    assert "plates/plate2/counts.zarr/zarr.json" in left_over(project, "plate2")

    foreign = shutil.copy(second, second.with_name("train-00001-of-00004.parquet"))
    said = project.run(*stores).stdout
    assert f"{foreign.name} is not of the 3 files train-*-of-00003.parquet: remove" in said
    foreign.unlink()
    second.unlink()
    said = project.run(*stores).stdout
    assert f"tahoe: 1 of 3 files are missing, {second.name}: download them" in said


def left_over(project: Project, plate: str) -> list[str]:
    """Files that a load job has written, except its log and benchmark."""
    results = project.results
    places = [*results.glob(f"plates/{plate}/**/*"), *results.glob(f"manifests/load/{plate}.*")]
    return sorted(path.relative_to(results).as_posix() for path in places if path.is_file())


def one_cell(adata: ad.AnnData) -> ad.AnnData:
    return adata[np.flatnonzero(adata.obs["pass_filter"] == "full")[:1]].copy()


def without_counts(adata: ad.AnnData) -> ad.AnnData:
    adata.X = adata.X * 0
    return adata


def some_without_a_donor(adata: ad.AnnData) -> ad.AnnData:
    adata.obs["donor"] = pd.Categorical(["x", "y", None, "x", "y"] * 50)
    return adata


def only_dropped_without_a_donor(adata: ad.AnnData) -> ad.AnnData:
    adata.obs["donor"] = pd.Categorical(["x"] * 250).set_categories(["x", "y"])
    adata.obs.loc[adata.obs["pass_filter"] != "full", "donor"] = None
    return adata


def test_steps_that_cannot_use_a_plate_name_it(tmp_path: Path, plates: dict[str, Path]):
    """Missing values of integrate.key end the first step that knows the kept cells, too."""
    made = (one_cell, without_counts, some_without_a_donor, only_dropped_without_a_donor)
    rows = ["plate\tpath\tdonor", f"no_donor\t{plates['p2']}\t"]
    for make in made:
        path = tmp_path / f"{make.__name__}.h5ad"
        write_plate(path, make(ad.read_h5ad(plates["p1"])))
        donor = "" if "donor" in make.__name__ else "d"
        rows.append(f"{make.__name__}\t{path}\t{donor}")
    project = Project(tmp_path / "project", CONFIG | {"integrate": {"key": ["plate", "donor"]}})
    (project.folder / "plates.tsv").write_text("\n".join([*rows, ""]))
    last = {"no_donor": "qc", "some_without_a_donor": "qc", "only_dropped_without_a_donor": "qc"}
    names = [row.split("\t")[0] for row in rows[1:]]
    tables = [f"results/plates/{name}/{last.get(name, 'hvg')}.parquet" for name in names]

    said = project.run("--keep-going", *tables).stdout

    kept = ad.read_h5ad(tmp_path / "some_without_a_donor.h5ad").obs
    kept = kept[kept["pass_filter"] == "full"]["donor"]
    found = errors(said)
    begins = (
        "plate no_donor has no obs column 'donor', which integrate.key names: give each",
        "plate one_cell: no gene has a normalised dispersion",
        "plate some_without_a_donor: obs['donor'], which integrate.key names, has no value",
        "plate without_counts: no cell has counts",
    )
    assert any(
        f" for {kept.isna().sum()} of the {len(kept)} kept" in sentence for sentence in found
    )
    assert len(found) == len(begins)
    for sentence, begin in zip(sorted(found), begins, strict=True):
        assert sentence.startswith(begin)
    assert (project.folder / tables[-1]).exists(), "gaps of cells that are dropped do not matter"


def test_too_few_genes_for_the_components_are_refused_where_they_are_chosen(
    tmp_path: Path, two: Project
):
    """Another number of components does not run that step again."""
    project = two.copied(tmp_path / "copy")
    n_genes = len((project.results / "consensus_genes.tsv").read_text().splitlines()) - 1
    project.change(pca={"n_comps": n_genes})
    assert project.build("results/consensus_genes.tsv") == set()
    project.change(pca={"n_comps": n_genes + 1}, consensus={"min_plates": 1})
    (project.results / "consensus.parquet").unlink()
    said = project.run("results/consensus_genes.tsv", "--forcerun", "consensus").stdout
    assert f"error: {n_genes} genes are highly variable on 1 of 2 plates, too few for" in said


MISTAKES = (
    "config has 2 problems:",
    "unknown key 'hgv': did you mean 'hvg'?",
    "pca.n_comps is 'ten'; it must be a whole number of at least 1",
)


@pytest.mark.parametrize(
    ("change", "path", "sentences"),
    [
        ({"hgv": {"n_top_genes": 150}, "pca": {"n_comps": "ten"}}, "", MISTAKES),
        ({"consensus": {"min_plates": 4}}, "", ("min_plates is 4, but plates.tsv has 3 plates",)),
        ({}, "nowhere/p2.h5ad", ("plates.tsv, row 3: nowhere/p2.h5ad of plate",)),
    ],
)
def test_a_bad_config_or_sheet_stops_before_any_job(
    project: Project, plates: dict[str, Path], change: dict, path: str, sentences: tuple[str, ...]
):
    project.change(**change)
    project.write_plates(plates | ({"p2": path} if path else {}))
    stopped = project.run()
    assert stopped.returncode != 0
    assert [stopped.stdout.count(sentence) for sentence in sentences] == [1] * len(sentences)
    assert "Traceback" not in stopped.stdout
    assert not project.results.exists()
