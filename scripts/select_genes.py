"""Cut one plate to its kept cells and the consensus genes, log-normalise, sum Gram statistics.

PCA sums those of small plates, whose Gram matrix would be larger than their counts.
"""

from __future__ import annotations

import argparse
import logging
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas.columns import among_genes
from scatlas.compute.memory import gram_is_worth_storing
from scatlas.errors import InputError, prefix_errors
from scatlas.get import on_backend
from scatlas.io import CsrWriter, in_place, open_tables, read_cells, read_matrix, write_gram
from scatlas.matrix.gram import GramAccumulator
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import size_factors_by_row
from scatlas.workflow import script
from scatlas.workflow.cell_filter import doublet_columns

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--doublets", type=Path, help="doublets.parquet, if doublets are scored")
    parser.add_argument("--genes", type=Path, required=True, help="consensus_genes.tsv")
    parser.add_argument(
        "--may-lack-genes", action="store_true", help="genes that the plate lacks are zeros"
    )
    parser.add_argument("--selected", type=Path, required=True, help="selected.zarr to write")
    parser.add_argument("--gram", type=Path, required=True, help="gram.zarr to write")
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.selected, args.gram]) as facts,
        prefix_errors(f"plate {args.plate}"),
        open_tables(args.store) as (obs, _),
    ):
        cells = read_cells(args.size_factors, ["row", "size_factor"])
        rows, kept_factors = cells["row"].to_numpy(), cells["size_factor"].to_numpy()
        sizes = script.block_sizes(args)
        if not script.on_gpu(args):
            # Counts, normalised and encoded values are in memory at once.
            sizes["block_budget"] //= 2
        x, var = read_matrix(args.store, compact=True, **sizes)
        factors = size_factors_by_row(cells, x.shape[0])
        deferred_columns = {"size_factor": kept_factors, **doublet_columns(args.doublets, rows)}
        obs, notices = obs.with_room_for(deferred_columns)
        for notice in notices:
            logger.warning("plate %s: %s", args.plate, notice)
        genes, at = gene_positions(args, var.index)
        n_missing = int((at < 0).sum())
        n_values = var["n_cells_by_counts"].to_numpy()  # of each gene, in all cells
        due = int(n_values[at[at >= 0]].sum()) * rows.size // x.shape[0]
        table = among_genes(var, genes)
        stores_gram = gram_is_worth_storing(rows.size, n_values.sum() / x.shape[0], genes.size)
        selected = select_and_log_normalize(on_backend(x), at[at >= 0], size_factors=factors)
        if n_missing:
            selected = blocks.spread_genes(selected, np.flatnonzero(at >= 0), genes.size)
        with (
            CsrWriter(
                args.selected, n_vars=genes.size, data_dtype=np.float32, var=table, n_values=due
            ) as writer,
            obs.writing(
                writer.folder / "obs", deferred_columns=deferred_columns, rows=rows
            ) as finish_obs,
            GramAccumulator(genes.size) if stores_gram else nullcontext() as gram,
        ):
            for block in blocks.stream(selected, pool=writer.pool):
                if gram:
                    gram.add(block)
                block = blocks.on_host(block)
                writer.append_checked(block.data, block.indices)
                writer.append_rows(np.diff(block.indptr))
            finish_obs(deferred_columns)
            writer.obs = in_place
        stats = gram.result() if gram else None
        write_gram(args.gram, n_cells=rows.size, n_genes=genes.size, stats=stats)
        facts |= {"plate": args.plate, "n_cells": rows.size, "n_genes": genes.size}
        facts |= {"n_missing_genes": n_missing} if n_missing else {}
        facts |= {"notices": notices} if notices else {}


def gene_positions(args: argparse.Namespace, names: pd.Index) -> tuple[pd.Index, np.ndarray]:
    """The consensus genes, and their positions on this plate, -1 for those that it lacks."""
    table = pd.read_csv(args.genes, sep="\t", dtype=str, keep_default_na=False)
    genes = pd.Index(table["gene"])
    at = names.get_indexer(genes)
    missing = genes[at < 0]
    if len(missing) and not args.may_lack_genes:
        raise InputError(f"{args.store}: gene {missing[0]!r} is not among its {len(names):,} genes")
    if len(missing):
        how = "they are zeros"
        logger.info("%d of the atlas's %d genes are missing: %s", len(missing), len(genes), how)
    return genes, at


if __name__ == "__main__":
    script.run_main(main)
