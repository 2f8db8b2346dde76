"""Three small plates, and the command of the wheel, installed in a new folder."""

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
def small_plates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of three plates of 200 cells x 500 genes."""
    folder = tmp_path_factory.mktemp("runs")
    for number in (1, 2, 3):
        write_plate(folder / f"p{number}.h5ad", simulate_plate(number, n_cells=200, n_genes=500))
    return folder
