"""Compare conditions with their control, gene by gene, on sums of replicates of all plates."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from scatlas.columns import GeneRule
from scatlas.io import atomic_path, merge_sums
from scatlas.io.files.atomic import work_folder
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Effects
from scatlas.workflow.effects import EffectsWriter, Sums, read_distances


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--sums", nargs="+", required=True, metavar="PLATE=PATH", help="effects.zarr of each plate"
    )
    parser.add_argument("--edistance", type=Path, required=True, help="edistance.tsv")
    parser.add_argument("--genes", choices=get_args(GeneRule), default="same")
    script.add_labels(parser)
    add_sections(parser, effects=Effects)
    parser.add_argument("--effects", type=Path, required=True, help="effects.h5ad to write")
    parser.add_argument("--tables", type=Path, required=True, help="folder of Parquet files")
    parser.add_argument("--conditions", type=Path, required=True, help="table of the conditions")
    parser.add_argument("--left-out", type=Path, required=True, help="table of those without")
    args = parser.parse_args(argv)
    wanted = read_section(args, "effects", Effects)
    outputs = [args.effects, args.tables, args.conditions, args.left_out]
    with (
        script.recorded_run(args, outputs=outputs) as facts,
        work_folder(args.effects) as work,
    ):
        merged, stores = work / "sums.zarr", script.plate_paths(args.sums)
        merge_sums(
            *(stores, merged),
            labels=args.labels,
            genes=args.genes,
            block_budget=script.block_budget(args),
        )
        sums = Sums.read(merged, stores, wanted)
        with (
            atomic_path(args.effects) as path,
            atomic_path(args.tables) as folder,
            create_hdf5(path) as out,
        ):
            folder.mkdir()
            writer = EffectsWriter(out, folder, sums.genes, wanted)
            for key, found in sums.effects(wanted):
                writer.append(key, found, work)
                del found  # and its counts, before those of the next group are read
            distances = read_distances(args.edistance, wanted)
            table, left_out = writer.finish(sums.left_out, distances)
        script.write_table(args.conditions, table)
        script.write_table(args.left_out, left_out)
        facts |= {"n_conditions": len(table), "n_genes": len(sums.genes)}
        facts |= {"n_sums": len(sums.samples), "n_left_out": len(left_out)}


if __name__ == "__main__":
    script.run_main(main)
