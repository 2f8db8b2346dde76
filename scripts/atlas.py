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
    parser.add_argument("--harmony", type=Path, help="harmony.zarr, if all cells were mixed")
    parser.add_argument("--genes", type=Path, required=True, help="consensus.parquet")
    parser.add_argument("--atlas", type=Path, required=True, help="atlas.zarr to write")
    parser.add_argument("--recipe", required=True, help="settings and plates, as JSON")
    parser.add_argument("--manifests", type=Path, required=True, help="folder of all manifests")
    args = parser.parse_args(argv)
    with script.run_script(args, outputs=[args.atlas]) as facts:
        genes = pd.read_parquet(args.genes)
        uns = {"scatlas": provenance.record(args.recipe, args.manifests)}
        obsm = {"X_pca_harmony": args.harmony} if args.harmony else {}
        facts |= assemble(args.merged, args.pca, args.atlas, var=genes, obsm=obsm, uns=uns)


if __name__ == "__main__":
    script.run_main(main)
