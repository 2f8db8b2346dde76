"""A ``python`` whose libraries are imported before it starts.

A run of the workflow starts a process per job, and each takes seconds to import the same libraries:
most of the time of these tests. Here a server imports them once and forks a process for each
``python script.py ...`` or ``python -m module ...``, with the arguments, folder, environment and
files of the client. The client waits for the end of this process, and a killed client ends it.

The demo, the tests on Slurm, and the tests of memory, of killed jobs and of starting use an
ordinary Python; with ``SCATLAS_COLD_TESTS`` all tests do.
"""

from __future__ import annotations

import atexit
import gc
import json
import multiprocessing
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

# Imports of the scripts, and Snakemake with its plugins.
LIBRARIES = (
    *("anndata", "dask.array", "docutils.core", "docutils.writers.html5_polyglot", "h5py"),
    *("harmonypy", "hdf5plugin", "igraph", "matplotlib.backends.backend_agg", "matplotlib.figure"),
    *("numba", "numpy", "pandas", "pyarrow.dataset", "pyarrow.parquet", "scipy.sparse"),
    *("scipy.sparse.csgraph", "sklearn.neighbors", "zarr"),
    *("snakemake.cli", "snakemake.report.html_reporter", "snakemake_executor_plugin_slurm"),
    *("snakemake_storage_plugin_http", "snakemake_storage_plugin_s3"),
)
START = """#!/bin/sh
exec '{python}' -IS '{client}' "$0" "$@"
"""
CLIENT = """
import json, os, socket, sys
_, me, *command = sys.argv
if not command or not (command[0] == "-m" or command[0].endswith(".py")):
    os.execv({python!r}, [{python!r}, *command])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = {{"me": me, "argv": command, "folder": os.getcwd(), "environment": dict(os.environ)}}
    text = json.dumps(asked).encode()
    socket.send_fds(server, [len(text).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(text)
    answer = server.recv(1)
sys.exit(answer[0] if answer else "the server of warm processes is gone")
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
    """Folder of the client; its server runs as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="scatlas-warm-"))
    address = str(folder / "socket")
    server = subprocess.Popen(
        [sys.executable, __file__, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | ({"LD_PRELOAD": preload} if preload else {}),
    )
    assert server.stdout.readline() == b"ready\n", "the server of warm processes did not start"
    client, start = folder / "client.py", folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    start.write_text(START.format(python=sys.executable, client=client))
    start.chmod(0o755)

    @atexit.register
    def end() -> None:
        server.kill()
        server.wait()
        shutil.rmtree(folder)

    return folder


def serve(address: str) -> None:
    """Fork a process per client, until standard input is closed."""
    for name in LIBRARIES:
        import_module(name)
    gc.collect()
    gc.freeze()  # a garbage collection would copy the pages of all objects into each process
    forked = multiprocessing.get_context("fork")
    running: dict[socket.socket, BaseProcess] = {}
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(address)
        door.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ends = {process.sentinel: client for client, process in running.items()}
            for ready in wait([door, sys.stdin, *running, *ends]):
                if ready is sys.stdin:
                    return
                if ready is door:
                    client = door.accept()[0]
                    try:
                        files, asked = _read(client)
                    except ValueError:  # the client ended during its request
                        client.close()
                        continue
                    process = forked.Process(target=_become, args=(files, asked))
                    process.start()
                    running[client] = process
                    for file in files:
                        os.close(file)
                elif ready in ends:
                    client = ends[ready]
                    process = running.pop(client)
                    process.join()
                    code = process.exitcode
                    with suppress(OSError), client:
                        client.sendall(bytes([code if code >= 0 else 128 - code]))
                elif ready in running:  # the client ended
                    running[ready].kill()
                    running[ready].join()


def _read(client: socket.socket) -> tuple[list[int], dict]:
    head, files, *_ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as asked:
        return files, json.loads(asked.read(int.from_bytes(head, "big")))


def _become(files: list[int], asked: dict) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (as long as the process)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    # Its child processes are warm, too.
    sys.executable, sys.argv = asked["me"], asked["argv"]
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            sys.path[0] = asked["folder"]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not need it
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
