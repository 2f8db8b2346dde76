"""Benchmark of the peak memory of every out-of-core function, on a plate that stays on disk.

    python bench/memory.py FOLDER                       # a plate of 200,000 cells

Each function runs in a separate process: on the first cells to load libraries and compile kernels,
then, after a reset of the peak memory of the process, on all cells. Its peak above the memory
before the call, without its result, is compared with its bound: the block budget and the additional
memory of docs/memory.md, or 40% of the free memory for some functions. Ends with an error if a
function exceeds its bound. `bench/scaling.py` measures the rules.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import runner
import scipy.sparse as sp
from anndata import AnnData
from workflow_run import make_plates

import scatlas as sa
from scatlas import blocks
from scatlas._util.numbers import parse_bytes
from scatlas.compute.memory import available_memory

# Functions that keep values of many cells, up to this share of the free memory.
SHARE_OF_MEMORY = 0.4
KEEPING = (
    "tl.rank_genes_groups, wilcoxon",
    "tl.rank_genes_groups, logreg",
    "get.aggregate, median",
)
# Functions that sum the Gram matrix of 2,000 genes: four matrices with errors and results.
GRAMS = ("pp.pca", "pp.pca, scaled", "pp.scrublet")
GRAM_BYTES = 4 * 8 * 2000**2
# Neighbours of 60,000 cells and simulated doublets; tables per cell.
SCRUBLET_BYTES, CELL_BYTES = 5e8, 400
# Bytes per gene: 15 numbers of sums and tests for each of 50 cell lines.
RANKED_BYTES = 15 * 8 * 50
# Genes of functions with a lazy dense result: a pass over all genes would take minutes.
GENES = 2000
FIRST = 3000
GROUPS = "cell_line"


def consume(adata: AnnData) -> None:
    """Compute a lazy X block by block, as a writer does."""
    for _ in blocks.stream(adata.X):
        pass


def logarithms(adata: AnnData, n_genes: int | None = None) -> AnnData:
    sa.pp.normalize_total(adata, target_sum=1e4)
    sa.pp.log1p(adata)
    return adata if n_genes is None else adata[:, :n_genes].copy()


def hvg(flavor: str) -> Callable[[AnnData], Any]:
    def call(adata: AnnData) -> None:
        options: dict[str, Any] = {"batch_key": "sublibrary"}
        if flavor in {"seurat", "cell_ranger"}:
            logarithms(adata)
        elif flavor == "seurat_v3":
            options = {"min_cells": 200}  # loess needs genes in more than a few of the first cells
        sa.pp.highly_variable_genes(adata, flavor=flavor, n_top_genes=2000, **options)

    return call


def ranked(method: str) -> Callable[[AnnData], Any]:
    def call(adata: AnnData) -> AnnData:
        options = {"max_iter": 10} if method == "logreg" else {}
        adata = logarithms(adata, GENES if method == "logreg" else None)
        sa.tl.rank_genes_groups(adata, GROUPS, method=method, **options)
        return adata

    return call


def qc(adata: AnnData) -> None:
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], inplace=True)


def scaled(adata: AnnData) -> AnnData:
    adata = logarithms(adata, GENES)
    sa.pp.scale(adata, max_value=10)
    return adata


def regressed(adata: AnnData) -> None:
    adata.obs["total"] = np.arange(adata.n_obs, dtype=float)
    adata = logarithms(adata, GENES)
    sa.pp.regress_out(adata, "total")
    consume(adata)


def cycle(adata: AnnData) -> None:
    names = adata.var_names[::500]
    sa.tl.score_genes_cell_cycle(logarithms(adata), s_genes=names[::2], g2m_genes=names[1::2])


def then_consume(change: Callable[[AnnData], Any]) -> Callable[[AnnData], None]:
    """Call a function, then make a pass over its lazy X."""

    def call(adata: AnnData) -> None:
        consume(change(adata) or adata)

    return call


SUMS = ["sum", "mean", "var", "count_nonzero"]
FUNCTIONS: dict[str, Callable[[AnnData], Any]] = {
    "pp.calculate_qc_metrics": qc,
    "pp.filter_cells": then_consume(lambda adata: sa.pp.filter_cells(adata, min_genes=500)),
    "pp.filter_genes": then_consume(lambda adata: sa.pp.filter_genes(adata, min_cells=3)),
    "pp.normalize_total": then_consume(sa.pp.normalize_total),
    "pp.log1p": then_consume(logarithms),
    "pp.highly_variable_genes, seurat": hvg("seurat"),
    "pp.highly_variable_genes, cell_ranger": hvg("cell_ranger"),
    "pp.highly_variable_genes, seurat_v3": hvg("seurat_v3"),
    "pp.highly_variable_genes, pearson_residuals": hvg("pearson_residuals"),
    "pp.regress_out": regressed,
    "pp.scale": then_consume(scaled),
    "pp.pca": lambda adata: sa.pp.pca(logarithms(adata, GENES), n_comps=50),
    "pp.pca, scaled": lambda adata: sa.pp.pca(scaled(adata), n_comps=50),
    "pp.downsample_counts": then_consume(
        lambda adata: sa.pp.downsample_counts(adata, counts_per_cell=1000)
    ),
    "pp.sample": then_consume(lambda adata: sa.pp.sample(adata, 0.1)),
    "pp.scrublet": lambda adata: sa.pp.scrublet(adata, n_top_genes=2000),
    "tl.score_genes": lambda adata: sa.tl.score_genes(logarithms(adata), adata.var_names[::500]),
    "tl.score_genes_cell_cycle": cycle,
    "tl.rank_genes_groups, t-test": ranked("t-test"),
    "tl.rank_genes_groups, wilcoxon": ranked("wilcoxon"),
    "tl.rank_genes_groups, logreg": ranked("logreg"),
    "get.aggregate": lambda adata: sa.get.aggregate(adata, [GROUPS, "sublibrary"], SUMS),
    "get.aggregate, median": lambda adata: sa.get.aggregate(adata, GROUPS, "median"),
}


def n_bytes(value: Any) -> int:
    """Bytes of a result, or of all arrays of an AnnData except lazy ones."""
    if isinstance(value, AnnData):
        parts = (value.X, *value.layers.values(), value.obs, value.var, *value.obsm.values())
        return sum(map(n_bytes, (*parts, *value.varm.values(), dict(value.uns))))
    if isinstance(value, dict):
        return sum(map(n_bytes, value.values()))
    if isinstance(value, pd.DataFrame):
        return int(value.memory_usage(deep=True).sum())
    if sp.issparse(value):
        return value.data.nbytes + value.indices.nbytes + value.indptr.nbytes
    return value.nbytes if isinstance(value, np.ndarray) else 0


def resident(line: str) -> int:
    """``VmRSS`` or ``VmHWM`` of this process in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(rf"^{line}:\s+(\d+) kB$", status, re.MULTILINE)[1])


