"""Server that imports the libraries once and forks processes for the jobs of one Snakemake, for the
reasons of :mod:`scatlas.workflow.fork_client`; it ends after the last of them.

A process goes on with the next step of a small plate: a third of such a job's processor time would
be the system's, for the fork and for pages that the new process writes first. A step that fails, or
took much memory or a GPU, ends its process.
"""

from __future__ import annotations

import atexit
import gc
import logging
import marshal
import multiprocessing
import os
import runpy
import socket
import struct
import sys
import tempfile
import warnings
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scatlas._util.operating_system import peak_memory, reset_usage
from scatlas.compute.memory import release_memory
from scatlas.compute.threads import blas_on_one_thread
from scatlas.workflow.fork_client import send_request

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import ForkProcess

# A run that begins with one of these steps, such as names of clusters, has none of the plates' that
# `warm_up` runs: it waits for the imports alone, 3.1 of 4.7 processor s.
_LATE_STEPS = {"labels", "embedding", "atlas", "cell_groups", "markers", "report", "explore"}

_PLATE_STEPS = {"load", "qc_filter", "normalize", "hvg", "select_genes", "by_gene"}
# A process that has held more bytes would keep them while it waits.
_SMALL = 2**29


class _Worker(NamedTuple):
    """A forked process, and the server's end of the socket to it."""

    process: ForkProcess
    link: socket.socket


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
    """Let a forked process call ``run`` with the request, for each client of a listening socket,
    until Snakemake has ended and no client is left.
    """
    gc.collect()
    gc.freeze()  # a collection would copy the pages of all imported objects into each process
    jobs: dict[socket.socket, _Worker] = {}
    ready: Any
    idle: list[_Worker] = []
    while jobs or _runs(snakemake_pid):
        links = {worker.link: client for client, worker in jobs.items()}
        for ready in wait([listener, *jobs, *links], timeout=1):
            if ready is listener:
                client = listener.accept()[0]
                try:
                    files, request = _read(client)
                except (ValueError, EOFError, struct.error):  # killed during its request
                    client.close()
                    continue
                worker = _hand_over(idle, files, request)
                if worker is None:
                    others = [worker.link for worker in [*jobs.values(), *idle]]
                    worker = _fork(run, files, request, [listener, client, *jobs, *others])
                with suppress(OSError):
                    client.sendall(b"+")  # from now on the client must not run the script itself
                jobs[client] = worker
                for file in files:
                    os.close(file)
            elif ready in links and links[ready] in jobs:
                client = links[ready]
                worker = jobs.pop(client)
                if _goes_on(worker):
                    idle.append(worker)
                with suppress(OSError), client:
                    code = worker.process.exitcode or 0
                    client.sendall(bytes([code if code >= 0 else 128 - code]))
            elif ready in jobs:  # the client was killed
                worker = jobs.pop(ready)
                worker.process.kill()
                worker.process.join()
                worker.link.close()
                ready.close()
    for worker in idle:
        worker.link.close()


def _hand_over(idle: list[_Worker], files: list[int], request: dict[str, Any]) -> _Worker | None:
    """Give a step of a plate to a process that waits, if there is one. Before another step these
    end: it may need their memory.
    """
    while idle:
        worker = idle.pop()
        if _is_of_plate(request):
            with suppress(OSError):  # it was killed
                send_request(worker.link, files, request)
                return worker
        worker.link.close()
    return None


def _fork(
    run: Callable[[dict[str, Any]], None],
    files: list[int],
    request: dict[str, Any],
    sockets: list[socket.socket],
) -> _Worker:
    ours, its = socket.socketpair()
    args = (run, files, request, its, [*sockets, ours])
    process = multiprocessing.get_context("fork").Process(target=_work, args=args)
    blas_on_one_thread()  # its libraries, so that jobs need not find them, in 4 ms
    process.start()
    its.close()
    return _Worker(process, ours)


def _goes_on(worker: _Worker) -> bool:
    """Whether a process waits for its next job; else wait until it has ended."""
    with suppress(OSError):
        if worker.link.recv(1):
            return True
    worker.process.join()
    worker.link.close()
    return False


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


def _work(
    run: Callable[[dict[str, Any]], None],
    files: list[int],
    request: dict[str, Any],
    link: socket.socket,
    sockets: list[socket.socket],
) -> None:
    """Make this forked process that of a client, run its command, and perhaps the next one's."""
    for inherited in sockets:
        inherited.close()
    try:
        while True:
            _use_files(files)
            os.chdir(request["folder"])
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.argv = request["argv"]
            with warnings.catch_warnings():  # a job gives its warnings, though others gave them
                run(request)
            logging.captureWarnings(capture=False)
            if not _is_of_plate(request) or "cupy" in sys.modules or peak_memory() > _SMALL:
                return
            _use_files(3 * [os.open(os.devnull, os.O_RDWR)])  # closes the log
            gc.collect()  # the next job freezes what it finds
            release_memory()
            try:
                link.sendall(b"+")
                files, request = _read(link)
            except (OSError, EOFError, struct.error):  # there is no other job, or no server
                return
            reset_usage()
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not need it


def _use_files(files: list[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in set(files):
        os.close(file)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (as long as the process)


def _is_of_plate(request: dict[str, Any]) -> bool:
    return Path(request["argv"][0]).stem in _PLATE_STEPS


def run_script(_: dict[str, Any]) -> None:
    """Run a script like ``python script.py``."""
    # The server runs with -P: its first entry is one of PYTHONPATH, in an installed package the
    # folder of all libraries.
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
