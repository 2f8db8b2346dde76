"""Sum the log-normalised counts of one plate's kept cells by group, for its marker genes."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from anndata.io import read_elem

from scatlas.errors import prefix_errors
from scatlas.io import read_cells, read_matrix
from scatlas.io.products.group_sums import write_group_sums
from scatlas.matrix.markers import sum_plate
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import size_factors_by_row
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--groups", type=Path, required=True, help="cell_groups.h5")
    parser.add_argument("--by", nargs="+", required=True, help="columns of cell_groups.h5")
    parser.add_argument("--sums", type=Path, required=True, help="group_sums.h5ad to write")
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.sums]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        cells = read_cells(args.size_factors, ["row", "size_factor"])
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        factors = size_factors_by_row(cells, x.shape[0])
        values = select_and_log_normalize(x, np.arange(len(var)), size_factors=factors)
        with h5py.File(args.groups) as file:
            labels = read_elem(file[args.plate])[args.by]
        found = sum_plate(values, labels, var.index)
        write_group_sums(args.sums, found)
        facts |= {"plate": args.plate, "n_cells": len(cells), "n_groups": len(found.groups)}


if __name__ == "__main__":
    script.run_main(main)
