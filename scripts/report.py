"""Draw the figures, write the tables, and bind both into report.html."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scatlas.workflow import report, script


def options() -> argparse.ArgumentParser:
    """Parser of the script's options."""
    parser = script.parser(__doc__)
    for option, file in (
        ("qc", "qc.parquet"),
        ("summaries", "qc_summary.json"),
        ("hvg", "hvg.parquet"),
    ):
        parser.add_argument(
            f"--{option}",
            nargs="+",
            required=True,
            metavar="PLATE=PATH",
            help=f"{file} of each plate",
        )
    parser.add_argument(
        "--doublets", nargs="+", metavar="PLATE=PATH", help="doublets.json of each plate, if any"
    )
    parser.add_argument("--genes", type=Path, required=True, help="consensus_genes.tsv")
    parser.add_argument("--consensus", type=Path, help="manifest of consensus")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr")
    parser.add_argument("--umap", type=Path, help="umap.h5ad, for types or without --atlas")
    parser.add_argument("--atlas", type=Path, help="atlas.zarr, if it has the map of all cells")
    parser.add_argument("--markers", type=Path, help="markers.tsv, if there are marker genes")
    parser.add_argument("--means", type=Path, help="markers.h5ad, if there are marker genes")
    parser.add_argument("--integrated", type=Path, help="integrated.h5ad, if there is one")
    parser.add_argument("--effects", type=Path, help="effects.h5ad, if there is one")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--manifests", type=Path, required=True, help="folder of the manifests")
    parser.add_argument("--config", type=json.loads, required=True, help="the whole config as JSON")
    parser.add_argument("--captions", type=Path, required=True, help="folder of the captions")
    parser.add_argument("--figures", type=Path, required=True, help="folder for the PNGs")
    parser.add_argument("--tables", type=Path, required=True, help="folder for the TSVs")
    parser.add_argument("--report", type=Path, required=True, help="report.html to write")
    return parser


def main(argv: list[str] | None = None) -> None:
    args = options().parse_args(argv)
    # Run times are part of the page, so that its checksum is no fact about the results.
    reports = [args.report, args.figures]
    with script.recorded_run(args, outputs=[], reports=reports) as facts:
        consensus = json.loads(args.consensus.read_text("utf-8")) if args.consensus else {}
        skips = args.config["plates"]["on_error"] == "skip"
        results = report.Results(
            qc=script.plate_paths(args.qc),
            summaries=script.plate_paths(args.summaries),
            hvg=script.plate_paths(args.hvg),
            genes=args.genes,
            pca=args.pca,
            umap=args.umap,
            markers=args.markers,
            means=args.means,
            atlas=args.atlas,
            integrated=args.integrated,
            effects=args.effects,
            labels_store=args.labels,
            doublets=script.plate_paths(args.doublets or []),
            manifests=args.manifests,
            left_out=dict(consensus.get("left_out", {})) if skips else None,
            too_few_cells=consensus.get("too_few_cells", {}),
        )
        facts |= report.build(
            results,
            args.config,
            captions=args.captions,
            figures=args.figures,
            tables=args.tables,
            page=args.report,
        )
        # Those of marker genes, effects and types are outputs of other steps.
        others = ("markers", "effects", "edistance", "composition", "annotation")
        tables = sorted(args.tables.glob("*.tsv"))
        reports += [path for path in tables if not path.stem.startswith(others)]


if __name__ == "__main__":
    script.run_main(main)
