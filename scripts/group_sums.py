"""Sum the log-normalised counts of each plate's kept cells by group, for marker genes."""

from __future__ import annotations

from pathlib import Path

import h5py
from anndata.io import read_elem

from scatlas.errors import prefix_errors
from scatlas.io import atomic_path, read_cells, read_matrix
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.io.products.group_sums import write_group_sums
from scatlas.matrix.markers import sum_plate
from scatlas.matrix.select_normalize import log_normalize
from scatlas.matrix.size_factors import size_factors_by_row
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    for option, file in (("stores", "counts.zarr"), ("size-factors", "size_factors.parquet")):
        parser.add_argument(
            f"--{option}", nargs="+", required=True, metavar="PLATE=PATH", help=f"{file} of each"
        )
    parser.add_argument("--groups", type=Path, required=True, help="cell_groups.h5")
    parser.add_argument("--by", nargs="+", required=True, help="columns of cell_groups.h5")
    parser.add_argument("--sums", type=Path, required=True, help="group_sums.h5 to write")
    args = parser.parse_args(argv)
    stores, size_factors = map(script.plate_paths, (args.stores, args.size_factors))
    with (
        script.recorded_run(args, outputs=[args.sums]) as facts,
        h5py.File(args.groups) as groups,
        atomic_path(args.sums) as path,
        create_hdf5(path) as file,
    ):
        facts["plates"] = {}
        for plate, store in stores.items():
            with prefix_errors(f"plate {plate}"):
                cells = read_cells(size_factors[plate], ["row", "size_factor"])
                x, var = read_matrix(store, compact=True, **script.block_sizes(args))
                values = log_normalize(x, size_factors_by_row(cells, x.shape[0]))
                labels = read_elem(groups[plate])[args.by].set_axis(cells["row"])
                labels = labels.reindex(range(x.shape[0]))
                found = sum_plate(values, labels, var.index)
                write_group_sums(file, plate, found)
            facts["plates"][plate] = {"n_cells": len(cells), "n_groups": len(found.groups)}


if __name__ == "__main__":
    script.run_main(main)
