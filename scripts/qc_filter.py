"""Decide which cells of a plate to keep, from its QC metrics alone."""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io import METRICS, atomic_path, open_tables, write_cells, write_json
from scatlas.io.tables.genes import why_bound_cannot_act
from scatlas.workflow import script
from scatlas.workflow.cell_filter import (
    BOUNDS,
    drop_outliers,
    mitochondrial_bound,
    qc_filter,
    read_columns,
)
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.plate_sections import QC
from scatlas.workflow.config.values import query_columns

if TYPE_CHECKING:
    from scatlas.io.tables.table import Table


logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, may_skip=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--table", type=Path, required=True, help="qc.parquet to write")
    parser.add_argument("--summary", type=Path, required=True, help="qc_summary.json to write")
    # From the environment: a change of the columns to mix does not rerun this step.
    parser.add_argument(
        "--mixed-by",
        type=json.loads,
        default=os.environ.get("SCATLAS_MIXED_BY") or "{}",
        metavar="JSON",
        help="obs columns that all kept cells need, each with the plates that need it (null: all)",
    )
    add_sections(parser, qc=QC)
    args = parser.parse_args(argv)
    qc = read_section(args, "qc", QC)
    wanted = [*METRICS, *(query_columns(qc.filter) if qc.filter else ())]
    with (
        script.recorded_run(args, outputs=[args.table, args.summary]) as facts,
        open_tables(args.store) as (cells, genes),
    ):
        check_bound(args.plate, genes, qc)
        obs = cells.for_query(wanted)
        bounds = {rule: getattr(qc, rule) for rule in ("filter", *BOUNDS)}
        keep, removed = qc_filter(obs, source=f"plate {args.plate}", **bounds)
        if qc.mads:
            options = {"mads": qc.mads, "groups": groups_of(args, qc), "limits": bounds}
            keep, taken, own_bounds = drop_outliers(obs, keep, **options)
            removed |= taken
            bounds |= dict.fromkeys(taken, f"{qc.mads:g} median absolute deviations")
            bounds["mads_pct_mt"] = "3 median absolute deviations and 8 points"
            rows = own_bounds.reset_index(names="group").astype(object)
            facts["bounds"] = rows.where(rows.notna(), None).to_dict("records")
        for name in columns_to_mix(args.mixed_by, args.plate):
            check_complete(args.plate, cells, name, keep)
        table = {name: obs[name] for name in METRICS} | {"keep": keep}
        facts |= {
            "plate": args.plate,
            "n_cells": cells.n_rows,
            "n_kept": int(keep.sum()),
            "n_genes": genes.n_rows,
            "removed": removed,
            "thresholds": bounds,
            "median_counts": median(obs["total_counts"], keep),
            "median_genes": median(obs["n_genes_by_counts"], keep),
        }
        if 2 * keep.sum() < len(keep):
            taken_by = ", ".join(f"{rule} took {n:,}" for rule, n in removed.items())
            few = f"{keep.sum():,} of its {len(keep):,} cells"
            logger.warning("plate %s keeps only %s: %s", args.plate, few, taken_by)
        with atomic_path(args.table) as path:
            write_cells(
                path,
                pd.DataFrame(table, copy=False),
                (cells.names(*span) for span in cells.spans()),
                index_name=cells.index_name,
            )
        write_json(args.summary, facts)


def groups_of(args: argparse.Namespace, qc: QC) -> pd.Categorical | None:
    """Groups of cells that have their bounds; None for the whole plate."""
    if qc.by == "plate":
        return None
    return pd.Categorical(read_columns(args.store, args.plate, [qc.by], key="qc.by")[qc.by])


def check_bound(plate: str, genes: Table, qc: QC) -> None:
    """Refuse a bound that cannot act; `load` has looked only if it stood in the config then."""
    bound = mitochondrial_bound(qc.filter, qc.max_pct_mt)
    if bound and not genes.columns["mt"].take().any():
        why = why_bound_cannot_act(genes, qc.mt_prefix, qc.gene_names, bound)
        raise InputError(f"plate {plate}: {why}")


def columns_to_mix(mixed_by: dict[str, list[str] | None], plate: str) -> list[str]:
    """Columns of integrate.key that the plate itself has to have: the sheet has no label for it."""
    return [name for name, plates in mixed_by.items() if plates is None or plate in plates]


def check_complete(plate: str, cells: Table, name: str, keep: np.ndarray) -> None:
    """Refuse gaps, and a missing column, before hours are spent on what Harmony would refuse."""
    mend = f"give each cell a value, label the plate in the plate sheet (column {name!r}), or"
    if name not in cells.columns:
        raise InputError(
            f"plate {plate} has no obs column {name!r}, which integrate.key names: {mend} name "
            f"another column; it has {', '.join(cells.columns)}"
        )
    n_missing = int(pd.isna(pd.Series(cells.columns[name].take()))[keep].sum())
    if n_missing:
        raise InputError(
            f"plate {plate}: obs[{name!r}], which integrate.key names, has no value for "
            f"{n_missing:,} of the {int(keep.sum()):,} kept cells: {mend} leave them out by "
            "qc.filter"
        )


def median(metric: pd.Series, keep: np.ndarray) -> float:
    """Median of the cells that stay; pandas' own takes forty bytes per cell meanwhile."""
    return float(np.median(metric.to_numpy()[keep], overwrite_input=True))


if __name__ == "__main__":
    script.run_main(main, blocks=False)
