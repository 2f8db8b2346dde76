"""Every function that scanpy has too, in memory: seconds of both, and their ratio.

    python bench/functions.py --out bench/results/functions-DATE.txt      # all; about 40 minutes
    python bench/functions.py --quick                              # all but the largest shape
    python bench/functions.py --shapes 60000x20000 --only log1p "hvg *"

Both sides run in one process, in turn, each time on a fresh copy of the same simulated data, until
they took `--rounds` turns and a second after the first turn, which may compile; times are the best
of up to 30 turns. Small shapes come first, so that compiling is over when large ones are timed.
Slow functions get part of the data: highly variable genes, or the first cells. Ratios below 1 are
marked, and the exit status is 1 if there are any.
"""

from __future__ import annotations

import fnmatch
import gc
import os
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import runner
from make_plates import cells_of_kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from anndata import AnnData


class Shape(NamedTuple):
    """Data of one table."""

    n_cells: int
    n_genes: int
    n_groups: int
    n_batches: int
    format: str

    def __str__(self) -> str:
        return (
            f"{self.n_cells}x{self.n_genes} {self.format}, {self.n_groups} groups, "
            f"{self.n_batches} batches"
        )


SHAPES = [
    Shape(300, 2000, 2, 2, "dense"),
    Shape(300, 30_000, 3, 2, "csr"),
    Shape(3000, 8000, 6, 2, "csc"),
    Shape(3000, 20_000, 200, 200, "csr"),
    Shape(30_000, 300, 6, 2, "dense"),
    Shape(30_000, 2000, 6, 10, "csr"),
    Shape(10_000, 2000, 6, 10, "dense"),
    Shape(10_000, 2000, 200, 20, "csc"),
    Shape(10_000, 30_000, 20, 2, "csr"),
    Shape(60_000, 20_000, 6, 20, "csr"),
]
DEPTH = 3000  # counts per cell
MAX_TURNS = 30


class Function(NamedTuple):
    """A call, the data it gets, and the most cells and genes it gets."""

    data: str
    call: Callable[[Any, AnnData], Any]
    max_cells: int = 60_000
    max_genes: int = 30_000


def pearson(m: Any, a: AnnData) -> None:
    if m.__name__ == "scanpy":
        m.experimental.pp.highly_variable_genes(a, n_top_genes=200)
    else:
        m.pp.highly_variable_genes(a, flavor="pearson_residuals", n_top_genes=200)


def hvg(data: str, **options: Any) -> Function:
    return Function(
        data, lambda m, a: m.pp.highly_variable_genes(a, **{"n_top_genes": 200} | options)
    )


def rank(method: str, **limits: int) -> Function:
    return Function("logs", lambda m, a: m.tl.rank_genes_groups(a, "g", method=method), **limits)


