"""Three small 10x runs, and the command of the wheel, installed in a new folder."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.datasets import simulate_plate

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as for a release."""
    folder = tmp_path_factory.mktemp("wheel")
    environment = os.environ | {"SCATLAS_DIST": str(folder), "PYTHON": sys.executable}
    command = [str(ROOT / ".ci/release"), "build"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len([*folder.glob("*.tar.gz")]) == 1
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
    environment = os.environ | {"PYTHONPATH": str(target)}
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):  # no screen
        environment.pop(name, None)

    def run(folder: Path, *words: str, terminal: bool = False) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(target / "bin/scatlas"), *words]
        if terminal:
            status, screen = on_terminal(command, folder, environment)
            return subprocess.CompletedProcess(command, status, screen)
        return subprocess.run(
            command, cwd=folder, env=environment, text=True, check=False, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return run


def on_terminal(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Run a command on a terminal of 40 rows; return its exit status and what the terminal got."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its
    )
    os.close(its)
    parts = []
    with os.fdopen(ours, "rb") as screen, suppress(OSError):  # Linux: EIO at the end
        while part := screen.read1():
            parts.append(part)
    return process.wait(), b"".join(parts).decode().replace("\r\n", "\n")


def pip(*words: str) -> None:
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    command = [sys.executable, "-m", "pip", words[0], *options, *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def runs_10x(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the outputs of three runs of Cell Ranger: 200 cells x 500 genes each."""
    folder = tmp_path_factory.mktemp("data")
    for number in (1, 2, 3):
        outs = folder / f"runs/p{number}/outs"
        outs.mkdir(parents=True)
        adata = simulate_plate(number, n_cells=200, n_genes=500)
        write_10x_h5(outs / "filtered_feature_bc_matrix.h5", adata)
    return folder


def write_10x_h5(path: Path, adata: ad.AnnData) -> None:
    """Write a matrix in the layout of Cell Ranger 3 and later: features x barcodes in CSC."""
    counts = sp.csr_matrix(adata.X).astype(np.int32)
    n_genes = adata.n_vars
    with h5py.File(path, "w") as file:
        matrix = file.create_group("matrix")
        parts = {
            "barcodes": np.array([f"{name}-1" for name in adata.obs_names], "S"),
            "data": counts.data,
            "indices": counts.indices.astype(np.int64),
            "indptr": counts.indptr.astype(np.int64),
            "shape": np.array(counts.shape[::-1], np.int32),
            "features/id": np.array([f"ENSG{i:011}" for i in range(n_genes)], "S"),
            "features/name": np.array(adata.var_names, "S"),
            "features/feature_type": np.array(["Gene Expression"] * n_genes, "S"),
            "features/genome": np.array(["GRCh38"] * n_genes, "S"),
        }
        for name, values in parts.items():
            matrix.create_dataset(name, data=values, compression="gzip", shuffle=True)
        matrix["features/_all_tag_keys"] = np.array(["genome"], "S")
        file.attrs["filetype"] = "matrix"
