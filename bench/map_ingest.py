"""Projection of new cells on a map of others: ``sa.tl.ingest`` beside ``sc.tl.ingest``.

Both sides map the group and the UMAP coordinates of the same new cells onto the same reference,
each in a fresh process: X of N_GENES genes, stored dense. scatlas reads it by blocks while it
projects, scanpy before. Accuracy is the share of new cells with the simulated group.

Simulated groups lie apart, and scanpy's approximate search (pynndescent, started from the graph of
the reference) then finds cells of other groups, whoever has computed the reference's neighbours.
Its accuracy and trustworthiness here are lower than on groups that touch. Its time is that of its
usual work. `tests/parity/test_ingest_vs_scanpy.py` compares both sides where both are exact.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import anndata as ad
import map_cells as cells
import numpy as np
import pandas as pd
from run_side import ROOT, Run, run_side

import scatlas as sa

N_GENES = 100


def lines(n_reference: int, sizes: list[int], scanpy_up_to: int) -> list[str]:
    """Lines of the table: scatlas with each number of new cells, scanpy with the largest."""
    table = [
        f"\n## projection on {n_reference:,} cells, a fresh process each; "
        f"trustworthiness of {min(cells.N_TRUSTED, *sizes):,} new cells among themselves",
        f"{'new cells':>12}  {'side':<9}{'seconds':>9}{'CPU':>9}{'us per cell':>13}{'faster':>8}"
        f"{'peak GB':>9}{'start GB':>10}{'accuracy':>10}{'trust':>8}",
    ]
    genes = np.random.default_rng(2).normal(size=(cells.N_COMPS, N_GENES))
    genes = np.linalg.qr(genes.T)[0].T.astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference = _plate(n_reference, genes, seed=1)
        sa.pp.pca(reference, n_comps=cells.N_COMPS)
        sa.pp.neighbors(reference)  # with use_rep scanpy would take X for the new cells
        sa.tl.umap(reference)
        reference.write_h5ad(folder / "reference.h5ad")
        _plate(1000, genes, seed=3).write_zarr(folder / "1000.zarr")  # kernels compile on these
        for n_cells in sorted({*sizes, min(sizes[-1], scanpy_up_to)}):
            _plate(n_cells, genes, seed=2).write_zarr(folder / f"{n_cells}.zarr")
        ours = {n: _run("scatlas", folder, n) for n in sizes}
        n_scanpy = min(sizes[-1], scanpy_up_to)
        theirs = _run("scanpy", folder, n_scanpy)
        # Extrapolated if scanpy had fewer cells.
        scanpy = theirs.seconds["ingest"] / n_scanpy
        for n, run in ours.items():
            table.append(_row("scatlas", folder, n, run, scanpy))
        table.append(_row("scanpy", folder, n_scanpy, theirs, scanpy))
        if n_scanpy < sizes[-1]:
            table.append(
                f"scanpy had {n_scanpy:,} cells; linear extrapolation to {sizes[-1]:,}: "
                f"{scanpy * sizes[-1]:.0f} s"
            )
    return table


def _plate(n_cells: int, genes: np.ndarray, seed: int) -> ad.AnnData:
    label = cells.random_labels(n_cells, seed)
    adata = ad.AnnData(cells.simulate(label, seed) @ genes)
    adata.obs["group"] = pd.Categorical.from_codes(label, [str(i) for i in range(cells.N_GROUPS)])
    return adata


def _run(side: str, folder: Path, n_cells: int) -> Run:
    command = [sys.executable, ROOT / "bench/sides/map_ingest.py", side, folder, n_cells]
    return run_side([*map(str, command)], Path(tempfile.gettempdir(), f"map-{side}.log"))


def _row(side: str, folder: Path, n_cells: int, run: Run, scanpy: float) -> str:
    found = np.load(folder / f"{side}-{n_cells}.npz")
    truth = ad.read_zarr(folder / f"{n_cells}.zarr")
    accuracy = np.mean(found["labels"] == truth.obs["group"].to_numpy().astype(str))
    trust = cells.trust(truth.X, found["layout"])
    wall, cpu = run.seconds["ingest"], run.seconds["ingest, CPU"]
    return (
        f"{n_cells:>12,}  {side:<9}{wall:>9.1f}{cpu:>9.1f}{wall / n_cells * 1e6:>13.1f}"
        f"{scanpy * n_cells / wall:>7.1f}x{run.peak / 1e9:>9.2f}"
        f"{run.seconds['memory before'] / 1e9:>10.2f}{accuracy:>10.4f}{trust:>8.4f}"
    )
