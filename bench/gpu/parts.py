"""Seconds of clusters and UMAP on the GPU of cells whose graph has many parts.

    python bench/gpu/parts.py --cells 4000000 --parts 120 --out FILE

Draws parts of very unequal size on the GPU, then times `neighbors`, `leiden` in rounds, `umap`
and its start alone (one round), each as a function in this process; the second turn has all
kernels compiled. Digests of the results show whether another version (PYTHONPATH=OTHER/src) has
the same bits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata as ad
import cupy as cp
import numpy as np
import pandas as pd
import scipy.sparse as sp

import scatlas as sa
from scatlas.io.files.checksums import text_digest

sys.path.append(str(Path(__file__).parents[1]))

import runner

DIMENSIONS, INNER = 50, 8


def main() -> None:
    parser = runner.parser(__doc__, cells=4_000_000, parts=120)
    args = parser.parse_args()
    adata = ad.AnnData(
        sp.csr_matrix((args.cells, DIMENSIONS + 1), dtype=np.float32),
        pd.DataFrame(index=pd.RangeIndex(args.cells).astype(str)),
    )
    adata.obsm["X_pca"] = draw(args.cells, args.parts)
    lines = runner.head("numpy", "scipy", "anndata", "cupy-cuda13x")

    def timed(
        name: str, work: Callable[..., Any], result: Callable[[], Any], **options: Any
    ) -> None:
        start = time.perf_counter()
        work(adata, **options)
        cp.cuda.Device().synchronize()
        seconds = time.perf_counter() - start
        lines.append(f"{name:<14}{seconds:8.2f} s  {text_digest(result().tobytes())}")
        cp.get_default_memory_pool().free_all_blocks()

    timed("neighbors", sa.pp.neighbors, lambda: adata.obsp["connectivities"].data)
    lines.append(f"# {args.cells:,} cells, {adata.obsp['connectivities'].nnz:,} edges")
    for turn in (1, 2):
        lines.append(f"turn {turn}")
        rounds = {"flavor": "rounds", "n_iterations": 2, "directed": False}
        timed("leiden", sa.tl.leiden, lambda: adata.obs["leiden"].cat.codes.to_numpy(), **rounds)
        timed("umap", sa.tl.umap, lambda: adata.obsm["X_umap"])
        timed("umap's start", sa.tl.umap, lambda: adata.obsm["X_umap"], maxiter=1)
    runner.publish(lines, args.out)


def draw(n_cells: int, n_parts: int) -> cp.ndarray:
    """Cells of parts that lie apart, each in a few dimensions: float32 [n_cells, DIMENSIONS]."""
    rng = np.random.default_rng(0)
    weights = rng.random(n_parts) ** 2 + 0.02
    sizes = rng.multinomial(n_cells, weights / weights.sum())
    labels = cp.asarray(rng.permutation(np.repeat(np.arange(n_parts), sizes)))
    cp.random.seed(0)
    inner = cp.random.standard_normal((n_cells, INNER), dtype=cp.float32)
    centres = cp.random.standard_normal((n_parts, DIMENSIONS), dtype=cp.float32) * 90
    basis = cp.random.standard_normal((n_parts, INNER, DIMENSIONS), dtype=cp.float32)
    x = cp.empty((n_cells, DIMENSIONS), cp.float32)
    for part in range(n_parts):
        own = cp.flatnonzero(labels == part)
        x[own] = centres[part] + inner[own] @ basis[part]
    x += 0.3 * cp.random.standard_normal(x.shape, dtype=cp.float32)
    return x


if __name__ == "__main__":
    main()
