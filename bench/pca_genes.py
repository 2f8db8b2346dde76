"""PCA of cells in memory with any number of genes, against scanpy: time and memory.

    python bench/pca_genes.py --rounds 3

Each call runs in a fresh process: it simulates log-normalised counts (a few kinds of cells, a share
of the genes of 2 to 30%), compiles on a small matrix, and then runs ``pp.pca`` once with the
defaults and 50 components. Sides take turns; times are the best of the rounds. Memory is the peak
of the process above that before the call. The components are compared with those of a float64
eigen-decomposition where that takes less than a minute: scanpy's are float32.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import runner

SHAPES = [
    *((300, 300), (60_000, 300), (3000, 2000), (20_000, 2000), (60_000, 2000)),
    *((3000, 4000), (20_000, 4000), (60_000, 4000), (20_000, 6000), (3000, 20_000)),
    *((300, 30_000), (3000, 30_000), (20_000, 30_000)),
]
N_COMPS = 50
EXACT_UP_TO = 4000  # genes, or cells
SIDES = ("scatlas", "scanpy")


def main() -> None:
    parser = runner.parser(__doc__, rounds=3)
    parser.add_argument("--shapes", nargs="*", help="CELLSxGENES; all by default")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = [tuple(map(int, shape.split("x"))) for shape in args.shapes or ()] or SHAPES
    if args.side:
        run(args.side, *shapes[0])
        return
    lines = [
        *runner.head("scanpy", "scikit-learn", "scipy", "numpy", "numba"),
        f"{'cells':>7}{'genes':>7}{'values':>12}{'scatlas':>10}{'scanpy':>9}{'ratio':>7}"
        f"{'MB':>8}{'scanpy':>8}{'angle':>9}{'scanpy':>9}",
    ]
    slower = []
    for shape in shapes:
        found: dict[str, list[dict]] = {side: [] for side in SIDES}
        for _ in range(args.rounds):
            for side in SIDES:
                found[side].append(measure(side, shape))
        best = {side: min(result["seconds"] for result in found[side]) for side in SIDES}
        peak = {side: max(result["bytes"] for result in found[side]) / 1e6 for side in SIDES}
        angle = {side: found[side][0]["angle"] for side in SIDES}
        ratio = best["scanpy"] / best["scatlas"]
        lines.append(
            f"{shape[0]:>7}{shape[1]:>7}{found['scanpy'][0]['values']:>12,}"
            f"{best['scatlas']:>8.2f} s{best['scanpy']:>7.2f} s{ratio:>7.1f}"
            f"{peak['scatlas']:>8.0f}{peak['scanpy']:>8.0f}"
            + "".join(f"{angle[side]:>9.0e}" if angle[side] >= 0 else f"{'-':>9}" for side in SIDES)
        )
        print(lines[-1], flush=True)
        if ratio < 1:
            slower.append(shape)
    runner.publish(lines, args.out)
    if slower:
        sys.exit(f"slower than scanpy: {slower}")


def measure(side: str, shape: tuple[int, int]) -> dict:
    """Run one side in a fresh process."""
    command = [sys.executable, __file__, "--side", side, "--shapes", f"{shape[0]}x{shape[1]}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def simulate(n_cells: int, n_genes: int):
    """CSR float32, logarithms of counts of 20 kinds of cells."""
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    kinds = rng.gamma(0.2, 1, (20, n_genes)) * np.exp(rng.normal(-3.5, 1.5, n_genes))
    parts = []
    for start in range(0, n_cells, 5000):
        weights = rng.gamma(0.3, 1, (min(5000, n_cells - start), 20))
        parts.append(sp.csr_matrix(np.log1p(rng.poisson(weights @ kinds)).astype(np.float32)))
    return sp.vstack(parts, "csr")


def run(side: str, n_cells: int, n_genes: int) -> None:
    """Print seconds, bytes and the largest angle to the exact components as JSON."""
    import anndata as ad

    if side == "scanpy":
        import scanpy as library
    else:
        import scatlas as library
    adata = ad.AnnData(simulate(n_cells, n_genes))
    # The same way with fewer cells compiles it.
    few = ad.AnnData(simulate(min(n_cells, 300), n_genes))
    library.pp.pca(few, 10, mask_var=None)
    del few
    process = psutil.Process()
    with runner.sampled(lambda: process.memory_info().rss, 0.005) as memory:
        start = time.perf_counter()
        library.pp.pca(adata, min(N_COMPS, min(adata.shape) - 1), mask_var=None)
        seconds = time.perf_counter() - start
    result = {
        "seconds": seconds,
        "bytes": max(memory) - memory[0],
        "values": int(adata.X.nnz),
        "angle": angle(adata),
    }
    print(json.dumps(result))


def angle(adata) -> float:
    """Largest sine between a component and the exact one; -1 where that would take too long."""
    n_cells, n_genes = adata.shape
    PCs = adata.varm["PCs"].astype(np.float64)
    if min(n_cells, n_genes) > EXACT_UP_TO or n_cells * n_genes > 2.5e8:
        return -1.0
    x = adata.X.toarray().astype(np.float64)
    x -= x.mean(axis=0)
    if n_cells < n_genes:
        _, vectors = np.linalg.eigh(x @ x.T)
        exact = np.linalg.qr(x.T @ vectors[:, ::-1][:, : PCs.shape[1]])[0]
    else:
        exact = np.linalg.eigh(x.T @ x)[1][:, ::-1][:, : PCs.shape[1]]
    PCs /= np.linalg.norm(PCs, axis=0)
    outside = PCs - exact * (exact * PCs).sum(axis=0)
    return float(np.linalg.norm(outside, axis=0).max())


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
