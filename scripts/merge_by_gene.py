"""Put the plates' counts by gene together, in the order of the plate sheet, as links."""

from __future__ import annotations

from pathlib import Path

from scatlas.io import join_pieces
from scatlas.workflow import script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--pieces", nargs="+", required=True, metavar="PLATE=PATH", help="by_gene.zarr of each"
    )
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--by-gene", type=Path, required=True, help="by_gene.zarr to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.by_gene]) as facts:
        facts |= join_pieces(script.plate_paths(args.pieces), args.merged, args.by_gene)


if __name__ == "__main__":
    script.run_main(main)
