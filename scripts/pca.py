"""Components from the plates' summed Gram statistics, then one pass to project the cells."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from scatlas import blocks, config, step
from scatlas.io import read_lazy, write_pca
from scatlas.kernels.project_cpu import project
from scatlas.pp import GramStats, components, scale


def main(argv: list[str] | None = None) -> None:
    parser = step.parser(__doc__)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--grams", nargs="+", type=Path, required=True, help="gram.npz of each")
    parser.add_argument("--scale", action="store_true", help="scale the genes first")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr to write")
    config.add_options(parser, config.PCA)
    config.add_options(parser, config.Scale, prefix="scale")
    args = parser.parse_args(argv)
    pca = config.from_options(args, config.PCA)
    with step.run(args, outputs=[args.pca]) as facts:
        adata = read_lazy(args.merged, block_budget=args.block_budget)
        stats = scaled(adata, args) if args.scale else summed(args.grams)
        found = components(stats, pca.n_comps, zero_center=pca.zero_center)
        offset = found.offset(zero_center=pca.zero_center)
        fn = partial(project, components=found.PCs, offset=offset)
        write_pca(
            args.pca,
            x_pca=blocks.stream(adata.X, fn),
            n_cells=adata.n_obs,
            components=found,
            genes=adata.var_names,
            params={"zero_center": pca.zero_center, "use_highly_variable": True},
        )
        facts |= {"n_cells": adata.n_obs, "n_genes": adata.n_vars, "n_comps": pca.n_comps}
        facts["variance_explained"] = float(found.variance_ratio.sum())


def summed(paths: list[Path]) -> GramStats:
    """Gram statistics of all plates, one plate in memory at a time."""
    total = GramStats.load(paths[0])
    for path in paths[1:]:
        total = GramStats.fold([total, GramStats.load(path)])
    return total


def scaled(adata: object, args: argparse.Namespace) -> GramStats:
    """Gram statistics of the scaled genes: two passes over the merged plates."""
    wanted = config.from_options(args, config.Scale, prefix="scale")
    scale(adata, zero_center=wanted.zero_center, max_value=wanted.max_value)
    return blocks.reduce(GramStats.from_block, GramStats.fold, adata.X)


if __name__ == "__main__":
    step.execute(main)
