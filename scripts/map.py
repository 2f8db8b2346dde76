"""Map every cell of the atlas: those outside the sample by their nearest sampled cells."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scatlas import blocks
from scatlas.get import on_backend
from scatlas.io.files.local_zarr import open_rows
from scatlas.io.products.embeddings import write_map
from scatlas.matrix import inverted_lists
from scatlas.matrix.reference_map import map_cells
from scatlas.workflow import script
from scatlas.workflow.sample import SampleMap, components_of_sample, read_map, sample_to_place_by

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

logger = logging.getLogger("scatlas")

# With some 0.1 GB of results on the way.
CELLS_AT_ONCE = 65_536


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument(
        "--components", type=Path, required=True, help="pca.zarr, or harmony.zarr of mixed cells"
    )
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr")
    for step in ("neighbors", "umap", "leiden"):
        parser.add_argument(f"--{step}", type=Path, required=True, help=f"{step}.zarr of the step")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--map", type=Path, required=True, help="map.zarr to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.map]) as facts:
        found = read_map(args.subset, args.neighbors, args.umap, args.leiden)
        n_cells = open_rows(args.components, found.basis).shape[0]
        notes = {
            "method": "full" if found.rows.size == n_cells else "project",
            "n_sample": found.rows.size,
            "n_neighbors": found.n_neighbors,
            "n_pcs": found.n_pcs,
            "metric": found.params["metric"],
            "seed": args.seed,
        }
        if notes["method"] == "full":
            logger.info("the sample has all %s cells, and so has its map", f"{n_cells:,}")
            parts = iter([(found.coordinates, {"leiden": found.clusters.codes})])
        else:
            parts = project(args, found, n_cells, notes)
        clusters, uns = [*found.clusters.categories], {**found.uns, "map": notes}
        numbers = write_map(args.map, parts, clusters=clusters, uns=uns)
        facts |= {**notes, "n_cells": n_cells, "n_clusters": len(clusters)}
        facts["cluster_numbers"] = numbers  # of the clusters of leiden.zarr, in their order


def project(
    args: argparse.Namespace, found: SampleMap, n_cells: int, notes: dict[str, object]
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Place all cells by their nearest sampled ones; notes how many of these the search finds."""
    components = open_rows(args.components, found.basis)
    x = components_of_sample(args.subset, args.components, found.basis)[:, : found.n_pcs]
    index = inverted_lists.build(
        on_backend(np.ascontiguousarray(x)),
        found.n_neighbors,
        metric=found.params["metric"],
        random_state=args.seed,
    )
    notes["recall"] = index.recall
    starts = range(0, n_cells, CELLS_AT_ONCE)

    def read(part: int) -> np.ndarray:
        return components[starts[part] : starts[part] + CELLS_AT_ONCE][:, : found.n_pcs]

    # Ahead of the search, for which a GPU takes less time than one thread to read.
    readers = min(args.threads, 4) if script.on_gpu(args) else 1
    cells = blocks.map_in_order(read, len(starts), workers=readers)
    sizes = [min(CELLS_AT_ONCE, n_cells - start) for start in starts]
    sample = sample_to_place_by(found, args.neighbors)
    return blocks.with_progress(map_cells(sample, index, cells), sizes)


if __name__ == "__main__":
    script.run_main(main)
