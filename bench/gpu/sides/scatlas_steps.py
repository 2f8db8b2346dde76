"""From plates to X_pca with the scripts of the workflow, called in one process.

    python bench/gpu/sides/scatlas_steps.py OUT --plates a.zarr --backend gpu --threads 16

Calls the same functions as the rules, and writes all their outputs atomically: validated stores
with checksums, obs and var, and manifests. Prints one JSON line per step.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from chain import Chain
from harness import ROOT


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def print_step(step: str, start: float) -> None:
    print(json.dumps({"step": step, "seconds": time.perf_counter() - start}), flush=True)


def start_up(backend: str) -> None:
    """Start the GPU, as the other side does before its first step, and import libraries.

    As the server does from which the workflow forks its jobs.
    """
    from scatlas.compute.memory import reuse_memory
    from scatlas.workflow.fork_server import warm_up

    reuse_memory()  # as in `script.run_main`
    warm_up(ROOT / "scripts")
    if backend == "gpu":
        import cupy as cp

        cp.zeros(1).get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--plates", nargs="+", type=Path, required=True)
    parser.add_argument("--backend", choices=["gpu", "cpu"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--top", type=int, default=2304)
    parser.add_argument("--comps", type=int, default=300)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    chain = Chain(
        args.out,
        args.backend,
        args.threads,
        args.budget,
        n_top_genes=args.top,
        min_plates=len(args.plates),
        n_comps=args.comps,
    )
    jobs = chain.all({f"plate{i}": path for i, path in enumerate(args.plates, 1)})
    start = time.perf_counter()
    start_up(args.backend)
    scripts = {job.step: script(job.step) for job in jobs}
    print_step("start", start)
    for job in jobs:
        start = time.perf_counter()
        scripts[job.step].main(job.argv)
        print_step(job.step, start)
    # The results that vs_rsc.py compares.
    import numpy as np
    import pandas as pd
    import zarr

    found = zarr.open_group(args.out / "pca.zarr", mode="r")
    np.savez(
        args.out / "result.npz",
        genes=pd.read_csv(args.out / "consensus_genes.tsv", sep="\t")["gene"].to_numpy(str),
        variance=found["variance"][:],
        PCs=found["PCs"][:],
        n_cells=found["X_pca"].shape[0],
    )


if __name__ == "__main__":
    main()
