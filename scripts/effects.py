"""Compare conditions with their control, gene by gene, on sums of replicates of all plates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import h5py
import pandas as pd
from anndata.io import read_elem

from scatlas.columns import GeneRule
from scatlas.errors import InputError
from scatlas.io import atomic_path, merge_sums, open_tables
from scatlas.io.files.atomic import work_folder
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.matrix.effects_groups import drop_small, fit_groups, label_samples
from scatlas.workflow import script
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Effects
from scatlas.workflow.effects import EffectsWriter, counts_reader


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--sums", nargs="+", required=True, metavar="PLATE=PATH", help="effects.zarr of each plate"
    )
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
        merged, stores = work / "sums.h5ad", script.plate_paths(args.sums)
        merge_sums(
            *(stores, merged),
            labels=args.labels,
            genes=args.genes,
            block_budget=script.block_budget(args),
        )
        with h5py.File(merged) as file:
            obs, genes = read_elem(file["obs"]), read_elem(file["var"]).index
            measured = {}
            for plate, store in stores.items():
                with open_tables(store) as (_, var):
                    measured[plate] = var.read([]).index
            samples = label_samples(
                obs, wanted.condition, wanted.control, wanted.within, wanted.replicate, wanted.block
            )
            samples = samples.assign(
                row=range(len(samples)), n_obs_aggregated=obs["n_obs_aggregated"]
            )
            samples, few = drop_small(samples, wanted.min_cells)
            read, plates = counts_reader(file, measured, genes), obs["plate"].to_numpy()
            options = {"method": wanted.method, "control": wanted.control}

            def counts_of(rows: Any) -> Any:
                return read(rows, plates[rows])

            groups = fit_groups(samples, counts_of, genes, few, **options)
            with (
                atomic_path(args.effects) as path,
                atomic_path(args.tables) as folder,
                create_hdf5(path) as out,
            ):
                folder.mkdir()
                writer = EffectsWriter(out, folder, genes, wanted.within, wanted.condition)
                for found in groups:
                    writer.append(found, p_values=wanted.p_values)
                if not writer.obs:
                    reason = few[0][-1] if few else "no cells have its values"
                    raise InputError(
                        f"effects: {wanted.condition} has no effects ({reason}): name another "
                        "condition, replicate or block"
                    )
                columns = [*wanted.within, wanted.condition, "sample", "reason"]
                left_out = pd.DataFrame(few, columns=columns, dtype=object)
                options |= {"condition": wanted.condition}
                options |= {"block": wanted.block} if wanted.block else {}
                table = writer.finish(options, left_out)
        write_table(args.conditions, table.drop(columns="model"))
        write_table(args.left_out, left_out)
        facts |= {"n_conditions": len(table), "n_genes": len(genes), "n_sums": len(samples)}
        facts["n_left_out"] = len(left_out)


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a table as TSV."""
    with atomic_path(path) as partial:
        table.to_csv(partial, sep="\t", index=False, lineterminator="\n")


if __name__ == "__main__":
    script.run_main(main)
