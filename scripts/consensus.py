"""Choose the consensus genes: those that are highly variable on most plates."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from scatlas.errors import InputError
from scatlas.io import atomic_path
from scatlas.workflow import script
from scatlas.workflow.consensus import consensus_genes


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--hvg", nargs="+", required=True, metavar="PLATE=PATH", help="hvg.parquet of each plate"
    )
    parser.add_argument("--n-top-genes", type=int, help="how many genes to keep; all by default")
    parser.add_argument("--min-plates", type=int, default=1, help="how many plates must agree")
    parser.add_argument("--genes", choices=["same", "intersect"], default="same")
    # From the environment: a change of pca.n_comps must not rerun this step.
    parser.add_argument(
        "--n-comps",
        type=int,
        default=os.environ.get("SCATLAS_N_COMPS") or None,
        help="refuse fewer genes than this number of components",
    )
    parser.add_argument("--list", type=Path, required=True, help="consensus_genes.tsv to write")
    parser.add_argument("--table", type=Path, required=True, help="consensus.parquet to write")
    args = parser.parse_args(argv)
    with script.run_script(args, outputs=[args.list, args.table]) as facts:
        paths = script.plate_paths(args.hvg)
        tables = {plate: pd.read_parquet(path) for plate, path in paths.items()}
        table = consensus_genes(
            tables, n_top_genes=args.n_top_genes, min_plates=args.min_plates, genes=args.genes
        )
        if args.n_comps is not None and len(table) < args.n_comps:
            msg = (
                f"{len(table)} genes are highly variable on {args.min_plates} of {len(tables)} "
                f"plates, too few for pca.n_comps ({args.n_comps}): compute fewer components, "
                "lower consensus.min_plates or raise hvg.n_top_genes"
            )
            raise InputError(msg)
        facts |= {"n_plates": len(tables), "n_genes": len(table)}
        # Names alone: plates rerun only when this list changes.
        with atomic_path(args.list) as path:
            table.index.to_frame().to_csv(path, sep="\t", index=False)
        with atomic_path(args.table) as path:
            table.to_parquet(path)


if __name__ == "__main__":
    script.run_main(main)
