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


def test_the_lines_make_an_atlas_on_the_device_that_there_is(tmp_path: Path):
    made, (plan, line) = readme.commands(READER)
    assert made[:2] == ["git clone <this repository> scatlas", "cd scatlas"]
    assert plan == f"{line} -n"
    folder = readme.clone(tmp_path)
    readme.write_sheet_and_config(folder, 3)
    planned = readme.run(plan, folder)
    assert "Using profiles local-gpu" in planned
    assert re.search(r"^hvg +3$", planned, re.MULTILINE)
    readme.run(line, folder)
    results = folder / "results/my-atlas"
    assert ad.read_zarr(results / "atlas.zarr").obsm["X_umap"].shape[1] == 2
    assert "Cells on the map" in (results / "report.html").read_text()
    # Small plates work on the CPU, without asking for a GPU.
    log = (results / "logs/pca.log").read_text()
    try:
        choose_backend("gpu")
    except GpuError as error:
        reason = str(error).removeprefix("backend: gpu cannot be used, as ")
        assert f"backend: auto works on the CPU, as {reason}" in log
    else:
        assert "working on " in log