FUNCTIONS = {
    "qc": Function(
        "counts",
        lambda m, a: m.pp.calculate_qc_metrics(a, qc_vars=["mt"], percent_top=None, inplace=True),
    ),
    "qc top": Function(
        "counts", lambda m, a: m.pp.calculate_qc_metrics(a, percent_top=[50, 200], inplace=True)
    ),
    # It removes some of the cells.
    "filter_cells": Function("counts", lambda m, a: m.pp.filter_cells(a, min_counts=DEPTH - 50)),
    "filter_genes": Function("counts", lambda m, a: m.pp.filter_genes(a, min_cells=3)),
    "downsample": Function("counts", lambda m, a: m.pp.downsample_counts(a, counts_per_cell=500)),
    "sample": Function("counts", lambda m, a: m.pp.sample(a, 0.5)),
    "normalize_total": Function("counts", lambda m, a: m.pp.normalize_total(a)),
    "normalize 1e4": Function("counts", lambda m, a: m.pp.normalize_total(a, target_sum=1e4)),
    "log1p of counts": Function("counts", lambda m, a: m.pp.log1p(a)),
    "log1p": Function("normalized", lambda m, a: m.pp.log1p(a)),
    "hvg seurat": hvg("logs"),
    "hvg seurat batch": hvg("logs", batch_key="batch"),
    "hvg seurat plates": hvg("logs", batch_key="plate"),
    "hvg cell_ranger": hvg("logs", flavor="cell_ranger"),
    "hvg cell_ranger batch": hvg("logs", flavor="cell_ranger", batch_key="batch"),
    "hvg v3": hvg("counts", flavor="seurat_v3"),
    "hvg v3 batch": hvg("counts", flavor="seurat_v3", batch_key="batch"),
    "hvg pearson": Function("counts", pearson, max_cells=10_000),
    "scale": Function("logs", lambda m, a: m.pp.scale(a, max_value=10), max_genes=2000),
    "scale sparse": Function("logs", lambda m, a: m.pp.scale(a, zero_center=False)),
    "regress_out": Function("logs", lambda m, a: m.pp.regress_out(a, ["n"]), max_genes=500),
    "regress_out 2": Function("logs", lambda m, a: m.pp.regress_out(a, ["n", "u"]), max_genes=500),
    "regress_out group": Function(
        "logs", lambda m, a: m.pp.regress_out(a, "batch"), max_cells=10_000, max_genes=100
    ),
    "pca": Function("logs", lambda m, a: m.pp.pca(a, n_comps=30), max_genes=2000),
    "neighbors": Function("pca", lambda m, a: m.pp.neighbors(a), max_genes=2000),
    "umap": Function("graph", lambda m, a: m.tl.umap(a), max_cells=10_000, max_genes=2000),
    "leiden": Function(
        "graph",
        lambda m, a: m.tl.leiden(a, flavor="igraph", n_iterations=2, directed=False),
        max_cells=10_000,
        max_genes=2000,
    ),
    # With a threshold, because scanpy finds none without scikit-image.
    "scrublet": Function(
        "counts", lambda m, a: m.pp.scrublet(a, threshold=0.25), max_cells=3000, max_genes=8000
    ),
    "score_genes": Function("logs", lambda m, a: m.tl.score_genes(a, list(a.var_names[:50]))),
    "cell_cycle": Function(
        "logs",
        lambda m, a: m.tl.score_genes_cell_cycle(
            a, s_genes=list(a.var_names[:40]), g2m_genes=list(a.var_names[40:90])
        ),
    ),
    "rank t-test": rank("t-test"),
    "rank wilcoxon": rank("wilcoxon", max_genes=8000),
    "rank logreg": rank("logreg", max_cells=20_000, max_genes=2000),
    "rank logreg all genes": rank("logreg", max_cells=3000),
    "aggregate": Function("logs", lambda m, a: m.get.aggregate(a, "plate", ["mean", "var"])),
    "aggregate 2": Function(
        "logs", lambda m, a: m.get.aggregate(a, ["g", "batch"], ["sum", "count_nonzero"])
    ),
    "aggregate median": Function(
        "logs", lambda m, a: m.get.aggregate(a, "g", "median"), max_cells=10_000, max_genes=2000
    ),
}


def main() -> None:
    parser = runner.parser(__doc__, rounds=2)
    parser.add_argument("--shapes", nargs="*", help="CELLSxGENES; all by default")
    parser.add_argument("--only", nargs="*", default=["*"], help="names of functions, with * and ?")
    parser.add_argument("--quick", action="store_true", help="all shapes but the largest")
    args = parser.parse_args()
    shapes = [
        shape
        for shape in SHAPES[: -1 if args.quick else None]
        if not args.shapes or f"{shape.n_cells}x{shape.n_genes}" in args.shapes
    ]
    lines = runner.head("scanpy", "anndata", "scikit-learn", "scipy", "numpy", "numba")
    print(*lines, sep="\n")
    ratios = []
    start = time.perf_counter()
    for shape in shapes:
        lines += ["", f"{shape!s:<48}{'scanpy':>10}{'scatlas':>10}{'ratio':>8}"]
        print(*lines[-2:], sep="\n", flush=True)
        data = Data(shape)
        for name, function in FUNCTIONS.items():
            if not any(fnmatch.fnmatch(name, pattern) for pattern in args.only):
                continue
            try:
                size, best = measure(function, data, args.rounds)
            except (ValueError, IndexError) as error:  # too few cells or genes for the function
                lines.append(f"  {name:<24}{error}")
                print(lines[-1], flush=True)
                continue
            ratio = best["scanpy"] / best["scatlas"]
            ratios.append(ratio)
            lines.append(
                f"  {name:<24}{size:<22}{best['scanpy']:>8.3f} s{best['scatlas']:>8.3f} s"
                f"{ratio:>8.2f}{'  <' if ratio < 1 else ''}"
            )
            print(lines[-1], flush=True)
    lines += [
        "",
        f"geometric mean of {len(ratios)} ratios {np.exp(np.mean(np.log(ratios))):.2f}, "
        f"{sum(ratio < 1 for ratio in ratios)} below 1, least {min(ratios):.2f}; "
        f"{(time.perf_counter() - start) / 60:.0f} minutes",
    ]
    print(*lines[-2:], sep="\n")
    if args.out:
        args.out.write_text("\n".join([*lines, ""]))
    sys.exit(int(min(ratios) < 1))


