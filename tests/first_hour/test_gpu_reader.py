"""The README's reader with a GPU, from an empty folder to the atlas.

Without a GPU the same lines work on the CPU, and the logs say why.
"""

from __future__ import annotations

import re
from pathlib import Path

import anndata as ad
import pytest

from scatlas.compute.backend import choose_backend
from scatlas.errors import GpuError
from tests.first_hour import readme

pytestmark = pytest.mark.workflow

READER = "I have a GPU"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which the lines ran; their outputs are in plan.out and run.out."""
    made, (plan, line) = readme.commands(READER)
    assert made[:2] == ["git clone <this repository> scatlas", "cd scatlas"]
    assert plan == f"{line} -n"
    folder = readme.clone(tmp_path_factory.mktemp("gpu"))
    readme.write_sheet_and_config(folder, 3)
    (folder / "plan.out").write_text(readme.run(plan, folder))
    (folder / "run.out").write_text(readme.run(line, folder))
    return folder


def test_the_plan_uses_the_profile(project: Path):
    plan = (project / "plan.out").read_text()
    assert "Using profiles local-gpu" in plan
    assert re.search(r"^hvg +3$", plan, re.MULTILINE)


def test_the_atlas_and_its_report_are_there(project: Path):
    results = project / "results/my-atlas"
    assert ad.read_zarr(results / "atlas.zarr").obsm["X_umap"].shape[1] == 2
    assert "UMAP" in (results / "report.html").read_text()


def test_the_log_says_which_device_worked(project: Path):
    # Small plates work on the CPU, without asking for a GPU.
    log = (project / "results/my-atlas/logs/pca.log").read_text()
    try:
        choose_backend("gpu")
    except GpuError as error:
        reason = str(error).removeprefix("backend: gpu cannot be used, as ")
        assert f"backend: auto works on the CPU, as {reason}" in log
    else:
        assert "working on " in log
