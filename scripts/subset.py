"""Sample cells without replacement, by strata if asked: their rows, and their components."""

from __future__ import annotations

import logging
from pathlib import Path

from scatlas.io.files.local_zarr import open_rows
from scatlas.io.matrices.subset import take_rows
from scatlas.io.products.embeddings import write_parts
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import Map, Subset
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.sample import ATLAS_ROW
from scatlas.workflow.sizes import sample_size
from scatlas.workflow.strata import choose_cells, read_strata

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr")
    script.add_obsm(parser)
    parser.add_argument("--merged", type=Path, help="merged.zarr, for strata")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--subset", type=Path, required=True, help="subset.zarr to write")
    add_sections(parser, subset=Subset, map=Map)
    args = parser.parse_args(argv)
    subset, of_map = read_section(args, "subset", Subset), read_section(args, "map", Map)
    with script.recorded_run(args, outputs=[args.subset]) as facts:
        n_cells, n_comps = open_rows(args.pca, "X_pca").shape
        wanted = sample_size(n_cells, n_comps, subset, of_map)
        strata = None
        if subset.by and wanted < n_cells:
            strata = read_strata(args.merged, subset.by, most=wanted)
            facts["n_strata"] = int(strata.max(initial=-1)) + 1
        chosen = choose_cells(n_cells, wanted, args.seed, strata=strata, min_cells=subset.min_cells)
        components = {}
        if wanted == n_cells:
            logger.info("the atlas has %s cells: all of them are taken", f"{n_cells:,}")
        else:
            for basis, store in (script.plate_paths(args.obsm) or {"X_pca": args.pca}).items():
                components[basis] = take_rows(store, basis, chosen)
        write_parts(args.subset, obs={ATLAS_ROW: chosen}, obsm=components)
        facts |= {"n_cells": wanted, "n_cells_of_atlas": n_cells}


if __name__ == "__main__":
    script.run_main(main)
