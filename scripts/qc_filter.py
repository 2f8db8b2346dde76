"""Decide which cells of a plate stay, from its QC metrics alone."""

from __future__ import annotations

from pathlib import Path

from scatlas import config, step
from scatlas.io import METRICS, atomic_path, open_counts, write_json
from scatlas.pp import qc_filter


def main(argv: list[str] | None = None) -> None:
    parser = step.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--table", type=Path, required=True, help="qc.parquet to write")
    parser.add_argument("--summary", type=Path, required=True, help="qc_summary.json to write")
    config.add_options(parser, config.QC)
    args = parser.parse_args(argv)
    qc = config.from_options(args, config.QC)
    with step.run(args, outputs=[args.table, args.summary]) as facts:
        with open_counts(args.store) as source:
            obs, n_genes = source.obs(), source.shape[1]
        bounds = qc.model_dump(exclude={"mt_prefix", "min_cells"})
        keep, removed = qc_filter(obs, source=f"plate {args.plate}", **bounds)
        kept = obs.loc[keep]
        facts |= {
            "plate": args.plate,
            "n_cells": len(obs),
            "n_kept": len(kept),
            "n_genes": n_genes,
            "removed": removed,
            "thresholds": bounds,
            "median_counts": float(kept["total_counts"].median()),
            "median_genes": float(kept["n_genes_by_counts"].median()),
        }
        with atomic_path(args.table) as path:
            obs[list(METRICS)].assign(keep=keep).to_parquet(path)
        write_json(args.summary, facts)


if __name__ == "__main__":
    step.execute(main)
