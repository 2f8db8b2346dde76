"""Benchmark from QC to 300 components on one GPU, out of core: scatlas against rapids-singlecell.

    python bench/gpu/vs_rsc.py FOLDER --store plate1.zarr --peer 8:20000 16:50000 --rounds 3
    python bench/gpu/vs_rsc.py FOLDER --store plate1.h5ad --peer 16:20000 --peer-rounds 1

scatlas runs the scripts of the workflow in one process (bench/sides/scatlas_steps.py) with all
their outputs, with the backends gpu and cpu in turn. rapids-singlecell, the peer
(bench/sides/rsc_steps.py), writes nothing. Its settings are THREADS:ROWS, with ``:zarrs`` to
decode with zarrs; the best one counts. The store is in the page cache for every run. A first run of
each side on a --small plate compiles the kernels; a setting of the peer that fails there is
skipped. Imports and the start of CUDA are measured separately and do not count. Times are medians
of rounds. Fails unless both sides find the same cells, genes and components:

- The sets of genes may differ by one gene in 500, because the peer sums in float32 over the cells
  of a block, and genes at the end of the list are equal within this error.
- Components are compared if both sides have the same genes. Each component of scatlas must be
  within 1e-3 of the span of the peer's (except the last 10 of 300, whose counterpart may be its
  301st), and variances must agree to 1e-3, because the peer sums its Gram matrix in float32, in a
  varying order.
"""

from __future__ import annotations

import json
import statistics
import sys
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

import runner
from runner import ROOT, Run, run_process, size_of, warm

SIDES = ROOT / "bench/sides"
_TOLERANCE = 1e-3
_GENES = 500


class Side(NamedTuple):
    """A side and its settings."""

    name: str
    out: Path
    command: list[object]
    rounds: int


def ours(backend: str, store: Path, args: Namespace) -> Side:
    out = args.folder / f"out_scatlas_{backend}"
    settings = ["--backend", backend, "--threads", args.threads, "--budget", args.budget]
    script = SIDES / "scatlas_steps.py"
    command = [sys.executable, script, out, "--forked", *settings, *sizes(store, args)]
    return Side(f"scatlas {backend}", out, command, args.rounds)


def peer(setting: str, store: Path, args: Namespace) -> Side:
    threads, rows, *zarrs = setting.split(":")
    out = args.folder / "out_rsc" / setting.replace(":", "_")
    own = ["--threads", threads, "--rows", rows, *(f"--{name}" for name in zarrs)]
    command = [sys.executable, SIDES / "rsc_steps.py", out, *own, *sizes(store, args)]
    return Side(f"rsc {setting}", out, command, args.peer_rounds or args.rounds)


def sizes(store: Path, args: Namespace) -> list[object]:
    return ["--plates", store, "--min-plates", 1, "--top", args.top, "--comps", args.comps]


