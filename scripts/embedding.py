"""Join the sample with its neighbours, UMAP and clusters."""

from __future__ import annotations

from pathlib import Path

import anndata as ad

from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.workflow import script
from scatlas.workflow.sample import join_sample


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--subset", type=Path, required=True, help="subset.h5ad")
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="h5ad of each step")
    parser.add_argument("--embedding", type=Path, required=True, help="h5ad to write")
    args = parser.parse_args(argv)
    with script.run_script(args, outputs=[args.embedding]) as facts:
        adata = ad.read_h5ad(args.subset)
        for part in args.parts:
            join_sample(adata, part)
        with atomic_path(args.embedding) as path:
            write_h5ad(path, adata)
        facts |= {"n_cells": adata.n_obs, "n_clusters": adata.obs["leiden"].nunique()}


if __name__ == "__main__":
    script.run_main(main)
