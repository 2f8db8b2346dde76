"""Effects of conditions: seconds of processors, peak memory, bytes on disk, and PyDESeq2 beside.

    python bench/effects.py
    python bench/effects.py --pydeseq2 VENV/bin/python --out bench/results/effects-DATE.txt

lines
    Models of many cell lines after their sums, all results read by conditions: 1,000 conditions
    with one pseudobulk each on 14 plates with three controls, 20,000 genes.
screen
    One line of 18,924 conditions, 20,000 genes.
written
    The script of the workflow from sums of 14 plates to ``effects.h5ad`` and Parquet: Tahoe's 1,137
    contrasts of a line, 62,710 genes of which a third is tested; with p-values and without.
sums
    The pass over a plate of 96 wells of 50 lines, beside the pass of `hvg`.
PyDESeq2
    30 controls and 20 conditions of three pseudobulks, 2,000 genes, a tenth of them changed
    1.5-fold: its seconds and the area below precision and recall, of the environment of
    ``--pydeseq2``.

Each part is another process, whose largest memory includes libraries and counts; its seconds
are without their simulation. Seconds by the clock, too: on a quiet machine two cores halve them.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import runner
import scipy.sparse as sp
from gene_lookup import N_GENES, write_plate
from sklearn.metrics import average_precision_score

from scatlas._util.operating_system import peak_memory
from scatlas.get import aggregate_cells
from scatlas.io import CsrWriter, read_matrix
from scatlas.matrix.effects import fit_effects
from scatlas.matrix.effects_moderation import t_pvalues
from scatlas.matrix.hvg import hvg_of_counts

if TYPE_CHECKING:
    from collections.abc import Callable

N_PLATES, N_CONTROLS, AT_ONCE = 14, 3, 100
PARTS = ("lines", "screen", "sums", "PyDESeq2", "written")
SIDE = Path(__file__).parent / "sides" / "pydeseq2_effects.py"


def draw(mean: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """int32 ``[n, n_genes]``: pseudobulks whose libraries differ and whose genes vary."""
    out = np.empty((n, mean.size), np.int32)
    for row in out:
        row[:] = rng.poisson(mean * np.exp(rng.normal(0, 0.4)) * rng.gamma(5, 0.2, mean.size))
    return out


def means(n_genes: int, rng: np.random.Generator) -> np.ndarray:
    """Counts of genes of a pseudobulk: two thirds of many genes have too few to be tested."""
    n_tested = min(n_genes, 20_000)
    high = np.exp(rng.normal(2.5, 1.8, n_tested))
    return np.r_[high, np.full(n_genes - n_tested, 0.01)][rng.permutation(n_genes)]


def design(n_conditions: int) -> pd.DataFrame:
    """Conditions with a pseudobulk each, on plates with controls, by plate."""
    plate = np.arange(n_conditions) * N_PLATES // n_conditions
    table = pd.DataFrame({"condition": [f"d{i}" for i in range(n_conditions)], "block": plate})
    controls = np.repeat(np.arange(N_PLATES), N_CONTROLS)
    table = pd.concat([table, pd.DataFrame({"condition": "ctrl", "block": controls})])
    table = table.sort_values("block", kind="stable", ignore_index=True)
    return table.astype({"condition": "category"})


def models(n_lines: int, n_conditions: int, n_genes: int, work: Path) -> str:
    """Fit a line, again and again, and read its results by conditions."""
    rng = np.random.default_rng(0)
    samples, genes = design(n_conditions), pd.Index([f"G{i}" for i in range(n_genes)])
    counts = draw(means(n_genes, rng), len(samples), rng)
    clocks, n = Clocks(), 0
    for _ in range(n_lines):
        effects = fit_effects(counts, samples, genes, control="ctrl")
        for _, _, t in effects.by_rows(work, AT_ONCE):
            n += effects.n_genes(t)["n_genes"].sum()
        del effects
    shape = f"{n_lines} x {len(samples):,} pseudobulks x {n_genes:,} genes"
    return f"{shape}, {n:,} values: {clocks}, peak memory {peak_memory() / 1e6:,.0f} MB"


class Clocks:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def __str__(self) -> str:
        cpu, wall = time.process_time() - self.cpu, time.perf_counter() - self.wall
        return f"{cpu:.1f} s of processors, {wall:.1f} s by the clock"


def write_sums(folder: Path, n_lines: int, n_conditions: int, n_genes: int) -> dict[str, Path]:
    """Sums of the replicates of each plate, as `effect_sums` writes them."""
    rng = np.random.default_rng(0)
    table, mean = design(n_conditions), means(n_genes, rng)
    var = pd.DataFrame(index=[f"G{i}" for i in range(n_genes)])
    stores = {f"p{i}": folder / f"p{i}" for i in range(N_PLATES)}
    for i, store in enumerate(stores.values()):
        wells = table[table["block"] == i].assign(n_obs_aggregated=1000)
        wells["well"] = [f"p{i}w{j}" for j in range(len(wells))]
        obs = pd.concat([wells.assign(line=f"L{j}") for j in range(n_lines)], ignore_index=True)
        with CsrWriter(store, n_vars=n_genes, data_dtype=np.int64, var=var) as writer:
            for first in range(0, len(obs), AT_ONCE):
                counts = draw(mean, min(AT_ONCE, len(obs) - first), rng)
                writer.append(sp.csr_matrix(counts.astype(np.int64)))
            writer.obs = obs.astype({"condition": str}).set_axis(obs["line"] + obs["well"])
    return stores


def written(n_lines: int, p_values: bool, stores: dict[str, Path], out: Path) -> str:
    """Run the script of the workflow on sums."""
    wanted = {"condition": "condition", "control": "ctrl", "within": ["line"], "block": "plate"}
    section = {**wanted, "replicate": "well", "p_values": p_values}
    names = {"effects": "effects.h5ad", "tables": "effects", "manifest": "m.json"}
    names |= {"conditions": "effects.tsv", "left-out": "left.tsv"}
    command = [sys.executable, str(runner.ROOT / "scripts/effects.py")]
    command += ["--sums", *(f"{plate}={store}" for plate, store in stores.items())]
    command += ["--config", json.dumps({"effects": section})]
    for name, file in names.items():
        command += [f"--{name}", str(out / file)]
    out.mkdir()
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    n = pd.read_csv(out / "effects.tsv", sep="\t")["n_genes"].sum()
    h5ad, tables = (runner.size_of(out / name) / n for name in ("effects.h5ad", "effects"))
    return (
        f"{n_lines} lines, p_values: {p_values}: {n:,} values, {h5ad:.2f} bytes of h5ad and "
        f"{tables:.2f} of Parquet each; {used.ru_utime + used.ru_stime:.1f} s of processors, "
        f"{wall:.1f} s by the clock, peak memory {used.ru_maxrss / 1e3:,.0f} MB"
    )


def sums(n_cells: int, folder: Path) -> str:
    """The pass of the sums, beside that of `hvg`, twice each; the second is told."""
    write_plate(folder / "plate", n_cells, np.random.default_rng(0))
    x, var = read_matrix(folder / "plate" / "counts.zarr", compact=True)
    order = np.arange(n_cells)
    wells = pd.Categorical.from_codes(order % 96, [f"w{i}" for i in range(96)])
    lines = pd.Categorical.from_codes(order // 96 % 50, [f"l{i}" for i in range(50)])
    cells = pd.DataFrame({"line": lines, "well": wells})
    told = []
    for name, work in (
        ("hvg", lambda: hvg_of_counts(x, var.index, np.ones(n_cells))),
        ("sums", lambda: aggregate_cells(x, cells, ["line", "well"], func="sum")),
    ):
        work()
        clocks = Clocks()
        work()
        told.append(f"{name} {clocks}")
    return f"{n_cells:,} cells: {'; '.join(told)}"


def beside_pydeseq2(python: str, work: Path) -> str:
    """Time of both, and how well each finds the genes that are changed."""
    rng, n_genes, n_conditions = np.random.default_rng(0), 2_000, 20
    samples = np.repeat(
        ["ctrl", *(f"d{i}" for i in range(n_conditions))], [30, *[3] * n_conditions]
    )
    mean, changed = np.exp(rng.normal(4, 1.2, n_genes)), {}
    counts = draw(mean, 30, rng)
    for name in samples[30::3]:
        changed[name] = rng.random(n_genes) < 0.1
        fold = np.where(changed[name], 1.5 ** rng.choice([-1, 1], n_genes), 1)
        counts = np.r_[counts, draw(mean * fold, 3, rng)]
    table = pd.DataFrame({"condition": pd.Categorical(samples)})
    clocks = Clocks()
    found = fit_effects(counts, table, pd.RangeIndex(n_genes).astype(str), control="ctrl")
    p = t_pvalues(found.to_memory()[1], found.genes["df"].to_numpy())
    told = [f"{n_conditions} conditions x {n_genes:,} genes: scatlas {clocks}"]
    genes = found.genes.index.astype(int)
    real = np.stack([changed[name][genes] for name in found.conditions.index])
    told.append(f"precision and recall {average_precision_score(real.ravel(), -p.ravel()):.4f}")
    np.savez(work / "data.npz", counts=counts, condition=samples.astype(str))
    try:
        done = subprocess.run(
            [python, SIDE, work / "data.npz"], check=True, capture_output=True, text=True
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.splitlines() or ["no message"])[-1]
        return ", ".join([*told, f"PyDESeq2 is not installed ({last}): name --pydeseq2"])
    said = json.loads(done.stdout.splitlines()[-1])
    order = [list(dict.fromkeys(samples[30:])).index(name) for name in found.conditions.index]
    theirs = np.nan_to_num(np.load(work / "data.npz.p.npy")[order][:, genes], nan=1.0)
    told.append(f"PyDESeq2 {said['version']} {said['seconds']:.1f} s of processors")
    told.append(
        f"precision and recall {average_precision_score(real.ravel(), -theirs.ravel()):.4f}"
    )
    return ", ".join(told)


def in_new_process(work: Callable[[], str]) -> str:
    """What a part tells, in a process that shares no memory with others."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work).result()


def main() -> None:
    parser = runner.parser(__doc__, lines=50, screen=18_924, cells=200_000)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--pydeseq2", default=sys.executable, help="Python that has PyDESeq2")
    args = parser.parse_args()
    lines = runner.head("numpy", "scipy", "h5py", "pyarrow")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        work = Path(name)
        jobs: list[tuple[str, Callable[[], str]]] = [
            ("lines", partial(models, args.lines, 1_000, N_GENES, work)),
            ("screen", partial(models, 1, args.screen, N_GENES, work)),
            ("sums", partial(sums, args.cells, work)),
            ("PyDESeq2", partial(beside_pydeseq2, args.pydeseq2, work)),
        ]
        if "written" in args.parts:
            stores = write_sums(work, n_lines := 2, 1_137, 62_710)
            for p in (True, False):
                job = partial(written, n_lines, p, stores, work / f"out_{p}")
                jobs.append(("written", job))
        for part, job in jobs:
            if part in args.parts:
                lines.append(f"{part}: {in_new_process(job)}")
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
