"""The README's reader with 10x runs and a laptop, from an empty folder to the atlas.

The wheel is installed in a folder, and nothing of this checkout is used.
"""

from __future__ import annotations

import shlex
import subprocess
import zipfile
from pathlib import Path

import anndata as ad
import pytest
import yaml

from tests.first_hour import readme
from tests.first_hour.conftest import ROOT, Run

pytestmark = pytest.mark.workflow

READER = "I have 10x runs and a laptop"
CLONE, PIP = "git clone <this repository> scatlas", "pip install './scatlas[workflow]'"


@pytest.fixture(scope="module")
def project(installed: Run, runs_10x: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the README's commands ran; their outputs are in ``*.out``.

    ``status`` and ``open`` also ran before ``run``: in ``before.out`` and ``no_report.out``.
    """
    folder = tmp_path_factory.mktemp("project")

    def run(name: str, words: list[str], status: int = 0) -> None:
        done = installed(folder, *words, terminal=words[0] == "run")
        (folder / f"{name}.out").write_text(done.stdout)
        assert done.returncode == status, done.stdout[-6000:]

    made, lines = readme.commands(READER)
    assert made == [CLONE, "python3 -m venv .venv", "source .venv/bin/activate", PIP]
    for line in lines:
        program, *words = shlex.split(line.replace("/data/", f"{runs_10x}/"))
        assert program == "scatlas"
        if words == ["run"]:
            run("before", ["status"])
            run("no_report", ["open"], status=1)
        run(words[0], words)
    return folder


def test_the_wheel_has_the_workflow_and_is_small(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name.partition("/snakemake_workflow/")[2]
            for name in archive.namelist()
            if "/snakemake_workflow/" in name
        }
    tracked = subprocess.run(
        ["git", "ls-files", "Snakefile", "workflow/rules", "workflow/report",
         "scripts", "profiles", "config"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert {*tracked} <= names
    assert {name for name in names if name.startswith("envs/")} == {
        f"envs/{name}.yaml" for name in ("cpu", "gpu-cu12", "gpu-cu13")
    }
    assert wheel.stat().st_size < 1_200_000


def test_init_says_what_it_saw(project: Path):
    text = (project / "init.out").read_text()
    assert "p2     200    500    X " in text
    config = yaml.safe_load((project / "atlas.yaml").read_text())
    assert config["genes"] == "same"
    assert config["qc"]["mt_prefix"] == "MT-"
    assert config["qc"]["min_genes"] > 0
    assert (config["qc"]["mads"], config["qc"]["by"]) == (5, "plate")
    assert (project / "init.png").read_bytes().startswith(b"\x89PNG")
    header, *rows = (project / "plates.tsv").read_text().splitlines()
    assert header.split("\t") == ["plate", "path", "n_cells"]
    assert [row.split("\t")[0] for row in rows] == ["p1", "p2", "p3"]


def test_check_counts_the_steps(project: Path):
    assert "atlas.yaml is valid: 3 plates, 37 steps to run" in (project / "check.out").read_text()


def test_run_prints_its_command_and_uses_the_package(project: Path):
    first, *_ = (project / "run.out").read_text().splitlines()
    assert "-m snakemake --snakefile" in first
    assert "scatlas/snakemake_workflow/Snakefile --workflow-profile " in first
    assert "scatlas/snakemake_workflow/profiles/default --configfile=atlas.yaml" in first
    assert first.endswith("--quiet=reason")
    assert str(ROOT) not in first.partition(" -m ")[2]
    assert ad.read_zarr(project / "results/atlas.zarr").obsm["X_umap"].shape[1] == 2


def test_run_draws_bars_on_a_terminal(project: Path):
    lines = (project / "run.out").read_text().splitlines()
    for name, total in (("all steps", 37), ("plates read", 3), ("plates cut to these genes", 3)):
        drawn = [line for line in lines if f"{name} " in line and "%|" in line]
        assert any(f"| 0/{total} [00:00<" in bar for bar in drawn)
        assert f"| {total}/{total} [" in drawn[-1]


def test_status_counts_by_step(project: Path):
    def row(name: str, step: str) -> list[str]:
        lines = (project / f"{name}.out").read_text().splitlines()
        return next(line.split()[1:] for line in lines if line.startswith(f"{step} "))

    assert row("before", "load") == ["0", "0", "0", "3"]
    assert row("status", "load") == ["3", "0", "0", "0"]
    assert row("status", "report") == ["1", "0", "0", "0"]
    assert (project / "status.out").read_text().endswith("everything is done: scatlas open\n")


def test_open_prints_the_path_of_the_report(project: Path):
    page = project / "results/report.html"
    sentence = f"error: {page}: there is no report yet: scatlas run makes it\n"
    assert (project / "no_report.out").read_text() == sentence
    assert (project / "open.out").read_text() == f"{page}\n"
    assert "Cells on the map" in page.read_text()


def test_an_installed_package_makes_no_environments(project: Path, installed: Run):
    done = installed(project, "run", "--", "-n", "--software-deployment-method", "conda")
    assert done.returncode == 1
    assert "environments made by Snakemake need a clone" in done.stdout


def test_the_exit_status_is_that_of_snakemake(project: Path, installed: Run):
    done = installed(project, "run", "--", "-n", "no_such_rule")
    assert done.returncode == 1
    assert "no_such_rule" in done.stdout


def test_slurm_writes_its_profile_first(project: Path, installed: Run):
    done = installed(project, "run", "--slurm")
    assert done.returncode == 1
    assert "edit its section 'Your cluster'" in done.stdout
    assert (project / "slurm/config.yaml").read_bytes() == (
        ROOT / "profiles/slurm/config.yaml"
    ).read_bytes()
    done = installed(project, "run", "--slurm", "--", "-n", "--quiet", "rules")
    assert done.returncode == 0, done.stdout
    assert "Using profiles slurm and workflow specific profile" in done.stdout


def test_check_names_a_wrong_key(project: Path, installed: Run, tmp_path: Path):
    config = (project / "atlas.yaml").read_text().replace("min_genes", "min_gene")
    (tmp_path / "atlas.yaml").write_text(config)
    done = installed(tmp_path, "check")
    assert done.returncode == 1
    assert done.stdout.startswith("error: atlas.yaml: unknown key 'min_gene' in qc: did you")
    assert done.stdout.count("\n") == 1
