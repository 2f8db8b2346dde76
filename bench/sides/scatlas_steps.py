"""From plates to X_pca with the scripts of the workflow, called in one process.

    python bench/sides/scatlas_steps.py OUT --plates a.h5ad b.h5ad --comps 300
    python bench/sides/scatlas_steps.py OUT --plates a.zarr --min-plates 1 --backend gpu --forked

Calls the same functions as the rules, and writes all their outputs atomically: validated stores
with checksums, obs and var, and manifests. Prints one JSON line per step.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import anndata  # noqa: F401  (otherwise the first step would import it)
import dask.array  # noqa: F401
import numba  # noqa: F401
import pandas as pd
import pyarrow.parquet  # noqa: F401
import scipy.linalg  # noqa: F401
import side
import zarr

from scatlas.compute.memory import reuse_memory
from scatlas.workflow.fork_server import warm_up

sys.path.append(str(Path(__file__).parents[1]))

from chain import Chain

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = side.parser(__doc__)
    parser.add_argument("--backend", choices=["gpu", "cpu"], default="cpu")
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--forked", action="store_true", help="start as jobs that the workflow forks from a server"
    )
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    chain = Chain(
        args.out,
        args.backend,
        args.threads,
        args.budget,
        n_top_genes=args.top,
        min_plates=args.min_plates,
        n_comps=args.comps,
    )
    plates = {f"plate{i}": path for i, path in enumerate(args.plates, 1)}
    jobs = chain.all(plates)
    with side.step("start"):
        reuse_memory()  # this and `gc.freeze` as in `script.run_main`
        if args.forked:
            warm_up(SCRIPTS)
        if args.backend == "gpu":  # the peer starts it before its first step, too
            import cupy as cp

            cp.zeros(1).get()
        for job in jobs:  # imports, as on the other side before its first step
            script(job.step)
        gc.freeze()
    for job in jobs:
        with side.step(job.step):
            script(job.step).main(job.argv)
    found = zarr.open_group(args.out / "pca.zarr", mode="r")
    hvgs = [pd.read_parquet(chain.at(plate, "hvg.parquet")) for plate in plates]
    side.write_result(
        args.out,
        found["PCs"][:],
        n_cells=found["X_pca"].shape[0],
        hvgs=[sorted(table.index[table["highly_variable"]]) for table in hvgs],
        genes=pd.read_csv(args.out / "consensus_genes.tsv", sep="\t")["gene"].tolist(),
        variance=found["variance"][:].tolist(),
    )


if __name__ == "__main__":
    main()