def measure(function: Function, data: Data, rounds: int) -> tuple[str, dict[str, float]]:
    """Size of the data, and the best seconds of each side."""
    import scanpy

    import scatlas

    part = data.part(function)
    best = {"scatlas": np.inf, "scanpy": np.inf}
    spent = 0.0
    for turn in range(MAX_TURNS):
        took = 0.0
        for library in (scatlas, scanpy):
            own = part.copy()
            gc.collect()
            start = time.perf_counter()
            function.call(library, own)
            seconds = time.perf_counter() - start
            best[library.__name__] = min(best[library.__name__], seconds)
            took += seconds
        spent += took if turn else 0.0
        if turn + 1 >= rounds and spent > 1:
            break
    return f"{part.n_obs}x{part.n_vars}", best


class Data:
    """Simulated data of a shape, made when first used."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._made: dict[str, AnnData] = {"counts": simulate(shape)}

    def part(self, function: Function) -> AnnData:
        """The data of a function, cut to its most cells and genes."""
        n_cells = min(self._shape.n_cells, function.max_cells)
        n_genes = min(self._shape.n_genes, function.max_genes)
        adata = self._get(function.data)
        if adata.shape == (n_cells, n_genes):
            return adata
        rank = self._get("logs").var["dispersions_norm"].rank(ascending=False, method="first")
        return adata[:n_cells, (rank <= n_genes).to_numpy()].copy()

    def _get(self, name: str) -> AnnData:
        import scanpy as sc

        if name not in self._made:
            if name == "logs":
                made = self._made["counts"].copy()
                sc.pp.normalize_total(made)
                sc.pp.log1p(made)
                sc.pp.highly_variable_genes(made)
            elif name == "normalized":
                made = self._made["counts"].copy()
                sc.pp.normalize_total(made)
            elif name == "pca":
                made = self.part(Function("logs", lambda *_: None, max_genes=2000)).copy()
                sc.pp.pca(made, n_comps=30)
            else:
                made = self.part(Function("pca", lambda *_: None, 10_000, 2000)).copy()
                sc.pp.neighbors(made)
            self._made[name] = made
        return self._made[name]


def simulate(shape: Shape) -> AnnData:
    """Counts, float32: each group draws the genes of its cells from its own distribution."""
    import anndata as ad
    import pandas as pd
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    n_cells, n_genes = shape.n_cells, shape.n_genes
    base = rng.gamma(0.3, 1.0, n_genes)
    kinds = np.cumsum(base * rng.lognormal(0, 1, (min(shape.n_groups, 20), n_genes)), axis=1)
    kinds /= kinds[:, -1:]
    group = np.arange(n_cells) % shape.n_groups
    parts = []
    for start in range(0, n_cells, 3000):
        cells = np.arange(start, min(start + 3000, n_cells))
        depth = rng.poisson(DEPTH, cells.size)
        parts.append(cells_of_kinds(rng, kinds, group[cells] % len(kinds), depth))
    counts = sp.vstack(parts, "csr")
    x = {"csr": counts.copy, "csc": counts.tocsc, "dense": counts.toarray}[shape.format]()
    batch = rng.integers(shape.n_batches, size=n_cells)
    obs = {
        "g": pd.Categorical(group.astype(str)),
        "batch": pd.Categorical(batch.astype(str)),
        "plate": pd.Categorical(np.sort(batch).astype(str)),  # one after the other
        "n": np.asarray(counts.sum(axis=1)).ravel(),
        "u": rng.random(n_cells),
    }
    return ad.AnnData(
        x,
        obs=pd.DataFrame(obs, index=[f"c{i}" for i in range(n_cells)]),
        var=pd.DataFrame(
            {"mt": np.arange(n_genes) % 50 == 0}, index=[f"G{j}" for j in range(n_genes)]
        ),
    )


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    warnings.filterwarnings("ignore")
    main()
