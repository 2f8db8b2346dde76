"""Rank the genes of one plate by how much they vary, in one pass over its counts (or two)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scatlas.errors import prefix_errors
from scatlas.get import on_backend
from scatlas.io import atomic_path, read_cells, read_matrix
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.matrix.size_factors import size_factors_by_row
from scatlas.workflow import script
from scatlas.workflow.cell_filter import frequent_genes
from scatlas.workflow.config.cli_options import add_options, from_options
from scatlas.workflow.config.sections import HVG


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True, may_skip=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--min-cells", type=int, help="leave out genes seen in fewer kept cells")
    parser.add_argument(
        "--drop-rare-genes", type=int, help="leave out genes seen in fewer of all cells"
    )
    parser.add_argument("--table", type=Path, required=True, help="hvg.parquet to write")
    add_options(parser, HVG)
    args = parser.parse_args(argv)
    hvg = from_options(args, HVG)
    with (
        script.run_script(args, outputs=[args.table]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        cells = read_cells(args.size_factors, ["row", "size_factor"])
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        x = on_backend(x)
        factors = size_factors_by_row(cells, x.shape[0])
        genes = None
        if args.drop_rare_genes is not None:
            n_cells = var["n_cells_by_counts"].to_numpy()
            genes = frequent_genes(n_cells, args.drop_rare_genes, source=f"plate {args.plate}")
        options = {"min_cells": args.min_cells, "genes": genes, **hvg.model_dump()}
        table = hvg_of_counts(x, var.index, factors, **options)
        table = table.drop(columns=["mean_bin", "gene_name"], errors="ignore")
        table.index = pd.Index(var.index, name="gene")
        facts |= {"plate": args.plate, "n_genes": len(table)}
        facts["n_highly_variable"] = int(table["highly_variable"].sum())
        with atomic_path(args.table) as path:
            # A dictionary of values that are all different would cost time and space.
            table.to_parquet(path, use_dictionary=False)


if __name__ == "__main__":
    script.run_main(main)
