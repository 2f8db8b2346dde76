"""Put components of another method in the order of the atlas's cells."""

from __future__ import annotations

from pathlib import Path

from scatlas.io import open_tables, write_embedding
from scatlas.workflow import script
from scatlas.workflow.latent import read_latent


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--use", type=Path, required=True, help="h5ad file or Zarr store of cells")
    parser.add_argument("--use-rep", required=True, help="key of obsm, there and in the atlas")
    parser.add_argument("--latent", type=Path, required=True, help="latent.zarr to write")
    args = parser.parse_args(argv)
    with script.recorded_run(args, outputs=[args.latent]) as facts:
        with open_tables(args.merged) as (obs, _):
            cells = obs.index()
        values = read_latent(args.use, args.use_rep, cells)
        write_embedding(args.latent, args.use_rep, values)
        facts |= {"n_cells": len(values), "n_comps": values.shape[1]}


if __name__ == "__main__":
    script.run_main(main)
