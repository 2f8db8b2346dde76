"""Rank the genes of one plate by how much they vary, in two passes over its counts at most."""

from __future__ import annotations

import argparse
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from scatlas.errors import prefix_errors
from scatlas.get import on_backend
from scatlas.io import atomic_path, open_tables, read_cells, read_matrix
from scatlas.io.products.load_statistics import cells_digest, read_moments
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.matrix.hvg_shares import hvg_of_share_moments, share_moments, target_of
from scatlas.matrix.size_factors import size_factors_by_row
from scatlas.workflow import script
from scatlas.workflow.cell_filter import frequent_genes
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.plate_sections import HVG

if TYPE_CHECKING:
    from scatlas.kernels.moments.shares import ShareMoments

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True, may_skip=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--moments", type=Path, help="moments.parquet of load")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--min-cells", type=int, help="leave out genes seen in fewer kept cells")
    parser.add_argument(
        "--drop-rare-genes", type=int, help="leave out genes seen in fewer of all cells"
    )
    parser.add_argument("--table", type=Path, required=True, help="hvg.parquet to write")
    add_sections(parser, hvg=HVG)
    args = parser.parse_args(argv)
    hvg = read_section(args, "hvg", HVG)

    @cache
    def inputs() -> tuple[pd.DataFrame, Any, Any, ShareMoments | None]:
        """Kept cells, genes, the cells of each gene, and the moments of `load` if they fit."""
        with prefix_errors(f"plate {args.plate}"):
            cells = read_cells(args.size_factors, ["row", "total_counts", "size_factor"])
            with open_tables(args.store) as (_, var):
                names, n_cells = var.index(), var.columns["n_cells_by_counts"].take()
            moments = stored_moments(args, cells, len(names)) if hvg.flavor == "seurat" else None
        return cells, names, n_cells, moments

    with (
        script.recorded_run(
            args, outputs=[args.table], needs_gpu=lambda: inputs()[-1] is None
        ) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        cells, names, n_cells, moments = inputs()
        genes = None
        if args.drop_rare_genes is not None:
            genes = frequent_genes(n_cells, args.drop_rare_genes, source=f"plate {args.plate}")
        options = {"min_cells": args.min_cells, "genes": genes, **hvg.model_dump()}
        if hvg.flavor == "seurat":
            options.pop("flavor")
            target = target_of(cells["total_counts"].to_numpy(), cells["size_factor"].to_numpy())
            if moments is None:
                rows, totals = cells["row"].to_numpy(), cells["total_counts"].to_numpy()
                moments = share_moments(counts(args), rows, totals, target)
            table = hvg_of_share_moments(moments, names, target, **options)
        else:
            x = counts(args)
            table = hvg_of_counts(x, names, size_factors_by_row(cells, x.shape[0]), **options)
        table = table.drop(columns=["mean_bin", "gene_name"], errors="ignore")
        table.index = pd.Index(names, name="gene")
        facts |= {"plate": args.plate, "n_cells": len(cells), "n_genes": len(table)}
        facts["n_highly_variable"] = int(table["highly_variable"].sum())
        with atomic_path(args.table) as path:
            # A dictionary of values that are all different would cost time and space.
            table.to_parquet(path, use_dictionary=False)


def stored_moments(
    args: argparse.Namespace, cells: pd.DataFrame, n_genes: int
) -> ShareMoments | None:
    """Moments of the kept cells that `load` took; None: new ones have the same bits."""
    if args.moments is None:
        return None
    rows, totals = cells["row"].to_numpy(), cells["total_counts"].to_numpy()
    found = read_moments(args.moments, cells_digest(rows, totals), n_genes)
    if isinstance(found, str):
        logger.info("plate %s: the counts are read, because %s", args.plate, found)
        return None
    logger.info("plate %s: load took the moments, no counts are read", args.plate)
    return found


def counts(args: argparse.Namespace) -> Any:
    """The plate's counts on the device of this run, lazily."""
    x, _ = read_matrix(args.store, compact=True, **script.block_sizes(args))
    return on_backend(x)


if __name__ == "__main__":
    script.run_main(main)
