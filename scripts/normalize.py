"""Fix the target sum and the size factor of each kept cell; normalised counts are never stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from scatlas import config, step
from scatlas.io import atomic_path, read_cells, write_cells
from scatlas.io.cells import kept_names
from scatlas.pp import size_factors


def main(argv: list[str] | None = None) -> None:
    parser = step.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument("--table", type=Path, required=True, help="size_factors.parquet to write")
    config.add_options(parser, config.Normalize)
    args = parser.parse_args(argv)
    normalize = config.from_options(args, config.Normalize)
    with step.run(args, outputs=[args.table]) as facts:
        qc = read_cells(args.qc, ["total_counts", "keep"])
        keep = qc["keep"].to_numpy()
        totals = qc["total_counts"].to_numpy()[keep]
        factors, target = size_factors(totals, target_sum=normalize.target_sum)
        facts |= {"plate": args.plate, "target_sum": target, "n_cells": totals.size}
        facts["n_empty"] = int((totals == 0).sum())
        columns = {"total_counts": totals, "row": np.flatnonzero(keep), "size_factor": factors}
        with atomic_path(args.table) as path:
            index_name, names = kept_names(args.qc, keep)
            write_cells(path, pd.DataFrame(columns, copy=False), names, index_name=index_name)


if __name__ == "__main__":
    step.execute(main)
