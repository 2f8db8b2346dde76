"""Neighbours and UMAP of scatlas by number of cells, each in a fresh process, and a model of more.

The model has measured costs alone. CPU seconds per cell: for neighbours ``a + b * sqrt(n)``, as a
cell is compared with ``2.5 * sqrt(n)`` centres and with some lists of ``sqrt(n) / 2.5`` cells; for
UMAP ``a + b * log2(n)``, as the rounds are the same and misses of the caches grow. Both are fitted
to all sizes. The serial share ``s`` is that of the main thread, which waits while others work, at
the largest size: ``c`` CPU seconds take ``c * (s + (1 - s) / t)`` seconds on ``t`` threads. Peaks
per cell are those between the two largest sizes. Not in the model: memory bandwidth that cores
share, and threads that wait for the last one of a round.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from run_side import ROOT, Run, run_side
from scipy.optimize import nnls

STEPS = {"neighbours": np.sqrt, "UMAP": np.log2}
MODEL_CELLS, MODEL_CORES = (11_400_000, 95_600_000), 16


def lines(sizes: list[int]) -> list[str]:
    """Lines of the table and of the model."""
    n_threads = len(os.sched_getaffinity(0))
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        for n_cells in sizes:
            side = [sys.executable, ROOT / "bench/sides/map_steps.py", n_cells]
            runs[n_cells] = run_side([*map(str, side)], Path(folder, "log.txt"))
    table = [
        f"\n## scatlas by number of cells, {n_threads} threads, a fresh process each",
        f"{'cells':>12}{'neighbours':>12}{'UMAP':>9}{'both':>9}{'CPU':>9}{'us per cell':>13}"
        f"{'peak GB':>9}{'recall':>8}",
    ]
    for n_cells, run in runs.items():
        walls = [run.seconds[step] for step in STEPS]
        cpu = sum(run.seconds[f"{step}, CPU"] for step in STEPS)
        table.append(
            f"{n_cells:>12,}{walls[0]:>12.1f}{walls[1]:>9.1f}{sum(walls):>9.1f}{cpu:>9.1f}"
            f"{cpu / n_cells * 1e6:>13.1f}{run.peak / 1e9:>9.2f}{run.seconds['recall']:>8.4f}"
        )
    return table + (_model(runs) if len(runs) > 1 else [])


def _model(runs: dict[int, Run]) -> list[str]:
    sizes = np.array(sorted(runs))
    table = [
        f"model of {MODEL_CORES} cores, from these rows alone: see bench/map_sizes.py",
        f"{'cells':>12}{'neighbours':>12}{'UMAP':>9}{'both':>9}{'CPU':>9}{'minutes':>13}"
        f"{'peak GB':>9}",
    ]
    peaks = [runs[n].peak for n in sizes[-2:]]
    bytes_per_cell = (peaks[1] - peaks[0]) / (sizes[-1] - sizes[-2])
    last = runs[sizes[-1]].seconds
    serial = {step: last[f"{step}, main thread"] / last[f"{step}, CPU"] for step in STEPS}
    for n_cells in MODEL_CELLS:
        walls, cpus = [], []
        for step, growth in STEPS.items():
            cost = [runs[n].seconds[f"{step}, CPU"] / n for n in sizes]
            (a, b), _ = nnls(np.column_stack([np.ones(sizes.size), growth(sizes)]), cost)
            cpus.append((a + b * growth(n_cells)) * n_cells)
            walls.append(cpus[-1] * (serial[step] + (1 - serial[step]) / MODEL_CORES))
        peak = peaks[1] + bytes_per_cell * (n_cells - sizes[-1])
        table.append(
            f"{n_cells:>12,}{walls[0]:>12.0f}{walls[1]:>9.0f}{sum(walls):>9.0f}{sum(cpus):>9.0f}"
            f"{sum(walls) / 60:>13.1f}{peak / 1e9:>9.0f}"
        )
    shares = ", ".join(f"{step} {share:.1%}" for step, share in serial.items())
    return [*table, f"serial share of the CPU seconds: {shares}"]
