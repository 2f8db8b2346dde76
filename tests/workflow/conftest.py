"""A small atlas, built once for all tests of this folder that only look at it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scatlas.datasets import simulate_plate, write_plate
from tests.workflow.runs import Project

PLATES = ("p1", "p2", "p3")
CONFIG = {
    "plates": "plates.tsv",
    "hvg": {"n_top_genes": 150},
    "consensus": {"min_plates": 2},
    "pca": {"n_comps": 10},
    "subset": {"n_cells": 300},
    "compute": {"block_budget": "16MB"},
}


@pytest.fixture(scope="session")
def plates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three plates of 250 cells x 600 genes."""
    folder = tmp_path_factory.mktemp("plates")
    paths = {}
    for number, name in enumerate(PLATES, start=1):
        paths[name] = folder / f"{name}.h5ad"
        write_plate(paths[name], simulate_plate(number, n_cells=250, n_genes=600))
    return paths


@pytest.fixture
def project(tmp_path: Path, plates: dict[str, Path]) -> Project:
    """A new project on the three plates, not run yet."""
    new = Project(tmp_path / "project", dict(CONFIG))
    new.write_plates(plates)
    return new


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, plates: dict[str, Path]) -> Project:
    """The three plates' finished atlas: look, do not touch."""
    new = Project(tmp_path_factory.mktemp("built"), dict(CONFIG))
    new.write_plates(plates)
    new.build()
    return new
