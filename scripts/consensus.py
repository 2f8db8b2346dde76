"""Choose the consensus genes: those that are highly variable on the largest number of plates."""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pandas as pd

from scatlas.columns import GeneRule
from scatlas.errors import InputError
from scatlas.io import atomic_path
from scatlas.workflow import script
from scatlas.workflow.config import min_plates_of
from scatlas.workflow.consensus import consensus_genes, plates_with_other_genes
from scatlas.workflow.left_out import left_out, sentences

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger("scatlas")


def options() -> argparse.ArgumentParser:
    """Parser of the script's options."""
    parser = script.parser(__doc__)
    parser.add_argument(
        "--hvg", nargs="+", required=True, metavar="PLATE=PATH", help="hvg.parquet of each plate"
    )
    parser.add_argument("--n-top-genes", type=int, help="how many genes to keep; all by default")
    parser.add_argument(
        "--min-plates",
        nargs="+",
        type=number_or_share,
        default=[1],
        help="how many plates must agree: a number, a share such as 10%%, or both",
    )
    parser.add_argument(
        "--manifests",
        type=Path,
        help="folder with {plate}.json of the step hvg: numbers of cells, bad plates",
    )
    parser.add_argument("--leave-out", action="store_true", help="leave bad plates out")
    parser.add_argument(
        "--min-cells", type=int, default=0, help="plates with fewer cells do not choose genes"
    )
    parser.add_argument("--genes", choices=get_args(GeneRule), default="same")
    parser.add_argument("--also", nargs="+", default=[], help="genes to take whatever their ranks")
    parser.add_argument(
        "--stores", nargs="+", default=[], metavar="PLATE=PATH", help="counts.zarr, for --also"
    )
    parser.add_argument("--gene-names", help="column of var with the symbols of --also")
    # From the environment: a change of pca.n_comps must not rerun this step.
    parser.add_argument(
        "--n-comps",
        type=int,
        default=os.environ.get("SCATLAS_N_COMPS") or None,
        help="refuse fewer genes than this number of components",
    )
    parser.add_argument("--list", type=Path, required=True, help="consensus_genes.tsv to write")
    parser.add_argument("--table", type=Path, required=True, help="consensus.parquet to write")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = options().parse_args(argv)
    with script.recorded_run(args, outputs=[args.list, args.table]) as facts:
        bad = args.manifests if args.leave_out else None
        tables, missing = read_tables(script.plate_paths(args.hvg), bad, args.genes)
        few = {}
        if args.min_cells:
            few = plates_of_few_cells(tables, args.manifests, args.min_cells)
            if few:
                logger.info("too small to choose genes: %s", ", ".join(few))
        voters = [plate for plate in tables if plate not in few]
        min_plates = min_plates_of(args.min_plates, len(voters))
        table = consensus_genes(
            tables,
            n_top_genes=args.n_top_genes,
            min_plates=min_plates,
            genes=args.genes,
            voters=voters,
            also=genes_to_add(args, list(tables)),
        )
        if args.n_comps is not None and len(table) < args.n_comps:
            raise InputError(
                f"{len(table)} genes are highly variable on {min_plates} of {len(voters)} "
                f"plates, too few for pca.n_comps ({args.n_comps}): compute fewer components, "
                "lower consensus.min_plates or raise hvg.n_top_genes"
            )
        facts |= {"n_plates": len(tables), "n_genes": len(table)}
        if args.also:
            facts["also"] = list(table.index[table["also"]])
            logger.info("genes on top, by consensus.also: %d", len(facts["also"]))
        facts |= {"left_out": missing} if missing else {}
        facts |= {"too_few_cells": few} if few else {}
        # Names alone: plates rerun only when this list changes.
        with atomic_path(args.list) as path:
            table.index.to_frame().to_csv(path, sep="\t", index=False)
        with atomic_path(args.table) as path:
            table.to_parquet(path)


def plates_of_few_cells(plates: Iterable[str], manifests: Path, min_cells: int) -> dict[str, int]:
    """Plates with fewer kept cells, and less than half of the median plate's, and how many."""
    manifest = {plate: (manifests / f"{plate}.json").read_text("utf-8") for plate in plates}
    n_cells = {plate: json.loads(text)["n_cells"] for plate, text in manifest.items()}
    floor = min(min_cells, statistics.median(n_cells.values()) / 2)
    return {plate: n for plate, n in n_cells.items() if n < floor}


def genes_to_add(args: argparse.Namespace, plates: list[str]) -> list[str]:
    """Genes of ``--also`` as the plates name them."""
    if not args.also:
        return []
    # Most runs start without what reads stores.
    from scatlas.matrix.measured_genes import MeasuredGenes

    stores = {plate: script.plate_paths(args.stores)[plate] for plate in plates}
    measured = MeasuredGenes(stores, {}, args.genes, args.gene_names)
    return measured.find(args.also, "consensus.also")


def number_or_share(text: str) -> int | str:
    """An entry of consensus.min_plates."""
    return int(text) if text.isdecimal() else text


def read_tables(
    paths: dict[str, Path], manifests: Path | None, genes: str
) -> tuple[dict[str, pd.DataFrame], dict[str, str]]:
    """Tables of the plates in the atlas, and why each other plate is left out."""
    missing: dict[str, str] = {}
    if manifests is not None:
        messages = {plate: left_out(manifests / f"{plate}.json") for plate in paths}
        missing = {plate: message for plate, message in messages.items() if message}
    tables: dict[str, pd.DataFrame] = {}
    names = pd.Index([])
    for plate in (plate for plate in paths if plate not in missing):
        table = pd.read_parquet(paths[plate])
        # One copy of equal gene names: 500 plates of 20,000 genes would take 1 GB for them.
        names = names if table.index.equals(names) else table.index
        tables[plate] = table.set_axis(names)
    if manifests is not None and genes == "same":
        missing |= plates_with_other_genes(tables)
    if len(missing) == len(paths):
        raise InputError(f"all {len(paths):,} plates are left out:\n{sentences(missing)}")
    kept = {plate: table for plate, table in tables.items() if plate not in missing}
    return kept, missing


if __name__ == "__main__":
    script.run_main(main)
