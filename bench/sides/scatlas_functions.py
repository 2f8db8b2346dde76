"""From plates to X_pca with scatlas's functions, as in a notebook, without the workflow.

    python bench/sides/scatlas_functions.py OUT --plates a.h5ad b.h5ad --comps 300

Opens each plate lazily, computes totals and highly variable genes in one pass, and appends the
genes that are found on enough plates to one store. Then computes the components and writes them.
Prints one JSON line per step.
"""

from __future__ import annotations

import shutil

import anndata  # noqa: F401  (otherwise the first step would import it)
import dask.array  # noqa: F401
import numba  # noqa: F401
import numpy as np
import pandas as pd
import scipy.linalg  # noqa: F401
import side
import zarr  # noqa: F401
from side import step

import scatlas as sa
from scatlas import blocks
from scatlas.compute.memory import reuse_memory
from scatlas.matrix.components import components
from scatlas.matrix.gram import GramAccumulator
from scatlas.matrix.hvg_shares import hvg_of_share_moments, totals_and_share_moments
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import size_factors
from scatlas.workflow.consensus import consensus_genes


def main() -> None:
    args = side.parser(__doc__).parse_args()
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    with step("start"):
        reuse_memory()
    plates, tables = {}, {}
    for number, path in enumerate(args.plates):
        plate = f"plate{number}"
        with step("open"):
            x, var = sa.io.read_matrix(path, compact=True)
            with sa.io.open_tables(path) as (table, _):
                obs = table.read()
            keep = (obs["pass_filter"] == "full").to_numpy()
        with step("hvg"):
            totals, moments = totals_and_share_moments(x, keep)
            factors = np.full(totals.size, np.nan)  # NaN excludes a cell
            factors[keep], target = size_factors(totals[keep])
            tables[plate] = hvg_of_share_moments(moments, var.index, target, n_top_genes=args.top)
        plates[plate] = x, var, obs[keep], factors
    with step("consensus"):
        genes = consensus_genes(tables, min_plates=args.min_plates).index
    with step("write"):
        merged = args.out / "merged.zarr"
        with (
            sa.io.CsrWriter(merged, n_vars=genes.size, data_dtype=np.float32) as writer,
            GramAccumulator(genes.size) as gram,
        ):
            for x, var, _, factors in plates.values():
                at = var.index.get_indexer(genes)
                for block in blocks.stream(select_and_log_normalize(x, at, size_factors=factors)):
                    gram.add(block)
                    writer.append(block)
            kept = [obs.assign(plate=plate) for plate, (_, _, obs, _) in plates.items()]
            writer.obs, writer.var = pd.concat(kept), var.loc[genes]
    with step("pca"):
        found = components(gram.result(), args.comps)
        x, _ = sa.io.read_matrix(merged, block_budget="32MB")
        sa.io.write_pca(
            args.out / "pca.zarr",
            x_pca=blocks.stream(found.project(x)),
            n_cells=x.shape[0],
            components=found,
            genes=genes,
            params={"zero_center": True, "use_highly_variable": True},
        )
    side.write_result(
        args.out,
        found.PCs,
        n_cells=x.shape[0],
        hvgs=[sorted(table.index[table["highly_variable"]]) for table in tables.values()],
        genes=genes.tolist(),
        variance=found.variance.tolist(),
    )


if __name__ == "__main__":
    main()
