"""A ``python`` whose libraries are imported before it starts.

A run of the workflow forks its jobs from a process that has imported the libraries
(:mod:`scatlas.workflow.fork_server`), but importing them, and Snakemake, takes seconds per run:
most of the time of these tests. Here one such server serves all runs of all workers, and forks
Snakemake, too.

The demo, the tests on Slurm, and the tests of memory, of killed jobs and of starting run as for a
user; with ``SCATLAS_COLD_TESTS`` all tests do.
"""

from __future__ import annotations

import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from uuid import uuid4
from zlib import crc32

from scatlas.workflow import fork_client, fork_server
from tests.helpers.once import once

ROOT = Path(__file__).parents[2]
# Imports of the scripts, and Snakemake with its plugins.
LIBRARIES = (
    *("anndata", "dask.array", "h5py", "hdf5plugin", "igraph"),
    *("matplotlib.backends.backend_agg", "matplotlib.figure"),
    *("numba", "numpy", "pandas", "pyarrow.dataset", "pyarrow.parquet", "scipy.sparse"),
    *("scipy.sparse.csgraph", "sklearn.neighbors", "zarr"),
    *("snakemake.cli", "snakemake.report.html_reporter", "snakemake_executor_plugin_slurm"),
    *("snakemake_storage_plugin_http", "snakemake_storage_plugin_s3"),
    "scatlas.workflow.config.loading",
)
_SERVERS: list[subprocess.Popen[bytes]] = []  # they outlive the worker that has started them
START = """#!/bin/sh
exec '{python}' -IS '{client}' "$0" "$@"
"""
CLIENT = """
import os, socket, sys
sys.path.insert(0, {package!r})
import fork_client
_, me, *command = sys.argv
if command[:1] == ["-IS"]:  # the workflow's own client: what it would run
    del command[:2]
if not command or not (command[0] == "-m" or command[0].endswith(".py")):
    os.execv({python!r}, [{python!r}, *command])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    sys.exit(fork_client.run_at(server, command, me=me))
"""


def environment(preload: str = "") -> dict[str, str]:
    """Environment of this process, with the warm ``python``."""
    if "SCATLAS_COLD_TESTS" in os.environ:
        return os.environ | ({"LD_PRELOAD": preload} if preload else {})
    return os.environ | {"PATH": os.pathsep.join([str(_folder(preload)), os.environ["PATH"]])}


def python(preload: str = "") -> str:
    """Path of the warm Python, which loads the shared library ``preload`` first."""
    if "SCATLAS_COLD_TESTS" in os.environ:
        return sys.executable
    return str(_folder(preload) / "python")


@cache
def _folder(preload: str) -> Path:
    """Folder of the client; its server runs as long as pytest, for all of its workers."""
    run, owner = os.environ.get("PYTEST_XDIST_TESTRUNUID"), os.getppid()
    if run is None:
        run, owner = uuid4().hex, os.getpid()
    name = f"scatlas-warm-{run[:16]}-{crc32(preload.encode())}"
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(exist_ok=True)
    with once(folder / "done") as first:
        if first:
            _start(folder, owner, preload)
    return folder


def _start(folder: Path, owner: int, preload: str) -> None:
    address = str(folder / "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.workflow.warm", address, str(owner)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | ({"LD_PRELOAD": preload} if preload else {}),
    )
    _SERVERS.append(server)
    assert server.stdout.readline() == b"ready\n", "the server of warm processes did not start"
    client, start = folder / "client.py", folder / "python"
    package = str(Path(fork_client.__file__).parent)
    client.write_text(CLIENT.format(package=package, python=sys.executable, address=address))
    start.write_text(START.format(python=sys.executable, client=client))
    start.chmod(0o755)


def serve(address: str, owner: int) -> None:
    """Fork a process per client, as long as the owner runs; then remove the socket's folder."""
    for name in LIBRARIES:
        import_module(name)
    import_module("snakemake.cli").get_argument_parser()  # finds the plugins
    fork_server.warm_up(ROOT / "scripts")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        fork_server.serve(door, owner, run)
    shutil.rmtree(Path(address).parent)


def run(request: dict[str, str]) -> None:
    """Run ``-m module ...`` or ``script.py ...`` like a Python with warm child processes."""
    sys.executable = request["me"]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path[0] = request["folder"]
        fork_client.start_server = lambda *_: None  # this one is there
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        fork_server.run_script(request)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
