"""Sum the raw counts of one plate's kept cells by group, in one pass over its counts."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
from anndata.io import read_elem
from scipy import sparse

from scatlas.errors import prefix_errors
from scatlas.get import aggregate_cells
from scatlas.io import CsrWriter, read_cells, read_matrix
from scatlas.matrix.effects_groups import read_labels
from scatlas.workflow import script
from scatlas.workflow.cell_filter import read_columns

# Sums that are made sparse at once.
AT_ONCE = 2**22


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument("--sums", type=Path, required=True, help="pseudobulk.zarr to write")
    parser.add_argument("--by", nargs="+", required=True, help="obs columns of the groups")
    parser.add_argument("--key", default="pseudobulk.by", help="what in the config names them")
    parser.add_argument("--complete", nargs="*", default=[], help="those that may have no gaps")
    parser.add_argument("--groups", type=Path, help="cell_groups.h5, if it has them")
    parser.add_argument(
        "--labels", type=json.loads, default="{}", metavar="JSON", help="values of all cells"
    )
    args = parser.parse_args(argv)
    with (
        script.recorded_run(args, outputs=[args.sums]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        keep = read_cells(args.qc, ["keep"])["keep"].to_numpy()
        if args.groups:
            with h5py.File(args.groups) as file:
                kept = read_elem(file[args.plate])[args.by]
            rows = np.where(keep, np.cumsum(keep) - 1, -1)
            cells = kept.set_axis(range(len(kept))).reindex(rows)
        else:
            own = [name for name in args.by if name not in args.labels]
            cells = read_columns(args.store, args.plate, own, key=args.key)
            cells = cells.assign(**args.labels)
        whole = {f"{args.key} {name}": name for name in args.complete}
        read_labels(cells[keep], whole)
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        groups, layers = aggregate_cells(x, cells, args.by, func="sum", mask=keep)
        some = np.flatnonzero(groups["n_obs_aggregated"] > 0)  # else QC has taken all its cells
        sums, rows = layers["sum"], max(1, AT_ONCE // max(1, len(var)))
        with CsrWriter(args.sums, n_vars=len(var), data_dtype=np.int64, var=var) as writer:
            for first in range(0, some.size, rows):
                writer.append(sparse.csr_matrix(sums[some[first : first + rows]]))
            writer.obs = groups.iloc[some]
        n_cells = int(groups["n_obs_aggregated"].sum())
        facts |= {"plate": args.plate, "n_groups": some.size, "n_cells": n_cells}


if __name__ == "__main__":
    script.run_main(main)
