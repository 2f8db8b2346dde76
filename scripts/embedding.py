"""Join the sampled cells' genes and obs with their neighbours, UMAP and clusters."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import create_hdf5, write_element
from scatlas.io.files.local_zarr import open_store
from scatlas.io.matrices.subset import read_subset, write_stored
from scatlas.io.products.assemble_atlas import parts_of_genes
from scatlas.io.tables.hdf5_table import write_obs
from scatlas.io.zarr_writer.elements import ANNDATA, DICT
from scatlas.workflow import script
from scatlas.workflow.sample import ATLAS_ROW, read_column, read_uns, rows_of_sample

if TYPE_CHECKING:
    import argparse

    import h5py


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr")
    script.add_obsm(parser)
    parser.add_argument("--genes", type=Path, required=True, help="consensus.parquet")
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr")
    for step in ("neighbors", "umap", "leiden"):
        parser.add_argument(f"--{step}", type=Path, required=True, help=f"{step}.zarr of the step")
    parser.add_argument("--map", type=Path, help="manifest of map, which numbers the clusters")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--embedding", type=Path, required=True, help="h5ad to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.embedding]) as facts:
        rows = rows_of_sample(args.subset)
        clusters = read_column(args.leiden, "leiden")
        if args.map:
            numbers = np.array(json.loads(args.map.read_text("utf-8"))["cluster_numbers"])
            clusters = pd.Categorical.from_codes(numbers[clusters.codes], clusters.categories)
        with atomic_path(args.embedding) as path:
            with create_hdf5(path) as file:
                write_cells(file, args, rows, clusters)
            with create_hdf5(path, append=True) as file:
                for name in ("distances", "connectivities"):
                    write_stored(file["obsp"], name, args.neighbors, f"obsp/{name}")
        facts |= {"n_cells": rows.size, "n_clusters": clusters.categories.size}


def write_cells(
    file: h5py.File, args: argparse.Namespace, rows: np.ndarray, clusters: pd.Categorical
) -> None:
    """Write all but the graph; of all cells a part, or a column of obs, is in memory at a time."""
    parts = parts_of_genes(args.merged, args.pca, pd.read_parquet(args.genes))
    if rows.size == open_store(args.merged)["X"].attrs["shape"][0]:
        write_stored(file, "X", args.merged, "X")
    else:
        budget = script.block_budget(args)
        some = read_subset(args.merged, rows, obs=[], obsm=[], block_budget=budget)
        write_element(file, "X", some.X)
    columns = {ATLAS_ROW: lambda: rows, "leiden": lambda: clusters}
    for name in open_store(args.labels)["obs"] if args.labels else ():
        columns[name] = partial(read_column, args.labels, name, rows)
    write_obs(file.create_group("obs"), args.merged, rows, columns)
    write_element(file, "var", parts["var"])
    stores = {"X_pca": args.pca, **script.plate_paths(args.obsm)}
    obsm = file.create_group("obsm")
    for name, store in stores.items():
        write_stored(obsm, name, store, name, rows)
    write_stored(obsm, "X_umap", args.umap, "obsm/X_umap")
    obsm.attrs.update(DICT)
    for store in (*stores.values(), args.neighbors, args.umap, args.leiden):
        parts["uns"] |= read_uns(store) if "uns" in open_store(store) else {}
    for name in ("varm", "obsp", "varp", "layers", "uns"):
        write_element(file, name, parts.get(name, {}))
    file.attrs.update(ANNDATA)


if __name__ == "__main__":
    script.run_main(main)
