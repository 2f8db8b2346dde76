"""Sum the raw counts of one plate's kept cells by group, in one pass over its counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

from scatlas.errors import prefix_errors
from scatlas.get import aggregate_cells
from scatlas.io import CsrWriter, read_cells, read_matrix
from scatlas.workflow import script
from scatlas.workflow.cell_filter import read_columns
from scatlas.workflow.config.cli_options import add_sections, read_section
from scatlas.workflow.config.sections import Pseudobulk
from scatlas.workflow.labels import Labels

# Sums that are made sparse at once.
AT_ONCE = 2**22


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument("--plate", required=True, help="name of the plate")
    parser.add_argument("--store", type=Path, required=True, help="the plate's counts.zarr")
    parser.add_argument("--qc", type=Path, required=True, help="the plate's qc.parquet")
    parser.add_argument("--sums", type=Path, required=True, help="pseudobulk.zarr to write")
    parser.add_argument("--names", type=Path, help="labels.zarr, if cells have labels")
    add_sections(parser, pseudobulk=Pseudobulk)
    args = parser.parse_args(argv)
    by = read_section(args, "pseudobulk", Pseudobulk).by
    with (
        script.recorded_run(args, outputs=[args.sums]) as facts,
        prefix_errors(f"plate {args.plate}"),
    ):
        keep = read_cells(args.qc, ["keep"])["keep"].to_numpy()
        labels = Labels.open(args.names)
        own = [name for name in by if name not in labels.obs]
        cells = read_columns(args.store, args.plate, own, key="pseudobulk.by")
        rows = np.full(keep.size, -1)
        rows[keep] = np.arange(np.count_nonzero(keep))
        for name in set(by) - set(own):
            kept = labels.values(name, *labels.rows[args.plate])
            cells[name] = pd.api.extensions.take(kept, rows, allow_fill=True)
        x, var = read_matrix(args.store, compact=True, **script.block_sizes(args))
        groups, layers = aggregate_cells(x, cells, by, func="sum", mask=keep)
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
