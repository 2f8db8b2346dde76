"""Components from the Gram statistics of all plates, then one pass to project the cells."""

from __future__ import annotations

from pathlib import Path

from scatlas import blocks
from scatlas.arrays.kinds import kind_of
from scatlas.get import on_backend
from scatlas.io import StoredGram, read_matrix, write_pca
from scatlas.matrix.components import components
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.gram import gram_stats_of_plates
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import PCA, Scale
from scatlas.workflow.config.cli_options import add_sections, read_section


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--grams", nargs="+", type=Path, required=True, help="gram.zarr of each")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr to write")
    add_sections(parser, pca=PCA, scale=Scale)
    args = parser.parse_args(argv)
    pca = read_section(args, "pca", PCA)
    with script.recorded_run(args, outputs=[args.pca]) as facts:
        sizes = script.block_sizes(args)
        # Smaller blocks: a projected cell takes more than its counts, here and in the writer.
        sizes["block_budget"] //= 4 if script.on_gpu(args) else 8
        x, var = read_matrix(args.merged, **sizes)
        x, zeros = on_backend(x), None
        stats = gram_stats_of_plates(x, [StoredGram.open(path) for path in args.grams])
        if "scale" in args.config:
            wanted = read_section(args, "scale", Scale)
            scale = GeneScale.from_stats(stats, **wanted.model_dump())
            x, zeros = scale.shift(x), scale.zeros
            stats = scale.stats(stats, x)
        found = components(stats, pca.n_comps, zero_center=pca.zero_center, gpu=kind_of(x).gpu)
        projected = found.project(x, zero_center=pca.zero_center, zeros=zeros)
        write_pca(
            args.pca,
            x_pca=blocks.stream(projected, blocks.on_host),
            n_cells=x.shape[0],
            components=found,
            genes=var.index,
            params={
                "zero_center": pca.zero_center,
                "use_highly_variable": True,
                "mask_var": "highly_variable",
            },
        )
        facts |= {"n_cells": x.shape[0], "n_genes": x.shape[1], "n_comps": pca.n_comps}
        facts["variance_explained"] = float(found.variance_ratio.sum())


if __name__ == "__main__":
    script.run_main(main)
