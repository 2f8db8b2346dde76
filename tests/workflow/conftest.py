"""A small atlas, built once for all tests of this folder that only read it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scatlas.datasets import simulate_plate, write_plate
from tests.helpers.once import once
from tests.workflow import warm
from tests.workflow.runs import Project

PLATES = ("p1", "p2", "p3")
# Steps of the sample after its choice.
SAMPLE_STEPS = ("neighbors", "umap", "leiden", "embedding")
CONFIG = {
    "plates": "plates.tsv",
    # Cells that passed the filter of Tahoe's provider.
    "qc": {"filter": "pass_filter == 'full'"},
    "hvg": {"n_top_genes": 150},
    "consensus": {"min_plates": 2},
    "pca": {"n_comps": 10},
    "subset": {"n_cells": 300},
    "compute": {"block_budget": "16MB"},
    # test_explore.py makes the page; it and each picture would take a sixth of the time of each
    # other test.
    "explore": {"page": False},
    "report": {"colors": ["leiden"]},
}


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of this run of pytest that all its workers share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def plates(shared: Path) -> dict[str, Path]:
    """Three plates of 250 cells x 600 genes."""
    paths = {name: shared / f"{name}.h5ad" for name in PLATES}
    with once(shared / "plates.done") as first:
        for number, path in enumerate(paths.values() if first else (), start=1):
            write_plate(path, simulate_plate(number, n_cells=250, n_genes=600))
    return paths


@pytest.fixture
def project(tmp_path: Path, plates: dict[str, Path]) -> Project:
    """New project on the three plates, not run yet."""
    new = Project(tmp_path / "project", dict(CONFIG))
    new.write_plates(plates)
    return new


@pytest.fixture(scope="session")
def built(shared: Path, plates: dict[str, Path]) -> Project:
    """Finished atlas of the three plates: read only."""
    return made_once(shared / "built", CONFIG, plates)


# With few plates each variable gene is a consensus gene. Without a map the atlas ends with the
# components.
EACH = CONFIG | {"consensus": {"min_plates": 1}, "map": {"cells": "sample"}}


@pytest.fixture(scope="session")
def one(shared: Path, plates: dict[str, Path]) -> Project:
    """Atlas of the first plate, without UMAP and report: read only."""
    return made_once(shared / "one", EACH, {"p1": plates["p1"]}, "atlas")


@pytest.fixture(scope="session")
def two(shared: Path, plates: dict[str, Path]) -> Project:
    """Atlas of the first two plates, without UMAP and report: read only."""
    return made_once(shared / "two", EACH, {name: plates[name] for name in ("p1", "p2")}, "atlas")


@pytest.fixture
def warm_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """``scatlas check``, called as a function, starts its Snakemake warm."""
    monkeypatch.setattr(sys, "executable", warm.python())


def made_once(folder: Path, config: dict, plates: dict[str, Path], *targets: str) -> Project:
    """Project that one worker builds and all workers use."""
    with once(folder.with_name(f"{folder.name}.done")) as first:
        new = Project(folder, dict(config))
        if first:
            new.write_plates(plates)
            new.build(*targets)
    return new
