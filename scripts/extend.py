"""Write a new version of an atlas, with the cells of the plates that were mapped onto it."""

from __future__ import annotations

import json
from pathlib import Path

from scatlas.io.products.assemble_atlas import extend
from scatlas.workflow import provenance, script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--old", type=Path, required=True, help="atlas.zarr, which stays as it is")
    parser.add_argument(
        "--mapped", nargs="+", required=True, metavar="PLATE=PATH", help="mapped/PLATE.zarr of each"
    )
    parser.add_argument("--plates", type=json.loads, required=True, help="rows of the sheet: JSON")
    parser.add_argument("--manifests", type=Path, required=True, help="folder of all manifests")
    parser.add_argument("--atlas", type=Path, required=True, help="atlas.zarr to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.atlas]) as facts:
        facts |= extend(
            args.old,
            script.plate_paths(args.mapped),
            args.atlas,
            record=provenance.extended_record(args.old, args.plates, args.manifests),
            block_budget=script.block_budget(args),
        )


if __name__ == "__main__":
    script.run_main(main, blocks=False)
