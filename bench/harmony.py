"""Seconds and memory of Harmony: scatlas beside harmonypy, and scatlas by the number of cells.

    python bench/harmony.py --cells 250000 --rounds 3
    python bench/harmony.py --cells 250000 1000000 2000000 --sides files
    python bench/harmony.py --cells 11400000 95600000 --sides gpu

The components are simulated: 50, of 30 types in 14 batches, which are moved, the cells of a batch
after those of another. Each run is a fresh process, sides in turn; imports, compilation and the
simulation are not in the seconds, but the memory is that of the whole process. ``scatlas`` and
``harmonypy`` have float32 components in memory; with ``files`` components and result are in files,
as in the step ``harmony``. Both end by their own, equal, criterion. With ``gpu`` the seconds are of
the whole step: from the store of the components to that of the result; MB are of the GPU.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import runner

from scatlas._util.operating_system import n_available_cores, peak_memory
from scatlas.io.products.embeddings import component_blocks, write_embedding
from scatlas.matrix.harmony import mix_rows
from scatlas.matrix.harmony_rows import scratch_rows

N_TYPES, N_BATCHES, N_COMPS, AT_ONCE = 30, 14, 50, 50_000
SIDES = ("scatlas", "harmonypy", "files", "gpu")
STAGES = ("reading", "mixing")


class Simulated:
    """Components of cells, made when they are read; their variance falls from one to the next."""

    def __init__(self, batch: np.ndarray, xp: Any = np) -> None:
        self.shape = batch.size, N_COMPS
        self.batch, self.xp = batch, xp
        rng = np.random.default_rng(0)
        falls = np.exp(-np.arange(N_COMPS) / 12)
        self.types = xp.asarray(rng.normal(0, 4, (N_TYPES, N_COMPS)) * falls, np.float32)
        self.shifts = xp.asarray(rng.normal(0, 1, (N_BATCHES, N_COMPS)) * falls, np.float32)
        self.widths = xp.asarray(np.sqrt(falls), np.float32)

    def __getitem__(self, rows: slice) -> Any:
        own, rng = self.xp.asarray(self.batch[rows]), self.xp.random.default_rng(rows.start)
        x = self.types[rng.integers(0, N_TYPES, own.size)] + self.shifts[own]
        return x + rng.standard_normal(x.shape, dtype=np.float32) * self.widths


def mix_on_gpu(batch: np.ndarray, labels: dict[str, pd.Categorical]) -> dict[str, float]:
    """As :func:`mix`, from a store on the disk to another."""
    import cupy as cp

    from scatlas.arrays.cupy_arrays import free_memory, on_gpu

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_embedding(folder / "pca.zarr", "X_pca", Simulated(batch, cp))
        free_memory()
        start, cpu = time.perf_counter(), time.process_time()
        x, moved = (cp.empty((batch.size, N_COMPS), np.float32) for _ in range(2))
        for first, block in component_blocks(folder / "pca.zarr"):
            x[first : first + len(block)] = on_gpu(block)
        read = time.perf_counter()
        mixed = mix_rows(x, moved, labels)
        done = time.perf_counter()
        write_embedding(folder / "harmony.zarr", "X_pca_harmony", moved)
        return {
            "seconds": time.perf_counter() - start,
            "cpu": time.process_time() - cpu,
            "mb": cp.get_default_memory_pool().total_bytes() / 1e6,
            "rounds": len(mixed.objectives) - 1,
            "reading": read - start,
            "mixing": done - read,
        }


def mix(side: str, n_cells: int) -> dict[str, float]:
    """Seconds, seconds of processors, MB of memory and number of rounds."""
    batch = np.arange(n_cells) * N_BATCHES // n_cells
    labels = {"batch": pd.Categorical.from_codes(batch, [f"b{i:02d}" for i in range(N_BATCHES)])}
    if side == "gpu":
        return mix_on_gpu(batch, labels)
    with ExitStack() as stack:
        if side == "files":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            x, moved = (
                stack.enter_context(scratch_rows(n_cells, N_COMPS, folder)) for _ in range(2)
            )
        else:
            x, moved = (np.empty((n_cells, N_COMPS), np.float32) for _ in range(2))
        cells = Simulated(batch)
        for first in range(0, n_cells, AT_ONCE):
            x[first : first + AT_ONCE] = cells[slice(first, first + AT_ONCE)]
        start, cpu = time.perf_counter(), time.process_time()
        if side == "harmonypy":
            from harmonypy import run_harmony

            cores = n_available_cores()
            done = run_harmony(x, pd.DataFrame(labels), ["batch"], verbose=False, ncores=cores)
            n_rounds = len(done.objective_harmony) - 1
        else:
            n_rounds = len(mix_rows(x, moved, labels).objectives) - 1
        return {
            "seconds": time.perf_counter() - start,
            "cpu": time.process_time() - cpu,
            "mb": peak_memory() / 1e6,
            "rounds": n_rounds,
        }


def in_new_process(side: str, n_cells: int) -> dict[str, float]:
    """:func:`mix` in a process that has compiled."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(mix, side, 2000).result()
        return pool.submit(mix, side, n_cells).result()


def main() -> None:
    parser = runner.parser(__doc__, rounds=1)
    parser.add_argument("--cells", type=int, nargs="+", default=[250_000])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["scatlas", "harmonypy"])
    args = parser.parse_args()
    lines = runner.head(*(["harmonypy"] if "harmonypy" in args.sides else []), "numpy", "numba")
    lines.append(f"{'cells':>10} {'side':>10} {'seconds':>8} {'CPU s':>7} {'MB':>7} {'rounds':>7}")
    for n_cells in args.cells:
        runs: dict[str, list[dict[str, float]]] = {side: [] for side in args.sides}
        for _ in range(args.rounds):
            for side in args.sides:
                runs[side].append(in_new_process(side, n_cells))
        for side, taken in runs.items():
            row = {key: statistics.median(run[key] for run in taken) for key in taken[0]}
            lines.append(
                f"{n_cells:>10,} {side:>10} {row['seconds']:>8.1f} {row['cpu']:>7.1f} "
                f"{row['mb']:>7.0f} {row['rounds']:>7.0f}"
                + "".join(
                    f", {key} {row[key]:.1f} s" for key in ("reading", "mixing") if key in row
                )
            )
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