def measure(name: str, plate: Path, budget: str) -> dict[str, float]:
    """Seconds, and bytes at the start, at the peak, of the result, and that were free."""
    function = FUNCTIONS[name]
    function(sa.read_lazy(plate, block_budget=budget)[:FIRST].copy())
    adata = sa.read_lazy(plate, block_budget=budget)
    before = n_bytes(adata)
    # Return free memory to the system; otherwise blocks would reuse memory of the first cells.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to the resident memory
    start, left, begin = resident("VmRSS"), available_memory(), time.perf_counter()
    result = function(adata)
    seconds = time.perf_counter() - begin
    made = max(0, n_bytes(adata) - before)
    if result is not None and result is not adata:
        made += n_bytes(result)
    facts = {"start": start, "peak": resident("VmHWM"), "result": made, "left": left}
    return {"seconds": seconds, **facts}


def main() -> None:
    parser = runner.parser(__doc__, folder="for the plate", cells=200_000, genes=62_710)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--only", nargs="+", choices=FUNCTIONS, default=[*FUNCTIONS])
    parser.add_argument("--here", choices=FUNCTIONS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    (plate,) = make_plates(args.folder / f"cells{args.cells}", 1, args.cells, args.genes)
    if args.here:
        print(json.dumps(measure(args.here, plate, args.budget)))
        return
    lines = [
        *runner.head("anndata", "dask", "numba", "numpy", "zarr"),
        f"# a plate of {args.cells:,} cells; MB; start: libraries, tables, compiled kernels",
        f"{'function':<46}{'s':>7}{'start':>8}{'peak':>8}{'result':>8}{'working':>9}{'bound':>8}",
    ]
    over = []
    for name in args.only:
        command = [sys.executable, *sys.argv, "--here", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        work = found["peak"] - found["start"] - found["result"]
        bound = parse_bytes(args.budget) + GRAM_BYTES * (name in GRAMS)
        if name == "pp.scrublet":
            bound += SCRUBLET_BYTES + CELL_BYTES * args.cells
        elif name == "tl.rank_genes_groups, t-test":
            bound += RANKED_BYTES * args.genes
        elif name == "get.aggregate":
            bound += found["result"]  # its sums are as large as the result
        if name in KEEPING:
            bound = SHARE_OF_MEMORY * found["left"]
        sizes = (found["start"], found["peak"], found["result"], work, bound)
        columns = "".join(
            f"{size / 1e6:>{w}.0f}" for size, w in zip(sizes, (8, 8, 8, 9, 8), strict=True)
        )
        lines.append(f"{name:<46}{found['seconds']:>7.1f}{columns}")
        print(lines[-1], file=sys.stderr, flush=True)
        if work > bound:
            over.append(name)
    runner.publish(lines, args.out)
    if over:
        sys.exit(f"above the bound: {'; '.join(over)}")


if __name__ == "__main__":
    main()
