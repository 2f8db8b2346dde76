"""Cut one plate to its kept cells and the consensus genes, log-normalise, sum Gram statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from scatlas import blocks, step
from scatlas.io import CsrWriter, atomic_path, read_kept
from scatlas.pp import GramStats, log1p, normalize_total


def main(argv: list[str] | None = None) -> None:
    parser = step.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--genes", type=Path, required=True, help="consensus_genes.tsv")
    parser.add_argument("--selected", type=Path, required=True, help="selected.zarr to write")
    parser.add_argument("--gram", type=Path, required=True, help="gram.npz to write")
    args = parser.parse_args(argv)
    with step.run(args, outputs=[args.selected, args.gram]) as facts:
        cells = pd.read_parquet(args.size_factors, columns=["row", "size_factor"])
        genes = pd.read_csv(args.genes, sep="\t", dtype=str, keep_default_na=False)["gene"]
        adata = read_kept(args.store, cells["row"], genes=genes, block_budget=args.block_budget)
        # Size factors come from all genes of the cell, so cutting first changes nothing.
        factors = cells["size_factor"].to_numpy()
        normalize_total(adata, target_sum=1, counts_per_cell=factors)
        log1p(adata)
        adata.obs["size_factor"] = factors
        stats = None
        with CsrWriter(
            args.selected, n_vars=adata.n_vars, data_dtype=np.float32, obs=adata.obs, var=adata.var
        ) as writer:
            for block, part in blocks.stream(adata.X, with_gram):
                writer.append(block)
                stats = part if stats is None else GramStats.fold([stats, part])
        with atomic_path(args.gram) as path:
            stats.save(path)
        facts |= {"plate": args.plate, "n_cells": adata.n_obs, "n_genes": adata.n_vars}


def with_gram(block: blocks.Block) -> tuple[blocks.Block, GramStats]:
    return block, GramStats.from_block(block)


if __name__ == "__main__":
    step.execute(main)
