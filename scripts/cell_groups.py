"""Find the group of each kept cell of all plates, for the columns of marker genes and sums."""

from __future__ import annotations

import argparse
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata.io import read_elem, write_elem

from scatlas.columns import check_groups
from scatlas.errors import prefix_errors
from scatlas.io import atomic_path, open_tables, read_cells
from scatlas.io.files.checksums import json_bytes, text_digest
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column
from scatlas.workflow import script
from scatlas.workflow.cell_filter import read_columns
from scatlas.workflow.labels import Labels
from scatlas.workflow.sample import ATLAS_ROW


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    for option, file in (("stores", "counts.zarr"), ("size-factors", "size_factors.parquet")):
        parser.add_argument(
            f"--{option}",
            nargs="+",
            required=True,
            metavar="PLATE=PATH",
            help=f"{file} of each plate, in the order of the atlas",
        )
    parser.add_argument("--by", nargs="+", required=True, help="obs columns")
    script.add_labels(parser)
    parser.add_argument("--map", type=Path, help="map.zarr, with the clusters of all cells")
    parser.add_argument("--umap", type=Path, help="umap.h5ad, with those of the sample")
    parser.add_argument("--names", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--groups", type=Path, required=True, help="cell_groups.h5 to write")
    args = parser.parse_args(argv)
    stores, labels = script.plate_paths(args.stores), Labels.open(args.names)
    with script.recorded_run(args, outputs=[args.groups]) as facts:
        facts["plates"], first = {}, 0
        with atomic_path(args.groups) as path, create_hdf5(path) as file:
            for plate, factors in script.plate_paths(args.size_factors).items():
                rows = read_cells(factors, ["row"])["row"].to_numpy()
                with prefix_errors(f"plate {plate}"):
                    constants = {**args.labels.get(plate, {}), "plate": plate}
                    groups = {
                        by: as_groups(
                            clusters(args, first, rows.size)
                            if by == "leiden"
                            else labels.values(by, first, first + rows.size)
                            if by in labels.obs
                            else column_of(stores[plate], plate, by, constants, rows)
                        )
                        for by in dict.fromkeys(args.by)
                    }
                table = pd.DataFrame(groups, index=pd.RangeIndex(rows.size).astype(str))
                write_elem(file, plate, table, dataset_kwargs={"compression": "gzip"})
                facts["plates"][plate] = {by: digest(table[by]) for by in table}
                first += rows.size
        facts["n_cells"] = first


def column_of(
    store: Path, plate: str, by: str, constants: dict[str, str], rows: np.ndarray
) -> object:
    """Values of a column of obs for the kept cells, as the atlas has them."""
    constant = constants.get(by)
    if constant:
        return [constant] * rows.size
    with open_tables(store) as (obs, _):
        if constant == "" and by not in obs.columns:  # a plate without this label
            return [None] * rows.size
    key = "markers.by, pseudobulk.by or effects"
    values = read_columns(store, plate, [by], key=key)[by].iloc[rows]
    if pd.api.types.is_float_dtype(values):  # whole numbers may be names of samples
        check_groups(values, by)
    return values


def clusters(args: argparse.Namespace, first: int, n_cells: int) -> pd.Categorical:
    """Clusters of cells of the atlas; without the map of all cells only sampled ones have one."""
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


def digest(groups: pd.Series) -> str:
    """Digest of the groups of a plate's cells: its sums depend on no other label."""
    names = json_bytes({"names": list(groups.cat.categories)})
    return text_digest(names + groups.cat.codes.to_numpy().astype(np.int64).tobytes())


if __name__ == "__main__":
    script.run_main(main)
