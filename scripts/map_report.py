"""Show where the cells of new plates lie on the atlas, what they are and how well they fit."""

from __future__ import annotations

import logging
from pathlib import Path

from scatlas.workflow import report, script

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--reference", type=Path, required=True, help="reference.h5ad")
    for option, file in (("mapped", "mapped/PLATE.zarr"), ("facts", "manifest of map_plate")):
        parser.add_argument(
            f"--{option}",
            nargs="+",
            required=True,
            metavar="PLATE=PATH",
            help=f"{file} of each plate",
        )
    parser.add_argument("--captions", type=Path, required=True, help="folder of the captions")
    parser.add_argument("--figures", type=Path, required=True, help="folder for the PNGs")
    parser.add_argument("--formats", nargs="*", default=[], help="of the figures, beside PNG")
    parser.add_argument("--tables", type=Path, required=True, help="folder for the TSVs")
    parser.add_argument("--report", type=Path, required=True, help="report.html to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.report, args.figures, args.tables]) as facts:
        results = report.NewPlates(
            args.reference, script.plate_paths(args.mapped), script.plate_paths(args.facts)
        )
        facts |= report.build_new_plates(
            results,
            captions=args.captions,
            figures=args.figures,
            tables=args.tables,
            page=args.report,
            formats=args.formats,
        )
        logger.info("%s", facts["advice"])


if __name__ == "__main__":
    script.run_main(main)
