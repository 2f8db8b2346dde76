"""Put the atlas together: one AnnData store; chunks that exist are linked, not copied."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from scatlas.io import assemble
from scatlas.workflow import provenance, script


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr")
    script.add_obsm(parser)
    parser.add_argument("--map", type=Path, help="map.zarr, if all cells were mapped")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--genes", type=Path, required=True, help="consensus.parquet")
    parser.add_argument("--atlas", type=Path, required=True, help="atlas.zarr to write")
    parser.add_argument("--recipe", help="settings and plates, as JSON; without: no record")
    parser.add_argument("--manifests", type=Path, help="folder of all manifests, with --recipe")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.atlas]) as facts:
        genes = pd.read_parquet(args.genes)
        record = provenance.record(args.recipe, args.manifests) if args.recipe else None
        facts |= assemble(
            args.merged,
            args.pca,
            args.atlas,
            var=genes,
            obsm=script.plate_paths(args.obsm),
            cell_map=args.map,
            labels=args.labels,
            uns={"scatlas": record} if record else {},
        )


if __name__ == "__main__":
    script.run_main(main)
