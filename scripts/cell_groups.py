"""Find the group of each kept cell of one plate, for each column of markers.by."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem

from scatlas.errors import prefix_errors
from scatlas.io import atomic_path, open_tables, read_cells
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column
from scatlas.workflow import script
from scatlas.workflow.obs_columns import read_columns
from scatlas.workflow.sample import ATLAS_ROW


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--by", nargs="+", required=True, help="obs columns")
    parser.add_argument("--labels", type=json.loads, default="{}", help="labels of the plate: JSON")
    parser.add_argument("--merged", type=Path, help="manifest of concat_on_disk, for leiden")
    parser.add_argument("--map", type=Path, help="map.zarr, with the clusters of all cells")
    parser.add_argument("--umap", type=Path, help="umap.h5ad, with those of the sample")
    parser.add_argument("--groups", type=Path, required=True, help="cell_groups.parquet to write")
    args = parser.parse_args(argv)
    with (
        script.run_script(args, outputs=[args.groups]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        rows = read_cells(args.size_factors, ["row"])["row"].to_numpy()
        columns = {by: column_of(args, by, rows) for by in dict.fromkeys(args.by)}
        groups = {by: as_groups(values) for by, values in columns.items()}
        facts |= {"plate": args.plate, "n_cells": rows.size}
        facts["n_groups"] = {by: len(values.categories) for by, values in groups.items()}
        with atomic_path(args.groups) as path:
            pd.DataFrame(groups, index=pd.RangeIndex(rows.size)).to_parquet(path)


def column_of(args: argparse.Namespace, by: str, rows: np.ndarray) -> object:
    """Values of a column for the kept cells, as the atlas has them."""
    if by == "leiden":
        return clusters(args, rows.size)
    constant = {**args.labels, "plate": args.plate}.get(by)
    if constant:
        return [constant] * rows.size
    with open_tables(args.store) as (obs, _):
        if constant == "" and by not in obs.columns:  # a plate without this label
            return [None] * rows.size
    return read_columns(args.store, args.plate, [by], key="markers.by")[by].iloc[rows]


def clusters(args: argparse.Namespace, n_cells: int) -> pd.Categorical:
    """Clusters of the plate's cells; without the map of all cells only sampled ones have one."""
    cells_by_plate = json.loads(args.merged.read_text(encoding="utf-8"))["plates"]
    first = 0
    for plate, facts in cells_by_plate.items():
        if plate == args.plate:
            break
        first += facts["n_cells"]
    if args.map:
        column = Column.open(args.map, open_with_zarr_python(args.map)["obs"], "leiden")
        return column.array(first, first + n_cells)
    with h5py.File(args.umap) as file:
        sampled, leiden = file["obs"][ATLAS_ROW][:] - first, read_elem(file["obs/leiden"])
    here = (sampled >= 0) & (sampled < n_cells)
    codes = np.full(n_cells, -1)
    codes[sampled[here]] = leiden.codes[here]
    return pd.Categorical.from_codes(codes, leiden.categories)


def as_groups(values: object) -> pd.Categorical:
    """The groups that cells have, as text."""
    found = pd.Categorical(values).remove_unused_categories()
    return found.rename_categories(found.categories.astype(str))


if __name__ == "__main__":
    script.run_main(main)
