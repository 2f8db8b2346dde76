"""Score the kept cells of one plate as doublets, in four passes over them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.errors import InputError, prefix_errors
from scatlas.io import (
    METRICS,
    atomic_path,
    read_cells,
    read_matrix,
    write_cells,
    write_json,
)
from scatlas.io.tables.cell_parquet import kept_names
from scatlas.matrix.scrublet import scrublet_of_counts
from scatlas.workflow import script
from scatlas.workflow.cell_filter import read_columns
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Doublets

if TYPE_CHECKING:
    from scatlas.matrix.scrublet import Capture
    from scatlas.matrix.scrublet import Doublets as DoubletScores

logger = logging.getLogger("scatlas")

# Bins of the histograms in the report.
BINS = np.linspace(0, 1, 101)
# Rates that differ by this factor are no chance: see `without_doubtful_calls`.
MAX_RATIO = 3


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, may_skip=True)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument("--qc-summary", type=Path, required=True, help="its qc_summary.json")
    parser.add_argument("--n-top-genes", type=int, default=2000, help="variable genes to use")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--table", type=Path, required=True, help="doublets.parquet to write")
    parser.add_argument("--summary", type=Path, required=True, help="doublets.json to write")
    add_sections(parser, doublets=Doublets)
    args = parser.parse_args(argv)
    wanted = read_section(args, "doublets", Doublets)
    with (
        script.recorded_run(args, outputs=[args.table, args.summary]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        table = read_cells(args.qc, [*METRICS, "keep"])
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        keep, captures = table["keep"].to_numpy(), None
        if by := wanted.by:
            captures = read_columns(args.store, args.plate, [by], key="doublets.by")[by]
        found = scrublet_of_counts(
            x,
            var.index,
            mask=keep,
            batch=captures,
            expected_doublet_rate=wanted.expected_doublet_rate,
            threshold=wanted.threshold,
            n_top_genes=args.n_top_genes,
            random_state=args.seed,
        )
        found, doubts = without_doubtful_calls(found, wanted, args.plate)
        table["doublet_score"], table["predicted_doublet"] = found.score, found.predicted
        if wanted.filter:
            table["keep"] = keep & ~found.predicted
            if not table["keep"].any():
                msg = f"plate {args.plate}: all cells are predicted doublets: raise the threshold"
                raise InputError(msg)
        summary = json.loads(args.qc_summary.read_text("utf-8"))
        facts |= plate_summary(summary, table, found, wanted)
        for name, doubt in doubts.items():
            facts["captures"][name]["doubt"] = doubt
        with atomic_path(args.table) as path:
            index_name, names = kept_names(args.qc, np.ones(len(table), bool))
            write_cells(path, table, names, index_name=index_name)
        write_json(args.summary, facts)


def without_doubtful_calls(
    found: DoubletScores, wanted: Doublets, plate: str
) -> tuple[DoubletScores, dict[str, str]]:
    """The same without predictions that are noise, and a sentence on each capture in doubt.

    Of simulated cells without doublets, 4% to 41% were predicted among 200 or 300 cells of 8 lines,
    0.4% at most from 500 cells on. Among 60 to 2,000 cells of one line, 1% to 75% were, which the
    detectable share of the simulated doublets makes 38% to 325% of all cells.
    """
    predicted, captures, doubts = found.predicted.copy(), dict(found.captures), {}
    expected = wanted.expected_doublet_rate
    for name, capture in found.captures.items() if wanted.threshold is None else ():
        n, facts = capture.cells.size, capture_facts(capture, found.score)
        rate = facts["n_doublets"] / max(1, n) / (facts["detectable"] or 1.0)
        if n < wanted.min_cells:
            doubt = f"{n:,} cells are too few to tell doublets (doublets.min_cells)"
        elif rate > MAX_RATIO * expected or rate < expected / MAX_RATIO:
            doubt = (
                f"by their scores {rate:.1%} of the cells are doublets, {expected:.1%} are expected"
            )
        else:
            continue
        if n < wanted.min_cells or rate > expected:
            captures[name] = capture._replace(threshold=None)
            predicted[capture.cells] = False
            doubt += ": none is predicted; look at the histogram, and give doublets.threshold"
        else:
            doubt += ": look at the histogram, and correct doublets.expected_doublet_rate"
        doubts[name] = doubt
        logger.warning("plate %s%s: %s", plate, f", {name}" if name else "", doubt)
    return replace(found, predicted=predicted, captures=captures), doubts


def plate_summary(
    summary: dict[str, Any], table: pd.DataFrame, found: DoubletScores, wanted: Doublets
) -> dict[str, Any]:
    """The plate's QC summary with its doublets; removed doublets count as a rule of QC."""
    n_doublets = int(found.predicted.sum())
    if wanted.filter:
        kept = table[table["keep"]]
        summary |= {
            "n_kept": len(kept),
            "removed": {**summary["removed"], "doublets": n_doublets},
            "thresholds": {**summary["thresholds"], "doublets": "predicted_doublet"},
            "median_counts": float(kept["total_counts"].median()),
            "median_genes": float(kept["n_genes_by_counts"].median()),
        }
    named = {name: capture_facts(capture, found.score) for name, capture in found.captures.items()}
    return {**summary, "n_doublets": n_doublets, "captures": named}


def capture_facts(capture: Capture, score: np.ndarray) -> dict[str, Any]:
    """Rates and histograms of a capture."""
    obs, sim = score[capture.cells], capture.scores_sim
    facts = {
        "n_cells": capture.cells.size,
        "threshold": capture.threshold,
        "n_doublets": 0,
        "detectable": None,
        "histogram": {
            "observed": np.histogram(obs, BINS)[0].tolist(),
            "simulated": np.histogram(sim, BINS)[0].tolist(),
        },
    }
    if capture.threshold is not None and sim.size:
        facts["n_doublets"] = int((obs > capture.threshold).sum())
        facts["detectable"] = float((sim > capture.threshold).mean())
    return facts


if __name__ == "__main__":
    script.run_main(main)
