"""What a user sees of bad plates, configs and plate sheets: one sentence, and nothing half-done."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from scatlas.datasets import write_plate
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow


def no_anndata(path: Path, adata: ad.AnnData) -> None:
    path.write_text("gene\tcell1\nMT-ND1\t3\n")


def truncated(path: Path, adata: ad.AnnData) -> None:
    write_plate(path, adata)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def fractional(path: Path, adata: ad.AnnData) -> None:
    adata.X.data[adata.X.indptr[7]] = 0.5
    write_plate(path, adata)


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


# How each plate is spoiled, and what the sentence has to name besides the file: element and mend.
SPOILED: dict[str, tuple[Callable[[Path, ad.AnnData], None], tuple[str, ...]]] = {
    "no_anndata": (no_anndata, ("neither an HDF5 file nor a Zarr store", "give an AnnData file")),
    "truncated": (truncated, ("truncated", "copy or download it again")),
    "fractional": (fractional, ("X holds 0.5", "cell 7 (", "give raw counts")),
    "other_genes": (other_genes, ("gene 20 of var is 'unheard-of'", "set 'genes: intersect'")),
    "no_column": (no_column, ("no column 'pass_filter'", "set qc.filter to null")),
    "no_cell": (no_cell, ("keeps none of the 250 cells", "pass_filter == 'full'")),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, plates: dict[str, Path]) -> dict[str, Path]:
    """A good plate, and one for each way of spoiling it."""
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

    failed = project.run("--keep-going", *stores(sources))

    assert failed.returncode != 0
    assert "Traceback" not in failed.stdout
    errors = {line.strip() for line in failed.stdout.splitlines() if "error: " in line}
    assert len(errors) == len(SPOILED), "no other sentence is said"
    for name, (_, wanted) in SPOILED.items():
        log = (project.results / f"logs/load/{name}.log").read_text()
        (sentence,) = [line for line in log.splitlines() if line.startswith("error: ")]
        assert sentence in errors, f"{name} is shown to who looks at Snakemake's output alone"
        assert sentence.startswith(f"error: {sources[name]}: ")
        assert [part for part in wanted if part not in sentence] == []
        assert log.endswith(f"{sentence}\n"), f"{name} goes on after its error"
        # The sentence, which a retry repeats instead of reading the plate again.
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


def left_over(project: Project, plate: str) -> list[str]:
    """Every file that a load job has written, but for its log and benchmark."""
    results = project.results
    places = [*results.glob(f"plates/{plate}/**/*"), *results.glob(f"manifests/load/{plate}.*")]
    return sorted(path.relative_to(results).as_posix() for path in places if path.is_file())


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (
            {"hgv": {"n_top_genes": 150}, "pca": {"n_comps": "ten"}},
            (
                "config has 2 problems:",
                "unknown key 'hgv': did you mean 'hvg'?",
                "pca.n_comps is 'ten'; it must be a whole number of at least 1",
            ),
        ),
        (
            {"consensus": {"min_plates": 4}},
            ("consensus.min_plates is 4, but plates.tsv has 3 plates", "give at most 3"),
        ),
        ({"plates": "no-such.tsv"}, ("no-such.tsv: there is no such plate sheet",)),
    ],
    ids=["two mistakes", "more plates than there are", "no plate sheet"],
)
def test_a_bad_config_stops_before_any_job(
    project: Project, change: dict, sentences: tuple[str, ...]
):
    project.config |= change
    project.write_config()
    assert_stops_with(project, *sentences)


def test_a_missing_plate_file_stops_before_any_job(project: Project, plates: dict[str, Path]):
    project.write_plates(plates | {"p2": "nowhere/p2.h5ad"})
    assert_stops_with(
        project, "plates.tsv, row 3: nowhere/p2.h5ad of plate 'p2' does not exist; paths start from"
    )


def assert_stops_with(project: Project, *sentences: str) -> None:
    stopped = project.run()
    assert stopped.returncode != 0
    assert [stopped.stdout.count(sentence) for sentence in sentences] == [1] * len(sentences)
    assert "Traceback" not in stopped.stdout
    assert not project.results.exists()
