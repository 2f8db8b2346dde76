"""Rank the genes of each group of cells, from the sums by group of all plates."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import get_args

import anndata as ad
import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas.columns import GeneRule
from scatlas.io import atomic_path
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.matrix.markers import COLUMNS, markers_to_add, merge_plates, rank_markers
from scatlas.tl import rank_genes_groups
from scatlas.workflow import script
from scatlas.workflow.labels import BY, LABEL, Labels

logger = logging.getLogger("scatlas")

# Means are those of the t-test.
WILCOXON_COLUMNS = COLUMNS[:-2]


def main(argv: list[str] | None = None) -> None:
    parser = script.parser(__doc__)
    parser.add_argument(
        "--sums", nargs="+", required=True, metavar="PLATE=PATH", help="group_sums.h5 with each"
    )
    parser.add_argument("--genes", choices=get_args(GeneRule), default="same")
    parser.add_argument("--atlas-genes", type=Path, help="consensus_genes.tsv")
    parser.add_argument("--n-genes", type=int, default=100, help="marker genes per group")
    parser.add_argument("--min-fold-change", type=float, default=0.0, help="of a marker gene")
    parser.add_argument("--table", type=Path, required=True, help="markers.tsv to write")
    parser.add_argument("--means", type=Path, required=True, help="markers.h5ad to write")
    parser.add_argument("--labels", type=Path, help="labels.zarr, if cells have labels")
    parser.add_argument("--umap", type=Path, help="umap.h5ad, for --wilcoxon")
    parser.add_argument("--wilcoxon", type=Path, help="markers_wilcoxon.tsv to write")
    args = parser.parse_args(argv)
    outputs = [args.table, args.means, *([args.wilcoxon] if args.wilcoxon else [])]
    with script.recorded_run(args, outputs=outputs) as facts:
        sums = merge_plates(script.plate_paths(args.sums), args.genes)
        found = rank_markers(sums, args.n_genes, args.min_fold_change)
        if names := Labels.open(args.labels).names:
            of_cluster = found.table["group"].map(names).fillna("")
            found.table[LABEL] = of_cluster.where(found.table["by"] == BY, "")
        script.write_table(args.table, found.table)
        names = found.groups["by"] + ": " + found.groups["group"]
        means = ad.AnnData(
            layers={"mean": found.mean, "share": found.share},
            obs=found.groups.astype({"by": "category", "group": "category"}).set_axis(names),
            var=pd.DataFrame(index=found.genes),
        )
        with atomic_path(args.means) as path:
            write_h5ad(path, means)
        facts |= {"n_groups": len(found.groups), "n_markers": len(found.table)}
        if args.atlas_genes:
            genes = pd.read_csv(args.atlas_genes, sep="\t", dtype=str, keep_default_na=False)
            # For the report, too.
            facts["to_add"] = markers_to_add(found.table, sums.plate_wise, genes["gene"])
            for sentence in facts["to_add"]:
                logger.info("%s", sentence)
        if args.wilcoxon:
            by = list(found.groups["by"].unique())
            table = markers_of_sample(args.umap, by, args.n_genes, args.min_fold_change)
            script.write_table(args.wilcoxon, table)


def markers_of_sample(
    umap: Path, by: list[str], n_genes: int, min_fold_change: float
) -> pd.DataFrame:
    """Markers among the atlas's genes by Wilcoxon rank sums of the sampled cells."""
    sample = ad.read_h5ad(umap)
    tables = [pd.DataFrame(columns=WILCOXON_COLUMNS)]
    for column in by:
        cells = sample[sample.obs[column].notna()]
        sizes = cells.obs[column].value_counts()
        groups = natsorted(str(name) for name in sizes.index[sizes > 1])
        if (sizes > 0).sum() < 2 or not groups:
            logger.warning("the sampled cells have too few groups of %s to rank genes", column)
            continue
        cells = cells.copy()
        rank_genes_groups(cells, column, groups=groups, method="wilcoxon", pts=True)
        ranked = cells.uns["rank_genes_groups"]
        for group in groups:
            changes = np.exp2(ranked["logfoldchanges"][group])
            best = np.flatnonzero(~(changes < min_fold_change))[:n_genes]
            found = {name: ranked[name][group][best] for name in WILCOXON_COLUMNS[3:-2]}
            for name, key in (("pct_nz_group", "pts"), ("pct_nz_reference", "pts_rest")):
                found[name] = ranked[key].loc[found["names"], group].to_numpy(np.float32)
            ranks = np.arange(1, len(found["names"]) + 1)
            tables.append(pd.DataFrame({"by": column, "group": group, "rank": ranks, **found}))
    return pd.concat(tables[1:] or tables)


if __name__ == "__main__":
    script.run_main(main)
