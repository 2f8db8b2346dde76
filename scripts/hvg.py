"""Rank the genes of one plate by their dispersion, in one pass over its counts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scatlas import config, step
from scatlas.io import atomic_path, read_kept
from scatlas.pp import highly_variable_genes, log1p, normalize_total


def main(argv: list[str] | None = None) -> None:
    parser = step.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--size-factors", type=Path, required=True, help="size_factors.parquet")
    parser.add_argument("--min-cells", type=int, help="leave out genes seen in fewer kept cells")
    parser.add_argument("--table", type=Path, required=True, help="hvg.parquet to write")
    config.add_options(parser, config.HVG)
    args = parser.parse_args(argv)
    hvg = config.from_options(args, config.HVG)
    with step.run(args, outputs=[args.table]) as facts:
        cells = pd.read_parquet(args.size_factors, columns=["row", "size_factor"])
        adata = read_kept(args.store, cells["row"], obs=False, block_budget=args.block_budget)
        normalize_total(adata, target_sum=1, counts_per_cell=cells["size_factor"].to_numpy())
        log1p(adata)
        table = highly_variable_genes(
            adata, inplace=False, min_cells=args.min_cells, **hvg.model_dump()
        )
        table = table[["means", "dispersions", "dispersions_norm", "highly_variable"]]
        table.index = pd.Index(adata.var_names, name="gene")
        facts |= {"plate": args.plate, "n_genes": len(table)}
        facts["n_highly_variable"] = int(table["highly_variable"].sum())
        with atomic_path(args.table) as path:
            table.to_parquet(path)


if __name__ == "__main__":
    step.execute(main)
