"""Mix all cells of the plates in the space of the components, by Harmony."""

from __future__ import annotations

import json
from pathlib import Path

from scatlas.errors import InputError
from scatlas.get import on_backend
from scatlas.io import open_tables, write_embedding
from scatlas.io.files.local_zarr import open_rows
from scatlas.io.products.embeddings import component_blocks
from scatlas.matrix.harmony import fits_gpu, mix_rows
from scatlas.matrix.harmony_rows import scratch_rows
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Harmony


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__, gpu=True)
    parser.set_defaults(cluster="")  # works in this process, on one GPU
    parser.add_argument("--merged", type=Path, required=True, help="merged.zarr")
    parser.add_argument("--pca", type=Path, required=True, help="pca.zarr")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--harmony", type=Path, required=True, help="harmony.zarr to write")
    add_sections(parser, harmony=Harmony)
    args = parser.parse_args(argv)
    options = read_section(args, "harmony", Harmony).model_dump()
    key, n_pcs = options.pop("key"), options.pop("n_pcs")
    with script.recorded_run(args, outputs=[args.harmony]) as facts:
        with open_tables(args.merged) as (obs, _):
            for name in key:
                if name not in obs.columns:
                    raise InputError(
                        f"the plates have no obs column {name!r} in common, which integrate.key "
                        f"names; they have {', '.join(obs.columns)}"
                    )
            labels = obs.read(key, index=False)
        shape = (len(labels), n_pcs or open_rows(args.pca, "X_pca").shape[1])
        folder, gpu = args.harmony.parent, script.on_gpu(args) and fits_gpu(*shape)
        with (
            scratch_rows(*shape, folder, gpu=gpu) as x,
            scratch_rows(*shape, folder, gpu=gpu) as moved,
        ):
            for first, block in component_blocks(args.pca, n_pcs):
                x[first : first + len(block)] = on_backend(block) if gpu else block
            mixed = mix_rows(x, moved, dict(labels.items()), random_state=args.seed, **options)
            # What new plates are compared with.
            clusters = {"sizes": mixed.sums[:, -1], "sums": mixed.sums[:, :-1]}
            facts_of_clusters = {"sigma": str(mixed.sigma), "key": json.dumps(key)}
            write_embedding(
                *(args.harmony, "X_pca_harmony", moved), tables=clusters, params=facts_of_clusters
            )
        facts |= {"n_cells": shape[0], "n_comps": shape[1], "objectives": mixed.objectives}


if __name__ == "__main__":
    script.run_main(main)
