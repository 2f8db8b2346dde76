"""Server that imports the libraries once and forks a process for each job of one Snakemake, for the
reasons of :mod:`scatlas.workflow.fork_client`; it ends after the last of them.
"""

from __future__ import annotations

import atexit
import gc
import marshal
import multiprocessing
import os
import runpy
import socket
import struct
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas.compute.threads import blas_on_one_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkProcess

# A run that begins with one of these steps, such as names of clusters, has none of the plates' that
# `warm_up` runs: it waits for the imports alone, 3.1 of 4.7 processor s.
_LATE_STEPS = {"labels", "embedding", "atlas", "cell_groups", "markers", "report", "explore"}


def main() -> None:
    """Serve at the socket, for a Snakemake whose first job is the script of the arguments."""
    number, snakemake_pid, script = sys.argv[1:]
    with socket.socket(fileno=int(number)) as listener:
        if Path(script).stem in _LATE_STEPS:
            runpy.run_path(script)  # its imports
        else:
            warm_up(Path(script).parent)
        listener.listen(128)  # until now clients are refused, or wait on few cores
        serve(listener, int(snakemake_pid), run_script)


def warm_up(scripts: Path) -> None:
    """Run the steps of a plate on a few simulated cells, to import what they import while they run
    and load the kernels: half of the processor time of a step on some thousand cells.
    """
    from scipy.sparse import csr_matrix

    from scatlas.datasets import simulate_plate
    from scatlas.io.zarr_writer import sharded_array

    def run(name: str, *options: object) -> None:
        step = ["--plate", "none", "--manifest", folder / f"{name}.json", "--threads", 2, *options]
        main = runpy.run_path(str(scripts / f"{name}.py"))["main"]
        main([str(option) for option in [*step, "--block-budget", "1MB"]])

    plate = simulate_plate(1, n_cells=100, n_genes=1_100)
    # Several blocks of many chunks, as of larger plates, once with counts of two bytes.
    usual, sharded_array.CHUNK_VALUES = sharded_array.CHUNK_VALUES, 2**10
    with tempfile.TemporaryDirectory(prefix="scatlas-") as temporary:
        for highest in (2**16 - 1, 2**8 - 1):
            plate.X = csr_matrix(plate.X.toarray().clip(max=highest))  # int32
            folder = Path(temporary, str(highest))
            folder.mkdir()
            source, qc, sizes, genes = (folder / name for name in ("h5ad", "qc", "sizes", "tsv"))
            plate.write_h5ad(source, compression="gzip")
            genes.write_text("\n".join(["gene", *plate.var_names[:20], ""]))
            store = ("--store", folder / "counts.zarr")
            run("load", "--source", source, *store)
            run("qc_filter", *store, "--table", qc, "--summary", folder / "qc.json")
            run("normalize", "--qc", qc, "--table", sizes)
            run("by_gene", *store, "--qc", qc, "--by-gene", folder / "by_gene")
            counts = (*store, "--size-factors", sizes, "--backend", "cpu")
            config = ("--config", '{"hvg": {"n_top_genes": 20}}')
            run("hvg", *counts, *config, "--table", folder / "hvg.parquet")
            selected = ("--selected", folder / "selected", "--gram", folder / "gram")
            run("select_genes", *counts, "--genes", genes, *selected)
    sharded_array.CHUNK_VALUES = usual


def serve(
    listener: socket.socket, snakemake_pid: int, run: Callable[[dict[str, Any]], None]
) -> None:
    """Fork a process, which calls ``run`` with the request, for each client of a listening socket,
    until Snakemake has ended and no client is left.
    """
    gc.collect()
    gc.freeze()  # a collection would copy the pages of all imported objects into each process
    forked = multiprocessing.get_context("fork")
    jobs: dict[socket.socket, ForkProcess] = {}
    while jobs or _runs(snakemake_pid):
        ends = {process.sentinel: client for client, process in jobs.items()}
        for ready in wait([listener, *jobs, *ends], timeout=1):
            if ready is listener:
                client = listener.accept()[0]
                try:
                    files, request = _read(client)
                except (ValueError, EOFError, struct.error):  # killed during its request
                    client.close()
                    continue
                process = forked.Process(
                    target=_run, args=(run, request, files, [listener, client, *jobs])
                )
                blas_on_one_thread()  # its libraries, so that jobs need not find them, in 4 ms
                process.start()
                with suppress(OSError):
                    client.sendall(b"+")  # from now on the client must not run the script itself
                jobs[client] = process
                for file in files:
                    os.close(file)
            elif ready in ends:
                client = ends[ready]
                process = jobs.pop(client)
                process.join()
                code = process.exitcode or 0
                with suppress(OSError), client:
                    client.sendall(bytes([code if code >= 0 else 128 - code]))
            elif ready in jobs:  # the client was killed
                jobs[ready].kill()
                jobs[ready].join()


def _runs(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def _read(client: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """The open files and the request of a client, which must be of the same user."""
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise ValueError(f"user {user} is refused")
    head, files, *_ = socket.recv_fds(client, 8, 3)
    with client.makefile("rb") as stream:
        request = stream.read(*struct.unpack("!Q", head))
        return files, marshal.loads(request)  # noqa: S302  (of the same user)


def _run(
    run: Callable[[dict[str, Any]], None],
    request: dict[str, Any],
    files: list[int],
    sockets: list[socket.socket],
) -> None:
    """Make this forked process that of the client, and run its command."""
    for inherited in sockets:
        inherited.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (as long as the process)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    try:
        run(request)
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not need it
        sys.stdout.flush()
        sys.stderr.flush()


def run_script(_: dict[str, Any]) -> None:
    """Run a script like ``python script.py``."""
    # The server runs with -P: its first entry is one of PYTHONPATH, in an installed package the
    # folder of all libraries.
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
