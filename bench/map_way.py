"""What the steps from the components to the map cost beside their kernels.

    python bench/map_way.py FOLDER --cells 1000000

Simulates components, a merged store of few values per cell with obs columns, and what the kernels
of ``neighbors``, ``umap`` and ``leiden`` find. Prints processor seconds and bytes of the rest:
whole scripts where they have no kernel, else their reading and writing; with the threads of
SCATLAS_THREADS, or two.
"""

from __future__ import annotations

import argparse
import os
import resource
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import scipy.sparse as sp

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from scatlas.compute.threads import use_threads  # noqa: E402
from scatlas.io import CsrWriter, write_pca  # noqa: E402
from scatlas.io.products.embeddings import write_parts  # noqa: E402
from scatlas.workflow.sample import cells_with_graph, components_of_sample  # noqa: E402

N_COMPS, N_GENES, VALUES, NEIGHBORS, ROWS = 50, 200, 20, 14, 100_000
THREADS = int(os.environ.get("SCATLAS_THREADS", "2"))


def simulate(folder: Path, n: int, rng: np.random.Generator) -> None:
    """Write merged.zarr, pca.zarr and consensus.parquet."""
    genes, cells = [f"g{i}" for i in range(N_GENES)], np.arange(n)
    sizes = [min(ROWS, n - lo) for lo in range(0, n, ROWS)]
    with CsrWriter(folder / "merged.zarr", n_vars=N_GENES, data_dtype=np.float32) as store:
        for size in sizes:
            columns = np.sort(rng.integers(0, N_GENES, (size, VALUES)), axis=1).ravel()
            values = np.log1p(rng.integers(1, 9, columns.size)).astype(np.float32)
            offsets = np.arange(0, columns.size + 1, VALUES)
            store.append(sp.csr_matrix((values, columns, offsets), shape=(size, N_GENES)))
        numbers = {f"number{i}": rng.random(n) for i in range(9)}
        groups = {f"group{i}": pd.Categorical.from_codes(cells % 90, range(90)) for i in range(6)}
        names = pd.Index([f"AAACCTGAGAAACCAT-{i}-p{i // ROWS}" for i in cells], name="barcode")
        store.obs = pd.DataFrame(numbers | groups, index=names)
        store.var = pd.DataFrame({"mt": False}, index=genes)
    found = SimpleNamespace(mean=rng.random(N_GENES), PCs=rng.random((N_GENES, N_COMPS)))
    found.variance = found.variance_ratio = np.linspace(1, 0.1, N_COMPS)
    x = (rng.normal(size=(size, N_COMPS)).astype(np.float32) for size in sizes)
    params = {"zero_center": True}
    write_pca(folder / "pca.zarr", x_pca=x, n_cells=n, components=found, genes=genes, params=params)
    pd.DataFrame({"means": np.arange(N_GENES)}, index=genes).to_parquet(
        folder / "consensus.parquet"
    )


def graph(n: int, rng: np.random.Generator) -> dict[str, sp.csr_matrix]:
    """A graph of the size that `neighbors` finds."""
    columns = np.sort((np.arange(n)[:, None] + rng.integers(1, 5000, (n, NEIGHBORS))) % n, axis=1)
    offsets = np.arange(0, columns.size + 1, NEIGHBORS, dtype=np.int32)
    parts = 1 + rng.random(columns.size), columns.ravel().astype(np.int32), offsets
    distances = sp.csr_matrix(parts, shape=(n, n))
    weights = distances.astype(np.float32)
    return {"distances": distances, "connectivities": (weights + weights.T).tocsr()}


def measured(name: str, work: Callable[[], object]) -> None:
    """Do some work, and print its processor seconds and bytes."""

    def used() -> Iterator[float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        files = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        yield usage.ru_utime + usage.ru_stime
        yield time.monotonic()
        yield from (int(files[key]) / 1e6 for key in ("rchar", "wchar"))

    before = [*used()]
    work()
    spent = [b - a for a, b in zip(before, used(), strict=True)]
    print("{:26}{:10.2f}{:10.2f}{:10.0f}{:10.0f}".format(name, *spent), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=1_000_000)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    rng, n = np.random.default_rng(0), args.cells
    simulate(args.folder, n, rng)
    obsp = graph(n, rng)
    pca, steps = args.folder / "pca.zarr", ("subset", "neighbors", "umap", "leiden")
    store = {name: args.folder / f"{name}.zarr" for name in (*steps, "merged", "pca")}

    def script(name: str, *options: str, given: tuple[str, ...] = ()) -> Callable[[], None]:
        words = [f"--{name}={store[name]}" for name in given]
        words += [*options, f"--manifest={args.folder / name}.json", f"--threads={THREADS}"]
        return lambda: runpy.run_path(str(ROOT / f"scripts/{name}.py"))["main"](words)

    def components() -> np.ndarray:
        return components_of_sample(store["subset"], pca, "X_pca")

    print(f"{'':26}{'cpu s':>10}{'wall s':>10}{'MB read':>10}{'written':>10}")
    few = f'--config={{"subset": {{"n_cells": {n // 10}}}}}'
    script("subset", few, given=("pca", "subset"))()  # loads the kernels that decode
    with use_threads(THREADS):
        measured("subset, a tenth", script("subset", few, given=("pca", "subset")))
        measured("subset, all", script("subset", given=("pca", "subset")))
        measured("neighbors: read", components)
        params = {"n_neighbors": 15, "metric": "euclidean", "n_pcs": N_COMPS}
        uns: dict[str, object] = {"neighbors": {"params": params}}
        measured("neighbors: write", lambda: write_parts(store["neighbors"], obsp=obsp, uns=uns))
        measured("umap: read", lambda: (components(), cells_with_graph(store["neighbors"])))
        places = {"X_umap": rng.random((n, 2)).astype(np.float32)}
        uns = {"umap": {"params": {"a": 0.5, "b": 1.5}}}
        measured("umap: write", lambda: write_parts(store["umap"], obsm=places, uns=uns))
        measured("leiden: read", lambda: cells_with_graph(store["neighbors"]))
        clusters = pd.Categorical.from_codes(rng.integers(0, 40, n), [*map(str, range(40))])
        uns = {"leiden": {"params": {"resolution": 1.0}}}
        columns = {"leiden": clusters}
        measured("leiden: write", lambda: write_parts(store["leiden"], obs=columns, uns=uns))
        out = f"--components={pca}", f"--map={args.folder / 'map.zarr'}"
        measured("map", script("map", *out, given=steps))
        more = f"--map={args.folder / 'map.json'}", f"--genes={args.folder / 'consensus.parquet'}"
        out = f"--embedding={args.folder / 'umap.h5ad'}", *more
        measured("embedding", script("embedding", *out, given=("merged", "pca", *steps)))


if __name__ == "__main__":
    main()
