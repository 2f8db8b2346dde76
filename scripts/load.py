"""Bring one plate in: validate its counts, store them canonically, take QC metrics on the way."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.io import METRICS, load_plate
from scatlas.workflow import script
from scatlas.workflow.cell_filter import evaluate_filter, mitochondrial_bound
from scatlas.workflow.config.cell_query import query_columns

if TYPE_CHECKING:
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
    parser.add_argument("--origin", help="file of which the source is a part, if it is one")
    parser.add_argument("--store", type=Path, required=True, help="counts.zarr to write")
    parser.add_argument("--mt-prefix", default="MT-", help="how mitochondrial genes begin")
    parser.add_argument("--gene-names", help="var column of these names; its index by default")
    # The checks come through the environment: the workflow must not load a plate again because
    # the filter or a bound, which are not applied here, have changed.
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
    args = parser.parse_args(argv)
    if "://" in args.source:
        logger.info(
            "%s is read where it is: with the storage plugin of Snakemake for such addresses, "
            "changes there would be noticed",
            args.source,
        )
    check = partial(check_filter, args.filter, args.source) if args.filter else None
    with script.run_script(args, outputs=[args.store]) as facts:
        facts |= load_plate(
            args.source,
            args.store,
            plate=args.plate,
            check_obs=check,
            counts_in=args.counts,
            fractional=args.fractional,
            reference=args.reference,
            reference_counts_in=args.reference_counts,
            mt_prefix=args.mt_prefix,
            gene_names=args.gene_names,
            mt_bound=mitochondrial_bound(args.filter, args.max_pct_mt),
            block_budget=script.block_budget(args),
        )


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
