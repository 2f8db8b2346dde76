"""Benchmark of the types of cells, beside celltypist if a Python that has it is given.

    python bench/annotate.py --celltypist PYTHON --plates shared/data/mixology --out FILE
    python bench/annotate.py --parts memory --sizes 500000 4000000
    python bench/annotate.py --parts speed --celltypist PYTHON --cells 200000

accuracy
    Macro-F1 of the best type, unknown cells among them, on donors that the training lacks: eight
    simulated types far apart, eight in three lineages, and each real plate by the other four. Both
    sides learn from the same cells, with their defaults. Of the real plates, whose genotypes tell
    the lines, cells with two genotypes (obs['demuxlet_call'] other than SNG: doublets, or droplets
    with foreign RNA) have no one true line: F1 is given without and with them.
lacking
    Each simulated type, and each line of a real plate, is left out of the training in turn: the
    shares of its cells, and of those of the other types, that are unknown (doublets left out).
memory
    Peak resident memory and CPU seconds of `annotate_values`, which `tl.annotate` calls (an
    AnnData's names of cells take more), each size in a fresh process: 20,000 genes, 100 types,
    3,000 genes in the model, blocks of one plate again and again.
speed
    CPU seconds to label the same log-normalised cells in memory by the same CellTypist model, and
    how near the probabilities are.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import runner
import scipy.sparse as sp
from sklearn.metrics import f1_score

import scatlas as sa
from scatlas import blocks
from scatlas.io.products.annotators import Annotator
from scatlas.io.products.celltypist_models import convert_celltypist
from scatlas.matrix.annotate import annotate_values

SIDE = Path(__file__).parent / "sides" / "celltypist_labels.py"
N_TYPES, N_GENES, N_TRAINING, N_QUERY = 8, 800, 1200, 2000
BLOCK, N_VALUES, LARGE_GENES, LARGE_TYPES, MODEL_GENES = 5000, 1000, 20_000, 100, 3000
LINEAGES = {"far apart": 0, "three lineages": 3}


def donor(lineages: int, seed: int, n_cells: int, types: list[int]) -> ad.AnnData:
    """Counts of some types; half of the genes differ by donor, 8% of the cells are shallow."""
    of_study, own = np.random.default_rng(lineages), np.random.default_rng(seed)
    shape = N_TYPES, N_GENES
    rates = of_study.gamma(0.3, 1.0, N_GENES)
    changes = of_study.normal(0, 1, shape) * (of_study.random(shape) < 0.15)
    if lineages:
        changes = changes[np.arange(N_TYPES) % lineages]
        changes = changes + of_study.normal(0, 1, shape) * (of_study.random(shape) < 0.05)
    of_donor = np.where(own.random(N_GENES) < 0.5, own.normal(0, 0.25, N_GENES), 0)
    label = own.choice(types, n_cells)
    means = rates * np.exp(changes[label] + of_donor + own.normal(0, 0.1, (n_cells, N_GENES)))
    depth = np.exp(own.normal(np.log(3000), 0.5, n_cells))
    depth[own.random(n_cells) < 0.08] *= 0.15
    counts = own.poisson(means * (depth / means.sum(axis=1))[:, None]).astype(np.float32)
    obs = pd.DataFrame({"label": [f"t{i}" for i in label], "donor": f"d{seed}"})
    obs.index = [f"d{seed}c{i}" for i in range(n_cells)]
    var = pd.DataFrame(index=[f"g{i}" for i in range(N_GENES)])
    return ad.AnnData(sp.csr_matrix(counts), obs=obs, var=var)


def study(lineages: int, types: list[int]) -> ad.AnnData:
    return ad.concat([donor(lineages, 100 + seed, N_TRAINING, types) for seed in range(3)])


def logged(adata: ad.AnnData) -> ad.AnnData:
    adata = adata.copy()
    sa.pp.normalize_total(adata, target_sum=1e4)
    sa.pp.log1p(adata)
    return adata


def celltypist(python: str, training: ad.AnnData | None, query: ad.AnnData, folder: Path) -> dict:
    """Its labels, probabilities and CPU seconds; both have log-normalised values."""
    files = [folder / name for name in ("training.h5ad", "query.h5ad", "out.npz", "model.pkl")]
    if training is not None:
        files[3].unlink(missing_ok=True)
        training.write_h5ad(files[0])
    query.write_h5ad(files[1])
    subprocess.run([python, "-W", "ignore", SIDE, *files], check=True)
    return dict(np.load(files[2]))


def simulated(left: int | None = None) -> dict[str, tuple[ad.AnnData, ad.AnnData]]:
    """Cells to learn from, without one type, and cells to name."""
    types = list(range(N_TYPES))
    return {
        name: (
            study(lineages, [i for i in types if i != left]),
            donor(lineages, 200, N_QUERY, types),
        )
        for name, lineages in LINEAGES.items()
    }


def real(folder: Path | None) -> dict[str, tuple[ad.AnnData, ad.AnnData]]:
    """Each plate as the cells to name, the others to learn from."""
    plates = {}
    for path in sorted(folder.glob("*.h5ad")) if folder else []:
        plates[path.stem] = adata = ad.read_h5ad(path)
        adata.obs["label"], adata.obs["donor"] = adata.obs["cell_line"].astype(str), path.stem
        adata.obs_names = path.stem + adata.obs_names
        adata.X = sp.csr_matrix(adata.X, dtype=np.float32)
    return {
        name: (ad.concat([p for other, p in plates.items() if other != name]), adata)
        for name, adata in plates.items()
    }


def singlets(query: ad.AnnData) -> np.ndarray:
    if "demuxlet_call" not in query.obs:
        return np.ones(query.n_obs, bool)
    return (query.obs["demuxlet_call"] == "SNG").to_numpy()


def percent(values: np.ndarray) -> str:
    return f"{values.mean():.1%}" if values.size else "-"


def accuracy(args: argparse.Namespace, folder: Path) -> list[str]:
    sides = f"{'scatlas':>8s} {'celltypist':>10s} {'unknown':>8s}"
    lines = [
        f"{'':16s} {'single cells':^28s} {'with the doublets':^28s} {'doublets':^15s}",
        f"{'query':16s} {sides} {sides} {'cells':>6s} {'unknown':>8s} {'CPU':>6s}",
    ]
    for name, (training, query) in (simulated() | real(args.plates)).items():
        before = time.process_time()
        model = sa.tl.train_annotator(training, "label", groups="donor")
        seconds = time.process_time() - before
        found = annotate_values(query.X, query.var_names, model)
        truth, single = query.obs["label"].to_numpy("U"), singlets(query)
        labels, unknown = model.labels[found.best].astype(str), found.codes < 0
        others = None
        if args.celltypist:
            out = celltypist(args.celltypist, logged(training), logged(query), folder)
            others = out["labels"]
        line = f"{name:16s}"
        for of in (single, np.ones_like(single)):
            mine = f1_score(truth[of], labels[of], average="macro")
            theirs = np.nan if others is None else f1_score(truth[of], others[of], average="macro")
            line += f" {mine:8.4f} {theirs:10.4f} {percent(unknown[of]):>8s}"
        doublets = f"{np.count_nonzero(~single):6d} {percent(unknown[~single]):>8s}"
        lines.append(f"{line} {doublets} {seconds:6.1f}")
    return lines


def without_a_type(plates: Path | None) -> Iterator[tuple[str, str, ad.AnnData, ad.AnnData]]:
    for left in range(N_TYPES):
        for name, (training, query) in simulated(left).items():
            yield name, f"t{left}", training, query
    for name, (training, query) in real(plates).items():
        for line in sorted(set(query.obs["label"])):
            yield name, line, training[training.obs["label"] != line].copy(), query


def lacking(args: argparse.Namespace, folder: Path) -> list[str]:
    lines = [f"{'query':16s} {'lacking':8s} {'unknown of it':>13s} {'of others':>9s}"]
    for name, left, training, query in without_a_type(args.plates):
        model = sa.tl.train_annotator(training, "label", groups="donor")
        unknown = annotate_values(query.X, query.var_names, model).codes < 0
        own, single = (query.obs["label"] == left).to_numpy(), singlets(query)
        shares = f"{percent(unknown[own & single]):>13s} {percent(unknown[~own & single]):>9s}"
        lines.append(f"{name:16s} {left:8s} {shares}")
    return lines


def large_model() -> Annotator:
    rng = np.random.default_rng(0)
    genes = np.sort(rng.choice(LARGE_GENES, MODEL_GENES, replace=False))
    return Annotator(
        np.array([f"t{i}" for i in range(LARGE_TYPES)]),
        np.array([f"g{i}" for i in genes], dtype=object),
        rng.normal(size=(LARGE_TYPES, MODEL_GENES)) / 10,
        rng.normal(size=LARGE_TYPES),
        rng.random(MODEL_GENES),
        rng.random(MODEL_GENES) + 0.5,
    )


def large_cells(n_cells: int) -> tuple[da.Array, pd.Index]:
    """Blocks of one plate again and again, each computed when it is read."""
    rng, step = np.random.default_rng(1), LARGE_GENES // N_VALUES
    shape, values = (BLOCK, LARGE_GENES), (BLOCK, N_VALUES)
    genes = np.arange(N_VALUES, dtype=np.int32) * step + rng.integers(0, step, values, np.int32)
    counts = rng.geometric(0.4, values).astype(np.float32)
    starts = np.arange(BLOCK + 1, dtype=np.int32) * N_VALUES
    block = sp.csr_matrix((counts.ravel(), genes.ravel(), starts), shape=shape)
    one = da.from_array(block, chunks=shape, asarray=False)
    x = da.concatenate([one.map_blocks(lambda b: b.copy()) for _ in range(n_cells // BLOCK)])
    return x, pd.Index([f"g{i}" for i in range(LARGE_GENES)])


def memory(args: argparse.Namespace, folder: Path) -> list[str]:
    lines = [f"{'cells':>10s} {'peak MB':>8s} {'CPU':>7s}"]
    for size in args.sizes:
        command = [sys.executable, __file__, "--annotate-here", size]
        run = runner.run_process(command, folder / "log")
        lines.append(f"{size:10,} {run.host / 1e6:8.0f} {run.seconds['CPU']:7.1f}")
    return lines


def annotate_here(n_cells: int) -> None:
    x, names = large_cells(n_cells)
    model, before = large_model(), time.process_time()
    annotate_values(x, names, model)
    runner.say_step("CPU", time.process_time() - before)


def speed(args: argparse.Namespace, folder: Path) -> list[str]:
    if not args.celltypist:
        return ["no celltypist here: --celltypist PYTHON"]
    x, names = large_cells(args.cells + BLOCK)
    adata = ad.AnnData(blocks.to_memory(x), var=pd.DataFrame(index=names))
    rng = np.random.default_rng(2)
    adata.obs["label"] = [f"t{i}" for i in rng.integers(0, 20, adata.n_obs)]
    adata = logged(adata)
    training, query = adata[:BLOCK, :MODEL_GENES].copy(), adata[BLOCK:].copy()
    training.uns.clear()
    training.X.data[:] = np.expm1(training.X.data)  # all of the genes sum to 10,000
    training = logged(training)
    del adata
    theirs = celltypist(args.celltypist, training, query, folder)
    convert_celltypist(folder / "model.pkl", folder / "model.h5ad")
    model = sa.io.read_annotator(folder / "model.h5ad")  # celltypist's is read beforehand, too
    sa.tl.annotate(query[:100].copy(), model)  # compiles
    before, clock = time.process_time(), time.perf_counter()
    sa.tl.annotate(query, model)
    seconds, wall = time.process_time() - before, time.perf_counter() - clock
    probability = query.obs["cell_type_probability"].to_numpy()
    apart = np.abs(probability - theirs["probability"]).max()
    return [
        f"{query.n_obs:,} cells x {LARGE_GENES:,} genes, 20 types of {MODEL_GENES:,} genes",
        f"{'':12s} {'CPU':>7s} {'wall':>7s}",
        f"{'scatlas':12s} {seconds:7.2f} {wall:7.2f}",
        f"{'celltypist':12s} {theirs['seconds']:7.2f} {theirs['wall']:7.2f}",
        f"CPU {theirs['seconds'] / seconds:.1f}x, wall {theirs['wall'] / wall:.1f}x; "
        f"probabilities differ by {apart:.1e} at most",
    ]


PARTS = {"accuracy": accuracy, "lacking": lacking, "memory": memory, "speed": speed}


def main() -> None:
    parser = runner.parser(__doc__, cells=200_000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[500_000, 4_000_000])
    parser.add_argument("--celltypist", help="a Python that has celltypist")
    parser.add_argument("--plates", type=Path, help="folder of plates with obs['cell_line']")
    parser.add_argument("--annotate-here", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.annotate_here:
        annotate_here(args.annotate_here)
        return
    lines = runner.head("numpy", "scipy", "numba", "anndata")
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts:
            lines += ["", f"## {part}", *PARTS[part](args, Path(folder))]
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