def compare(ours: Path, others: Path) -> str:
    """Check that two sides agree, and describe the difference."""
    a, b = (json.loads((folder / "result.json").read_text()) for folder in (ours, others))
    assert a["n_cells"] == b["n_cells"], f"{a['n_cells']} cells and {b['n_cells']}"
    n, differ = len(a["genes"]), np.setxor1d(a["genes"], b["genes"]).size
    assert differ <= max(2 * n, 2 * len(b["genes"])) / _GENES, f"{differ} genes differ"
    if differ:
        return f"{n} genes, of which {differ // 2} are others: components not compared"
    order = np.argsort(b["genes"])[np.argsort(np.argsort(a["genes"]))]
    PCs, other = (np.load(folder / "PCs.npy") for folder in (ours, others))
    span, _ = np.linalg.qr(other[order].astype(float))
    whole = PCs.shape[1]
    outside = 1 - np.linalg.norm(span.T @ PCs, axis=0)[: whole - whole // 30]
    variance = np.abs(np.divide(b["variance"], a["variance"]) - 1)
    assert outside.max() < _TOLERANCE, f"a component is another: {outside.max()}"
    assert variance.max() < _TOLERANCE, f"a variance is another: {variance.max()}"
    return (
        f"the same {n} genes; components within {outside.max():.0e} of the other's span, variances "
        f"within {variance.max():.0e} (tolerance {_TOLERANCE:.0e})"
    )


def gpu_in_use(out: Path) -> int | None:
    """Bytes of GPU memory that our steps used at most, by their run records."""
    records = [json.loads(path.read_text()) for path in out.glob("manifests/*/runs/*.json")]
    return max((r["gpu"]["peak_memory_bytes"] for r in records if r.get("gpu")), default=None)


def told(side: Side, runs: list[Run]) -> list[str]:
    """Lines on one side."""
    median = runs[0].seconds.keys()
    each = ", ".join(
        f"{step} {statistics.median(run.seconds[step] for run in runs):.2f}" for step in median
    )
    totals = " ".join(f"{run.total:.2f}" for run in runs)
    used = gpu_in_use(side.out)
    in_use = f" ({used / 1e9:.1f} in use, the rest is the pool's)" if used else ""
    return [
        f"{side.name:<18}{statistics.median(run.total for run in runs):>8.2f} s  "
        f"(rounds {totals}); host {max(run.host for run in runs) / 1e9:.1f} GB, GPU "
        f"{max(run.gpu for run in runs) / 1e9:.1f} GB{in_use}",
        f"  {each}",
    ]


def main() -> None:
    parser = runner.parser(__doc__, folder="for results and logs", top=2304, comps=300)
    parser.add_argument("--store", type=Path, required=True, help="plate, .h5ad or .zarr")
    parser.add_argument("--small", type=Path, help="plate to compile with, of the same layout")
    parser.add_argument("--backends", nargs="+", default=["gpu", "cpu"], choices=["gpu", "cpu"])
    parser.add_argument("--peer", nargs="*", default=["8:20000"], metavar="THREADS:ROWS[:zarrs]")
    parser.add_argument("--threads", type=int, default=16, help="threads of scatlas")
    parser.add_argument("--budget", default="256MB", help="block budget of scatlas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-rounds", type=int, help="rounds of a slow peer")
    args = parser.parse_args()
    lines = runner.head("numpy", "anndata", "zarr", "h5py", "dask", "numba", *gpu_packages(args))
    lines.append(f"# {args.store.name}: {size_of(args.store) / 1e9:.2f} GB, in the page cache")

    def sides(store: Path) -> list[Side]:
        own = [ours(backend, store, args) for backend in args.backends]
        return own + [peer(setting, store, args) for setting in args.peer]

    def run(side: Side) -> Run:
        name = side.name.replace(" ", "_").replace(":", "_")
        log = args.folder / f"{name}.log"
        return run_process(side.command, log, gpus=[0], CUDA_VISIBLE_DEVICES="0")

    failed = set()
    for side in sides(args.small) if args.small else []:
        try:
            print(f"{side.name} has compiled in {run(side).wall:.1f} s", flush=True)
        except RuntimeError as error:
            if not side.name.startswith("rsc"):
                raise
            failed.add(side.name)
            lines.append(f"# {side.name} skipped: {error}")
    all_sides = [side for side in sides(args.store) if side.name not in failed]
    runs: dict[str, list[Run]] = {side.name: [] for side in all_sides}
    for round_ in range(args.rounds):
        for side in all_sides:
            if round_ < side.rounds:
                warm(args.store)
                runs[side.name].append(run(side))
                print(f"{side.name}: {runs[side.name][-1].total:.2f} s", flush=True)
    for side in all_sides:
        lines += told(side, runs[side.name])
    median = {name: statistics.median(run.total for run in ran) for name, ran in runs.items()}
    peers = [side for side in all_sides if side.name.startswith("rsc")]
    own = [side for side in all_sides if side not in peers]
    if len(own) > 1:
        lines.append(f"gpu and cpu: {compare(own[0].out, own[1].out)}")
    if peers:
        best = min(peers, key=lambda side: median[side.name])
        for side in own:
            ratio = median[best.name] / median[side.name]
            lines.append(f"{side.name}: {ratio:.1f} times as fast as the peer's best, {best.name}")
        print("\n".join(lines), flush=True)  # print before the comparison, which may fail
        lines.append(f"{own[0].name} and {best.name}: {compare(own[0].out, best.out)}")
    runner.publish(lines, args.out)


def gpu_packages(args: Namespace) -> list[str]:
    gpu = ["cupy-cuda13x", "rmm-cu13"] if "gpu" in args.backends or args.peer else []
    return gpu + (["rapids-singlecell-cu13"] if args.peer else [])


if __name__ == "__main__":
    main()
