"""Three small plates, and the command of the wheel, installed in a new folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scatlas.datasets import simulate_plate, write_plate

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the installed command ``scatlas``, which imports nothing of this checkout."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-compile", "--target", str(target), str(wheel))
    # Compiling the kernels takes 15 seconds; those of the checkout are the same.
    package = ROOT / "src/scatlas"
    for path in package.rglob("__pycache__/*.nb*"):
        copy = target / "scatlas" / path.relative_to(package)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
    environment = os.environ | {"PYTHONPATH": str(target), "COLUMNS": "200"}

    def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(target / "bin/scatlas"), *words],
            cwd=folder, env=environment, text=True, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return run


def pip(*words: str) -> None:
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", words[0], *options, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def small_plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three plates of 200 cells x 500 genes."""
    folder = tmp_path_factory.mktemp("runs")
    for number in (1, 2, 3):
        write_plate(folder / f"p{number}.h5ad", simulate_plate(number, n_cells=200, n_genes=500))
    return folder
