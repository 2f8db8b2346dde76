"""Write the counts of one plate's kept cells gene after gene, in one pass."""

from __future__ import annotations

import logging
from pathlib import Path

import pandas as pd

from scatlas.errors import prefix_errors
from scatlas.io import read_cells, write_piece
from scatlas.workflow import script

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument("--genes", type=Path, help="consensus_genes.tsv; default: all genes")
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="GENE", help="further genes, with --genes"
    )
    parser.add_argument("--by-gene", type=Path, required=True, help="by_gene.zarr to write")
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.by_gene]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        genes = None
        if args.genes:
            table = pd.read_csv(args.genes, sep="\t", dtype=str, keep_default_na=False)
            genes = [*table["gene"], *args.also]
            logger.info(
                "%d genes: those of the atlas and of by_gene.genes; sa.get.gene reads others from "
                "the plates' counts (by_gene: {genes: all} keeps all)",
                len(genes),
            )
        facts |= {"plate": args.plate}
        facts |= write_piece(
            args.store,
            args.by_gene,
            keep=read_cells(args.qc, ["keep"])["keep"].to_numpy(),
            genes=genes,
            block_budget=script.block_budget(args),
        )


if __name__ == "__main__":
    script.run_main(main)
