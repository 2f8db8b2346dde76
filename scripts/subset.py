"""Sample cells of the atlas without replacement, by strata if asked, read in storage order."""

from __future__ import annotations

import logging
from pathlib import Path

from scatlas.io import atomic_path, read_subset
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.workflow import script
from scatlas.workflow.config.atlas_sections import Map, Subset
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.sample import ATLAS_ROW
from scatlas.workflow.sizes import sample_size
from scatlas.workflow.strata import choose_cells, read_strata

logger = logging.getLogger("scatlas")


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--atlas", type=Path, required=True, help="atlas.zarr")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--subset", type=Path, required=True, help="subset.h5ad to write")
    add_sections(parser, subset=Subset, map=Map)
    args = parser.parse_args(argv)
    subset, of_map = read_section(args, "subset", Subset), read_section(args, "map", Map)
    with script.recorded_run(args, outputs=[args.subset]) as facts:
        n_cells, n_comps = open_with_zarr_python(args.atlas)["obsm/X_pca"].shape
        wanted = sample_size(n_cells, n_comps, subset, of_map)
        if wanted == n_cells:
            logger.info("the atlas has %s cells: all of them are taken", f"{n_cells:,}")
        strata = None
        if subset.by and wanted < n_cells:
            strata = read_strata(args.atlas, subset.by, most=wanted)
            facts["n_strata"] = int(strata.max(initial=-1)) + 1
        chosen = choose_cells(n_cells, wanted, args.seed, strata=strata, min_cells=subset.min_cells)
        adata = read_subset(args.atlas, chosen, block_budget=script.block_budget(args))
        adata.obs[ATLAS_ROW] = chosen
        # It may change while the atlas stays the same, and this step is not run again for that.
        adata.uns.pop("scatlas", None)
        with atomic_path(args.subset) as path:
            write_h5ad(path, adata)
        facts |= {"n_cells": adata.n_obs, "n_cells_of_atlas": n_cells}


if __name__ == "__main__":
    script.run_main(main)
