"""From plates to X_pca with the scripts of the workflow, called in one process.

    python bench/sides/scatlas_steps.py OUT --plates a.h5ad b.h5ad --comps 300

Calls the same functions as the rules, and writes all their outputs atomically: validated stores
with checksums, obs and var, and manifests. Prints one JSON line per step.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import sys
import time
from functools import cache
from pathlib import Path
from types import ModuleType

import anndata  # noqa: F401  (otherwise the first step would import it)
import dask.array  # noqa: F401
import numba  # noqa: F401
import numpy as np
import pandas as pd
import pyarrow.parquet  # noqa: F401
import scipy.linalg  # noqa: F401
import side
import zarr

from scatlas.compute.memory import reuse_memory
from scatlas.workflow.config.plate_sections import QC

ROOT = Path(__file__).parents[2]
STEPS = [
    "load",
    "qc_filter",
    "normalize",
    "hvg",
    "consensus",
    "select_genes",
    "concat_on_disk",
    "pca",
]


@cache
def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, out: Path, plate: str = "atlas", **options: object) -> None:
    """Call a script's main with these options and print the time."""
    shared = {"manifest": out / f"manifests/{name}/{plate}.json"}
    if plate != "atlas":
        shared["plate"] = plate
    argv = []
    for option, value in {**shared, **options}.items():
        values = value if isinstance(value, list) else [value]
        argv += [f"--{option.replace('_', '-')}", *map(str, values)]
    start, cpu = time.perf_counter(), time.process_time()
    script(name).main(argv)
    line = {
        "step": name,
        "seconds": time.perf_counter() - start,
        "cpu": time.process_time() - cpu,
    }
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = side.parser(__doc__)
    parser.add_argument("--budget", default="256MB")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    out = args.out
    shutil.rmtree(out, ignore_errors=True)
    same = {"threads": args.threads, "block_budget": args.budget}
    start = time.perf_counter()
    for name in STEPS:  # imports, as on the other side before its first step
        script(name)
    reuse_memory()  # this and the next line as in `script.run_main`
    gc.freeze()
    print(json.dumps({"step": "start", "seconds": time.perf_counter() - start}), flush=True)
    names = [f"plate{i}" for i in range(1, len(args.plates) + 1)]
    at = {name: out / "plates" / name for name in names}
    # As `scatlas.workflow.job_environment`: `load` takes the moments that `hvg` needs.
    qc = QC(filter="pass_filter == 'full'")
    os.environ["SCATLAS_QC_FILTER"] = qc.filter
    os.environ["SCATLAS_KEPT_CELLS"] = json.dumps({"bounds": qc.model_dump()})
    for name, source in zip(names, args.plates, strict=True):
        p, here = at[name], {"plate": name, **same}
        run(
            "load",
            out,
            **here,
            source=source,
            store=p / "counts.zarr",
            moments=p / "moments.parquet",
        )
        run(
            "qc_filter",
            out,
            **here,
            store=p / "counts.zarr",
            config=json.dumps({"qc": {"filter": qc.filter}}),
            table=p / "qc.parquet",
            summary=p / "qc_summary.json",
        )
        run("normalize", out, **here, qc=p / "qc.parquet", table=p / "size_factors.parquet")
        run(
            "hvg",
            out,
            **here,
            store=p / "counts.zarr",
            moments=p / "moments.parquet",
            size_factors=p / "size_factors.parquet",
            table=p / "hvg.parquet",
        )
    run(
        "consensus",
        out,
        **same,
        hvg=[f"{name}={at[name] / 'hvg.parquet'}" for name in names],
        min_plates=args.min_plates,
        list=out / "consensus_genes.tsv",
        table=out / "consensus.parquet",
    )
    for name in names:
        p = at[name]
        run(
            "select_genes",
            out,
            name,
            **same,
            store=p / "counts.zarr",
            size_factors=p / "size_factors.parquet",
            genes=out / "consensus_genes.tsv",
            selected=p / "selected.zarr",
            gram=p / "gram.zarr",
        )
    run(
        "concat_on_disk",
        out,
        **same,
        selected=[f"{name}={at[name] / 'selected.zarr'}" for name in names],
        merged=out / "merged.zarr",
    )
    run(
        "pca",
        out,
        **same,
        merged=out / "merged.zarr",
        grams=[at[name] / "gram.zarr" for name in names],
        config=json.dumps({"pca": {"n_comps": args.comps}}),
        pca=out / "pca.zarr",
    )
    found = zarr.open_group(out / "pca.zarr", mode="r")
    hvgs = [pd.read_parquet(at[name] / "hvg.parquet") for name in names]
    result = {
        "hvgs": [sorted(table.index[table["highly_variable"]]) for table in hvgs],
        "genes": pd.read_csv(out / "consensus_genes.tsv", sep="\t")["gene"].tolist(),
        "variance": found["variance"][:].tolist(),
    }
    (out / "result.json").write_text(json.dumps(result))
    np.save(out / "PCs.npy", found["PCs"][:])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
