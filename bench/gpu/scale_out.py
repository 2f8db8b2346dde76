"""Benchmark of millions of cells on several GPUs: the workflow's scripts in separate processes.

    python bench/gpu/scale_out.py FOLDER --plates 10 --cells 1140000            # 11.4M cells
    python bench/gpu/scale_out.py FOLDER --plates 4 --cells 500000 --gpus 1 2 4

Makes one plate after another (gzip h5ad in Tahoe's layout, by make_plates.py), loads it and removes
its source; removes the counts of a plate after the selection of the consensus genes. So the disk
needs about 2.9 GB per million cells for counts, and later as much for merged cells and components.
With several numbers of GPUs the sources are made first and kept.

Each GPU has one job at a time, with --threads cores. The input of a job is dropped from the page
cache first, so GB/s are those of the disk, whose limit is measured separately (O_DIRECT, 8
threads). The seconds of a step are those of its processes, with the start of Python; its wall time
is that of the busiest GPU. Making plates does not count.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import statistics
import sys
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[1]))

import runner
from chain import Chain, Job
from runner import ROOT, files_of, run_process, size_of

if TYPE_CHECKING:
    from collections.abc import Callable

# Folder with the counts that a step reads, in the folder of the plate or atlas.
_READS = {
    "hvg": "counts.zarr/X",
    "select_genes": "counts.zarr/X",
    "pca": "merged.zarr/X",
}


_PIECE = 2**24


def cold(path: Path) -> None:
    """Drop a file or all files in a folder from the page cache."""
    for name in files_of(path):
        file = os.open(name, os.O_RDONLY)
        os.fsync(file)  # unwritten pages would stay
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def disk_speed(folder: Path, n_bytes: int = 2**32, threads: int = 8) -> tuple[float, float]:
    """GB/s of writing and reading a file in the folder without the page cache (O_DIRECT)."""
    path = folder / "disk_speed.tmp"
    n_pieces = max(threads, n_bytes // _PIECE)
    page = mmap.mmap(-1, _PIECE)  # aligned, as O_DIRECT requires
    page.write(os.urandom(_PIECE))

    def timed(flags: int, work: str) -> float:
        file = os.open(path, flags | os.O_DIRECT, 0o600)

        def some(first: int) -> None:
            buffer = page if work == "write" else mmap.mmap(-1, _PIECE)
            for piece in range(first, n_pieces, threads):
                if work == "write":
                    os.pwrite(file, buffer, piece * _PIECE)
                else:
                    os.preadv(file, [buffer], piece * _PIECE)

        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, range(threads)))
        os.fsync(file)
        os.close(file)
        return n_pieces * _PIECE / (time.perf_counter() - begin) / 1e9

    try:
        written = timed(os.O_RDWR | os.O_CREAT | os.O_TRUNC, "write")
        return written, timed(os.O_RDONLY, "read")
    finally:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class FinishedJob:
    """Measurements of a finished job."""

    step: str
    gpu: int
    seconds: float
    read: int
    host: int
    taken: int
    in_use: int


class Fleet:
    """GPUs, each with one job at a time."""

    def __init__(self, chain: Chain, n_gpus: int, *, warm: bool) -> None:
        self._chain, self._warm = chain, warm
        self.done: list[FinishedJob] = []
        self.n_gpus = n_gpus
        self._free: SimpleQueue[int] = SimpleQueue()
        for gpu in range(n_gpus):
            self._free.put(gpu)

    def each(self, plates: list[str], work: Callable[[str, int], None]) -> None:
        """Call ``work(plate, gpu)`` for every plate, on the next free GPU."""

        def run_on_free_gpu(plate: str) -> None:
            gpu = self._free.get()
            try:
                work(plate, gpu)
            finally:
                self._free.put(gpu)

        with ThreadPoolExecutor(self.n_gpus) as pool:
            list(pool.map(run_on_free_gpu, plates))

    def run(self, job: Job, gpu: int = 0, source: Path | None = None) -> None:
        """Run a script on a GPU."""
        folder = self._chain.at(job.plate, "") if job.plate else self._chain.out
        reads = source or (folder / _READS[job.step] if job.step in _READS else None)
        if reads and not self._warm:
            cold(reads)
        name = f"{job.step}_{job.plate or 'atlas'}"
        run = run_process(
            [sys.executable, ROOT / f"scripts/{job.step}.py", *job.argv],
            self._chain.out / f"logs/{name}.log",
            gpus=[gpu],
            CUDA_VISIBLE_DEVICES=str(gpu),
        )
        manifest = Path(job.argv[job.argv.index("--manifest") + 1])
        record = json.loads((manifest.parent / "runs" / manifest.name).read_text())
        in_use = record.get("gpu", {}).get("peak_memory_bytes", 0)
        read = size_of(reads) if reads else 0
        finished = FinishedJob(job.step, gpu, run.wall, read, run.host, run.gpu, in_use)
        self.done.append(finished)
        print(f"{name}: {run.wall:.1f} s", flush=True)


def make(source: Path, plate: int, gpu: int, args: Namespace) -> None:
    """Make a plate in another process, unless it exists."""
    if source.exists():
        return
    size = ["--cells", args.cells, "--genes", args.genes, "--threads", args.threads]
    make = [sys.executable, ROOT / "bench/make_plates.py", source.parent, "--gpu", "--first", plate]
    run_process([*make, *size], source.with_suffix(".log"), CUDA_VISIBLE_DEVICES=str(gpu))
    print(f"{source.name} made", flush=True)


def run_all(n_gpus: int, args: Namespace, *, keep: bool) -> tuple[Fleet, int]:
    """Run all steps on ``n_gpus`` GPUs; return the jobs and the number of values."""
    out = args.folder / f"results_{n_gpus}"
    shutil.rmtree(out, ignore_errors=True)
    plates = [f"plate{i}" for i in range(1, args.plates + 1)]
    chain = Chain(
        out,
        args.backend,
        args.threads,
        args.budget,
        n_top_genes=args.top,
        min_plates=min(3, args.plates),
        n_comps=args.comps,
    )
    fleet = Fleet(chain, n_gpus, warm=args.warm)

    def load(plate: str, gpu: int) -> None:
        source = args.folder / f"{plate}.h5ad"
        make(source, plates.index(plate) + 1, gpu, args)
        fleet.run(chain.load(plate, source), gpu, source)
        if not keep:
            source.unlink()

    def genes(plate: str, gpu: int) -> None:
        for job in chain.genes(plate):
            fleet.run(job, gpu)

    def select(plate: str, gpu: int) -> None:
        fleet.run(chain.select(plate), gpu)
        shutil.rmtree(chain.at(plate, "counts.zarr"))

    fleet.each(plates, load)
    fleet.each(plates, genes)
    fleet.run(chain.consensus(plates))
    fleet.each(plates, select)
    fleet.run(chain.concat(plates))
    for plate in plates:
        shutil.rmtree(chain.at(plate, "selected.zarr"))
    fleet.run(chain.pca(plates))
    loads = [json.loads((out / f"manifests/load/{plate}.json").read_text()) for plate in plates]
    return fleet, sum(load["n_values"] for load in loads)


def table(fleet: Fleet, values: int, disk: float) -> list[str]:
    """Table with one line per step."""
    lines = [
        f"{'step':<16}{'jobs':>5}{'sum s':>8}{'wall s':>8}{'Mval/s':>8}{'GB read':>9}{'GB/s':>6}"
        f"{'of disk':>8}{'host GB':>8}{'GPU GB':>8}{'in use':>8}"
    ]
    whole = 0.0
    for step in dict.fromkeys(job.step for job in fleet.done):
        jobs = [job for job in fleet.done if job.step == step]
        wall = max(
            sum(job.seconds for job in jobs if job.gpu == gpu) for gpu in range(fleet.n_gpus)
        )
        whole += wall
        read = sum(job.read for job in jobs) / 1e9
        lines.append(
            f"{step:<16}{len(jobs):>5}{sum(job.seconds for job in jobs):>8.1f}{wall:>8.1f}"
            f"{values / wall / 1e6:>8.0f}"
            + (f"{read:>9.2f}{read / wall:>6.2f}{read / wall / disk:>8.0%}" if read else " " * 23)
            + f"{max(job.host for job in jobs) / 1e9:>8.2f}"
            f"{max(job.taken for job in jobs) / 1e9:>8.1f}"
            f"{max(job.in_use for job in jobs) / 1e9:>8.1f}"
        )
    spread = statistics.mean(job.seconds for job in fleet.done if job.step == "normalize")
    lines.append(
        f"all steps on {fleet.n_gpus} GPU(s): {whole:.1f} s, {values / whole / 1e6:.0f} M values/s "
        f"(normalize, a process with hardly any work, takes {spread:.1f} s)"
    )
    return lines


def main() -> None:
    sizes = {"plates": 10, "cells": 500_000, "genes": 62_710, "top": 2304, "comps": 300}
    parser = runner.parser(__doc__, folder="for plates and results", **sizes)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1])
    parser.add_argument("--backend", default="gpu", choices=["gpu", "cpu"])
    parser.add_argument("--threads", type=int, default=16, help="threads per job")
    parser.add_argument("--budget", default="256MB", help="block budget per job")
    parser.add_argument("--warm", action="store_true", help="do not change the page cache")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write, read = disk_speed(args.folder)
    lines = runner.head("numpy", "anndata", "zarr", "h5py", "dask", "numba")
    cache = "as the previous step left it" if args.warm else "without the inputs"
    lines.append(f"# disk: {read:.1f} GB/s read, {write:.1f} GB/s written; page cache: {cache}")
    lines.append(f"# {args.plates} plates x {args.cells:,} cells x {args.genes:,} genes")
    several = len(args.gpus) > 1
    if several:
        makers = Fleet(None, max(args.gpus), warm=args.warm)

        def make_numbered(number: str, gpu: int) -> None:
            make(args.folder / f"plate{number}.h5ad", int(number), gpu, args)

        makers.each([str(i) for i in range(1, args.plates + 1)], make_numbered)
    for n_gpus in args.gpus:
        fleet, values = run_all(n_gpus, args, keep=several)
        lines += [f"\n## {n_gpus} GPU(s), {values / 1e9:.2f}e9 values", *table(fleet, values, read)]
        print("\n".join(lines), flush=True)
        if several:
            shutil.rmtree(args.folder / f"results_{n_gpus}")
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
