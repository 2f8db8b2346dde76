"""Fix the target sum and the size factor of each kept cell; normalised counts are never stored."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from scatlas.errors import prefix_errors
from scatlas.io import atomic_path, read_cells, write_cells
from scatlas.io.tables.cell_parquet import kept_names
from scatlas.matrix.size_factors import size_factors
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.plate_sections import Normalize


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, may_skip=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument("--table", type=Path, required=True, help="size_factors.parquet to write")
    parser.add_argument("--store", type=Path, help="counts.zarr, for --drop-rare-genes")
    parser.add_argument(
        "--drop-rare-genes", type=int, help="do not count genes seen in fewer of all cells"
    )
    add_sections(parser, normalize=Normalize)
    args = parser.parse_args(argv)
    normalize = read_section(args, "normalize", Normalize)
    with (
        script.recorded_run(args, outputs=[args.table]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        qc = read_cells(args.qc, ["total_counts", "keep"])
        keep = qc["keep"].to_numpy()
        totals = qc["total_counts"].to_numpy()[keep]
        n_rare = 0
        if args.drop_rare_genes is not None:
            rare, dropped = in_rare_genes(args)
            totals, n_rare = totals - dropped[keep], int(rare.sum())
        factors, target = size_factors(totals, target_sum=normalize.target_sum)
        facts |= {"plate": args.plate, "target_sum": target, "n_cells": totals.size}
        facts |= {"n_empty": int((totals == 0).sum()), "n_genes_dropped": n_rare}
        columns = {"total_counts": totals, "row": np.flatnonzero(keep), "size_factor": factors}
        with atomic_path(args.table) as path:
            index_name, names = kept_names(args.qc, keep)
            write_cells(path, pd.DataFrame(columns, copy=False), names, index_name=index_name)


def in_rare_genes(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Genes that are dropped, bool [genes], and each cell's counts in them, [cells]."""
    # Most runs work on tables alone and start without what reads counts.
    from scatlas.compute.threads import GPU_BLOCK_BYTES, GPU_BUDGET
    from scatlas.io import read_matrix
    from scatlas.matrix.size_factors import cell_totals
    from scatlas.workflow.cell_filter import frequent_genes

    sizes = script.block_sizes(args)
    if args.block_budget == "auto":  # exact sums: larger blocks keep 16 threads busy, not nine
        sizes = {"block_budget": GPU_BUDGET, "largest_block": GPU_BLOCK_BYTES}
    x, var = read_matrix(args.store, compact=True, **sizes)
    n_cells = var["n_cells_by_counts"].to_numpy()
    rare = ~frequent_genes(n_cells, args.drop_rare_genes, source=f"plate {args.plate}")
    if not n_cells[rare].any():  # nothing to take off, and no pass for it
        return rare, np.zeros(x.shape[0], np.int64)
    return rare, cell_totals(x, rare)


if __name__ == "__main__":
    script.run_main(main, blocks=False)
