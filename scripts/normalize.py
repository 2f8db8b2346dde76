"""Fix the target sum and the size factor of each kept cell; normalised counts are never stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from scatlas import config, step
from scatlas.io import atomic_path
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
        qc = pd.read_parquet(args.qc, columns=["total_counts", "keep"])
        rows = np.flatnonzero(qc["keep"])
        kept = qc.iloc[rows]
        factors, target = size_factors(kept["total_counts"], target_sum=normalize.target_sum)
        facts |= {"plate": args.plate, "target_sum": target, "n_cells": len(kept)}
        facts["n_empty"] = int((kept["total_counts"] == 0).sum())
        table = kept[["total_counts"]].assign(row=rows, size_factor=factors)
        with atomic_path(args.table) as path:
            table.to_parquet(path)


if __name__ == "__main__":
    step.execute(main)
