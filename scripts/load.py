"""Bring one plate in: validate its counts, store them canonically, take QC metrics on the way."""

from __future__ import annotations

import argparse
import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.io import METRICS, load_plate
from scatlas.io.files.cell_files import ListColumns
from scatlas.io.matrices.source import Sample
from scatlas.io.products.load_statistics import write_moments
from scatlas.workflow import script
from scatlas.workflow.cell_filter import (
    BOUNDS,
    evaluate_filter,
    kept_by_bounds,
    mitochondrial_bound,
)
from scatlas.workflow.config.values import decides_each_cell_alone, query_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.io.products.load_statistics import KeptCells
    from scatlas.io.tables.table import Table

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, may_skip=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--source", required=True, help="h5ad or Zarr store, path or URL")
    parser.add_argument("--counts", default="X", help="where the counts are: X, raw, layers/NAME")
    parser.add_argument(
        "--fractional",
        choices=["refuse", "round"],
        default="refuse",
        help="what to do with fractional counts",
    )
    parser.add_argument("--by", help="of Parquet files, the column that names the plates")
    parser.add_argument("--sample", help="and this plate's name there")
    parser.add_argument(
        "--lists", type=json.loads, default={}, metavar="JSON", help="genes and marker of Parquet"
    )
    parser.add_argument("--origin", help="file of which the source is a part, if it is one")
    parser.add_argument("--store", type=Path, required=True, help="counts.zarr to write")
    parser.add_argument("--mt-prefix", default="MT-", help="how mitochondrial genes begin")
    parser.add_argument("--gene-names", help="var column of these names; its index by default")
    parser.add_argument("--moments", type=Path, help="moments.parquet to write")
    add_environment_options(parser)
    args = parser.parse_args(argv)
    if "://" in args.source:
        logger.info(
            "%s is read where it is: with the storage plugin of Snakemake for such addresses, "
            "changes there would be noticed",
            args.source,
        )
    check = partial(check_filter, args.filter, args.source) if args.filter else None
    # A cache, and so no part of the manifest: see scatlas.io.products.load_statistics.
    caches = [args.moments] if args.moments else []
    with script.recorded_run(args, outputs=[args.store], reports=caches) as facts:
        kept = cells_of_moments(args)
        facts |= load_plate(
            args.source,
            args.store,
            plate=args.plate,
            check_obs=check,
            counts_in=args.counts,
            sample=Sample(args.by, args.sample) if args.by else None,
            lists=ListColumns(**args.lists),
            fractional=args.fractional,
            reference=args.reference,
            reference_counts_in=args.reference_counts,
            mt_prefix=args.mt_prefix,
            gene_names=args.gene_names,
            mt_bound=mitochondrial_bound(args.filter, args.max_pct_mt),
            kept_cells=kept,
            moments=args.moments if kept else None,
            block_budget=script.block_budget(args),
        )


def add_environment_options(parser: argparse.ArgumentParser) -> None:
    """Add the options with defaults from the environment.

    The workflow must not load a plate again because the filter or a bound have changed. They decide
    no byte of the store, and `hvg` verifies of which cells the moments are.
    """
    parser.add_argument(
        "--kept-cells",
        type=json.loads,
        default=os.environ.get("SCATLAS_KEPT_CELLS") or '{"unknown": "no bounds are given"}',
        metavar="JSON",
        help="bounds of the cells to take moments of, or why they are not known",
    )
    parser.add_argument(
        "--filter",
        default=os.environ.get("SCATLAS_QC_FILTER") or None,
        help="cell query that has to work on this plate",
    )
    parser.add_argument(
        "--max-pct-mt",
        type=float,
        default=os.environ.get("SCATLAS_MAX_PCT_MT") or None,
        help="bound that has to be able to act on this plate",
    )
    parser.add_argument(
        "--reference",
        default=os.environ.get("SCATLAS_REFERENCE_PLATE") or None,
        help="plate whose genes this plate must have",
    )
    parser.add_argument(
        "--reference-counts",
        default=os.environ.get("SCATLAS_REFERENCE_COUNTS") or "X",
        help="where its counts are",
    )


def cells_of_moments(args: argparse.Namespace) -> Callable[[Table], KeptCells] | None:
    """The kept cells, if the settings alone decide them; else write and log why not."""
    if args.moments is None:
        return None
    reason = args.kept_cells.get("unknown")
    if reason is None:
        bounds = {rule: args.kept_cells["bounds"][rule] for rule in ("filter", *BOUNDS)}
        expression = bounds["filter"]
        if not (
            expression
            and set(METRICS).intersection(query_columns(expression))
            and not decides_each_cell_alone(expression)
        ):
            return kept_by_bounds(bounds, args.source)
        reason = f"qc.filter ({expression}) may compare the metrics of all cells"
    logger.info("plate %s: no moments for hvg, because %s", args.plate, reason)
    write_moments(args.moments, reason)
    return None


def check_filter(expression: str, source: str, obs: Table) -> None:
    """Whether the filter will work, before hours are spent; its QC metrics are not known yet."""
    asked = query_columns(expression)
    unknown = [metric for metric in METRICS if metric in asked]
    frame = obs.for_query(name for name in asked if name not in METRICS)
    evaluate_filter(
        frame.assign(**dict.fromkeys(unknown, 0.0)),
        expression,
        source=source,
        allow_none=bool(unknown),
    )


if __name__ == "__main__":
    script.run_main(main)
