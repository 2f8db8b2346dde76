"""Another workflow imports this one as a module, with a prefix."""

from __future__ import annotations

import json
from pathlib import Path

import anndata as ad
import pytest

from tests.workflow.conftest import CONFIG
from tests.workflow.runs import ROOT, run_python

pytestmark = pytest.mark.workflow

OUTER = """
configfile: "study.yaml"


module scatlas:
    snakefile:
        "{root}/Snakefile"
    config:
        config["atlas"]
    prefix:
        "of-scatlas"


use rule * from scatlas as scatlas_*


rule all:
    default_target: True
    input:
        "cells.json",
        rules.scatlas_all.input,


# A rule of the outer workflow that has the name of one of this workflow's.
rule load:
    input:
        rules.scatlas_atlas.output.manifest,
    output:
        "cells.json",
    shell:
        "cp {{input}} {{output}}"
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, plates: dict[str, Path]) -> Path:
    folder = tmp_path_factory.mktemp("study")
    (folder / "workflow").mkdir()
    (folder / "workflow/Snakefile").write_text(OUTER.format(root=ROOT))
    config = CONFIG | {"plates": "plates.tsv", "consensus": {"min_plates": 1}, "outdir": "out"}
    (folder / "study.yaml").write_text(json.dumps({"atlas": config}))
    # Relative to the folder where Snakemake starts, with any prefix of the results.
    (folder / "raw").mkdir()
    (folder / "raw/a.h5ad").symlink_to(plates["p1"])
    (folder / "plates.tsv").write_text("plate\tpath\np1\traw/a.h5ad\n")
    return folder


def run(study: Path, *options: str, status: int = 0) -> str:
    words = ("--cores", "2", "--nocolor", "--retries", "0", *options)
    done = run_python("-m", "snakemake", *words, cwd=study)
    assert done.returncode == status, done.stdout[-6000:]
    return done.stdout


def test_a_workflow_that_imports_this_one_builds_its_atlas_and_goes_on_from_there(study: Path):
    run(study)
    out = study / "of-scatlas/out"
    atlas = ad.read_zarr(out / "atlas.zarr")
    assert atlas.obsm["X_pca"].shape == (atlas.n_obs, CONFIG["pca"]["n_comps"])
    assert json.loads((study / "cells.json").read_text())["n_cells"] == atlas.n_obs
    assert (out / "report.html").stat().st_size > 0
    assert {path.name for path in study.iterdir() if path.name != ".snakemake"} == {
        *("workflow", "study.yaml", "plates.tsv", "raw", "cells.json", "of-scatlas")
    }, "all results are below the prefix"
    assert "Nothing to be done" in run(study)


def test_the_demo_and_an_import_without_prefix_are_planned(study: Path, tmp_path: Path):
    """The demo's plates are results, too."""
    outer = OUTER.format(root=ROOT)
    for name, text in {
        "demo": outer.replace('config["atlas"]', 'config["demo"]'),
        "bare": outer.replace('    prefix:\n        "of-scatlas"\n', ""),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "Snakefile").write_text(text)
        config = json.loads((study / "study.yaml").read_text())["atlas"]
        demo = {"plates": str(ROOT / "config/plates.tsv")}
        (tmp_path / name / "study.yaml").write_text(json.dumps({"atlas": config, "demo": demo}))
        (tmp_path / name / "plates.tsv").write_text((study / "plates.tsv").read_text())
        (tmp_path / name / "raw").symlink_to(study / "raw")
    planned = run(tmp_path / "demo", "--dry-run")
    assert "of-scatlas/resources/demo/plate1.h5ad" in planned
    assert "scatlas_simulate" in planned
    planned = run(tmp_path / "bare", "--dry-run")
    assert " out/atlas.zarr/zarr.json" in planned
    assert "of-scatlas" not in planned


def test_bad_plates_are_named_at_the_end_and_so_speaks_the_outer_workflow(
    study: Path, tmp_path: Path
):
    """Snakemake runs no onerror and onsuccess of a module."""
    (tmp_path / "bad.h5ad").write_text("no HDF5")
    (tmp_path / "plates.tsv").write_text(f"plate\tpath\np1\t{study}/raw/a.h5ad\np2\tbad.h5ad\n")
    atlas = json.loads((study / "study.yaml").read_text())["atlas"]
    head, _, _ = OUTER.format(root=ROOT).partition("rule all:")
    handlers = 'onerror:\n    print("outer: an error")\n\n\nonsuccess:\n    print("outer: done")\n'
    target = "rules.scatlas_consensus.output.manifest"
    rule = f"rule all:\n    default_target: True\n    input:\n        {target},\n"
    (tmp_path / "Snakefile").write_text(head + handlers + rule)
    (tmp_path / "study.yaml").write_text(json.dumps({"atlas": atlas}))
    said = run(tmp_path, "--keep-going", status=1)
    assert said.index("outer: an error") < said.index("1 of 2 plates cannot be used. Mend them")
    skips = atlas | {"plates": {"sheet": "plates.tsv", "on_error": "skip"}}
    (tmp_path / "study.yaml").write_text(json.dumps({"atlas": skips}))
    said = run(tmp_path)
    assert said.index("1 of 2 plates are left out of the atlas") < said.index("outer: done")


def test_two_configs_in_one_workflow_are_refused(study: Path, tmp_path: Path):
    head, _, _ = OUTER.format(root=ROOT).partition("rule all:")
    again = head.partition("module")[2].replace("scatlas", "other").replace('atlas"]', 'two"]')
    (tmp_path / "Snakefile").write_text(head + "module" + again)
    atlas = json.loads((study / "study.yaml").read_text())["atlas"]
    configs = {"atlas": atlas, "two": atlas | {"seed": 1}}
    (tmp_path / "study.yaml").write_text(json.dumps(configs))
    (tmp_path / "plates.tsv").write_text(f"plate\tpath\np1\t{study}/raw/a.h5ad\n")
    assert "imports scatlas with two configs" in run(tmp_path, "--dry-run", status=1)
