"""Choose the genes that are highly variable on enough plates."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scatlas import step
from scatlas.io import atomic_path
from scatlas.pp import consensus_genes


def main(argv: list[str] | None = None) -> None:
    parser = step.parser(__doc__)
    parser.add_argument(
        "--hvg", nargs="+", required=True, metavar="PLATE=PATH", help="hvg.parquet of each plate"
    )
    parser.add_argument("--min-plates", type=int, default=3, help="how many plates must agree")
    parser.add_argument("--genes", choices=["same", "intersect"], default="same")
    parser.add_argument("--list", type=Path, required=True, help="consensus_genes.tsv to write")
    parser.add_argument("--table", type=Path, required=True, help="consensus.parquet to write")
    args = parser.parse_args(argv)
    with step.run(args, outputs=[args.list, args.table]) as facts:
        tables = {plate: pd.read_parquet(path) for plate, path in step.pairs(args.hvg).items()}
        table = consensus_genes(tables, min_plates=args.min_plates, genes=args.genes)
        facts |= {"n_plates": len(tables), "n_genes": len(table)}
        # The list holds names alone: other plates rerun when it changes, and only then.
        with atomic_path(args.list) as path:
            table.index.to_frame().to_csv(path, sep="\t", index=False)
        with atomic_path(args.table) as path:
            table.to_parquet(path)


if __name__ == "__main__":
    step.execute(main)
