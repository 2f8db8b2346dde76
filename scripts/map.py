"""Map every cell of the atlas: those outside the sample by their nearest sampled cells."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas import blocks
from scatlas.get import on_backend
from scatlas.io.files.local_zarr import open_rows
from scatlas.io.products.embeddings import write_map
from scatlas.matrix import inverted_lists
from scatlas.matrix.reference_map import map_cells
from scatlas.workflow import script
from scatlas.workflow.sample import read_map

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger("scatlas")

# With some 0.1 GB of results on the way.
CELLS_AT_ONCE = 65_536


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument(
        "--components", type=Path, required=True, help="pca.zarr, or harmony.zarr of mixed cells"
    )
    parser.add_argument("--subset", type=Path, required=True, help="subset.h5ad")
    for step in ("neighbors", "umap", "leiden"):
        parser.add_argument(f"--{step}", type=Path, required=True, help=f"{step}.h5ad of the step")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--map", type=Path, required=True, help="map.zarr to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.map]) as facts:
        found = read_map(args.subset, args.neighbors, args.umap, args.leiden)
        sample = found.sample
        components = open_rows(args.components, found.basis)
        n_cells, n_pcs = components.shape[0], found.x.shape[1]
        notes = {
            "method": "full" if sample.rows.size == n_cells else "project",
            "n_sample": sample.rows.size,
            "n_neighbors": sample.n_neighbors,
            "n_pcs": n_pcs,
            "metric": found.metric,
            "seed": args.seed,
        }
        if notes["method"] == "full":
            logger.info("the sample has all %s cells, and so has its map", f"{n_cells:,}")
            parts = iter([(sample.coordinates, {"leiden": sample.codes})])
        else:
            x = on_backend(found.x)
            index = inverted_lists.build(
                x, sample.n_neighbors, metric=found.metric, random_state=args.seed
            )
            notes["recall"] = index.recall
            starts = range(0, n_cells, CELLS_AT_ONCE)

            def read(part: int) -> np.ndarray:
                return components[starts[part] : starts[part] + CELLS_AT_ONCE][:, :n_pcs]

            # Ahead of the search, for which a GPU takes less time than one thread to read.
            readers = min(args.threads, 4) if script.on_gpu(args) else 1
            cells = blocks.map_in_order(read, len(starts), workers=readers)
            sizes = [min(CELLS_AT_ONCE, n_cells - start) for start in starts]
            parts = blocks.with_progress(map_cells(sample, index, cells), sizes)
        uns = {**found.uns, "map": notes}
        numbers = write_map(args.map, parts, clusters=found.clusters, uns=uns)
        facts |= {**notes, "n_cells": n_cells, "n_clusters": len(found.clusters)}
        facts["cluster_numbers"] = numbers  # of the clusters of leiden.h5ad, in their order


if __name__ == "__main__":
    script.run_main(main)
