"""Side of bench/map.py: ingest of new cells, compiled before.

    python bench/sides/map_ingest.py scatlas|scanpy FOLDER N_CELLS

Reads ``reference.h5ad``, ``1000.zarr`` and ``N_CELLS.zarr`` of FOLDER, and writes coordinates and
labels to ``SIDE-N_CELLS.npz``. The time of scanpy is without reading the new cells.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import anndata as ad
import numpy as np
import psutil


def main() -> None:
    side, folder, n_cells = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    if side == "scanpy":
        import scanpy as library

        read = ad.read_zarr
    else:
        import scatlas as library

        read = library.read_lazy
    reference = ad.read_h5ad(folder / "reference.h5ad")
    adata = read(folder / "1000.zarr")
    library.tl.ingest(adata, reference, obs="group", embedding_method="umap")
    say("memory before", psutil.Process().memory_info().rss)
    adata = read(folder / f"{n_cells}.zarr")
    wall, cpu = time.perf_counter(), time.process_time()
    library.tl.ingest(adata, reference, obs="group", embedding_method="umap")
    say("ingest", time.perf_counter() - wall)
    say("ingest, CPU", time.process_time() - cpu)
    labels = adata.obs["group"].to_numpy().astype(str)
    np.savez(folder / f"{side}-{n_cells}.npz", layout=adata.obsm["X_umap"], labels=labels)


def say(step: str, value: float) -> None:
    print(json.dumps({"step": step, "seconds": value}), flush=True)


if __name__ == "__main__":
    main()
