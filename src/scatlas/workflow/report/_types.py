"""Types of the cells in the report: where they are unknown, their genes, how far sources agree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import blocks, pl
from scatlas.columns import name_columns, name_of_gaps
from scatlas.get import aggregate_cells
from scatlas.io import read_matrix
from scatlas.workflow.annotation import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scatlas.workflow.report._page import Picture, ReportWriter, Table
    from scatlas.workflow.report._results import Results

_MAX_TYPES = 40  # of a figure
_N_GENES = 3  # of a type in it
# Snakemake expects them, also without a picture.
_FOLDERS = ("unknown_shares", "type_genes")


def types(
    writer: ReportWriter, results: Results, wanted: Mapping[str, Any]
) -> list[Picture | Table]:
    """Pictures of each source of types, and tables; ``wanted`` is the config's section annotate."""
    clusters, plates, agreement, genes = (
        pd.read_csv(writer.tables / f"annotation{name}.tsv", sep="\t", dtype={"leiden": str})
        for name in ("", "_by_plate", "_agreement", "_genes")
    )
    for folder in _FOLDERS:
        (writer.figures / folder).mkdir(parents=True, exist_ok=True)
    items: list[Picture | Table] = []
    for number, source in enumerate(genes["source"].unique()):
        key = f"{wanted['key']}_{source}" if number else wanted["key"]
        of_source = [table[table["source"] == source] for table in (clusters, plates, genes)]
        items.append(_unknown_shares(writer, key, *of_source[:2]))
        items += _type_genes(writer, results, key, of_source[2])
    names = ["name", "second name", "source"]
    shown = clusters.set_index("leiden").fillna("")
    agreement = agreement.set_index(agreement.columns[0])
    genes = genes.set_index("name")
    return [
        *items,
        writer.table("annotation", "Types of the clusters", shown, names=names, written=True),
        writer.table("annotation_agreement", "Types compared", agreement, written=True),
        writer.table("annotation_genes", "Genes of the types", genes, written=True),
    ]


def _unknown_shares(
    writer: ReportWriter, key: str, clusters: pd.DataFrame, plates: pd.DataFrame
) -> Picture:
    unknown = plates[plates["name"] == UNKNOWN].set_index("plate")
    whole = unknown["n_cells"].sum() / max(plates["n_cells"].sum(), 1)
    shares = clusters.set_index("leiden")[UNKNOWN], unknown["share"]
    return writer.picture(
        "unknown_shares",
        partial(pl.unknown_shares, *shares, whole=whole),
        f"Bars of the cells without {key} in {len(clusters)} clusters and on {len(unknown)} "
        f"plates; {100 * whole:.1f} per cent of all cells.",
        color=key,
        n_clusters=len(clusters),
    )


def _type_genes(
    writer: ReportWriter, results: Results, key: str, genes: pd.DataFrame
) -> list[Picture | Table]:
    """The genes of the types in the sample; none if the atlas holds no such gene."""
    sizes = results.cells.obs[key].value_counts(sort=False)
    largest = sizes[sizes > 0].sort_values(ascending=False, kind="stable").index[:_MAX_TYPES]
    x, var = read_matrix(results.umap)
    best = genes_in_atlas(genes[genes["name"].isin(largest)], var)
    if best.empty:
        return []
    mean, share = means_by_type(x, results.cells.obs, key, best)
    also = [name for name in mean.index if name not in sizes.index]
    picture = writer.picture(
        "type_genes",
        partial(pl.marker_dots, mean, share, best, n_genes=_N_GENES, also=also),
        f"Dot plot of the genes that speak most for {best['group'].nunique()} types.",
        color=key,
        n_groups=int((sizes > 0).sum()),
    )
    return [picture]


def genes_in_atlas(genes: pd.DataFrame, var: pd.DataFrame) -> pd.DataFrame:
    """First genes of each type that are in ``var``, by their names or their symbols: ``group``,
    ``names`` and ``position``.
    """
    lists = genes.set_index("name")["genes"].fillna("").str.split(" ")
    best = lists.explode().rename("names").rename_axis("group").reset_index()
    columns = [var.index, *(var[name] for name in name_columns(var))]
    # Those of which the classifier knows more.
    names = max(columns, key=lambda names: int(names.isin(best["names"]).sum()))
    position = {name: i for i, name in reversed([*enumerate(names)])}
    best = best[best["names"].isin(position)]
    best = best.groupby("group", sort=False).head(_N_GENES)
    return best.assign(position=best["names"].map(position).astype(np.int64))


def means_by_type(
    x: Any, obs: pd.DataFrame, key: str, best: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means of genes, and shares of cells with a count, by type; last those of unknown cells."""
    types = obs[key].cat.remove_unused_categories()
    gaps = name_of_gaps(key, obs, set(types.cat.categories))
    cells = pd.DataFrame({key: types.cat.add_categories(gaps).fillna(gaps)})
    genes = best.drop_duplicates("names")
    some = blocks.select_genes(x, genes["position"].to_numpy())
    groups, sums = aggregate_cells(some, cells, key, func=["mean", "count_nonzero"])
    sizes = groups["n_obs_aggregated"].to_numpy()[:, None]
    table = {"index": groups[key].astype(str), "columns": genes["names"]}
    mean, share = sums["mean"], sums["count_nonzero"] / sizes
    return pd.DataFrame(mean, **table), pd.DataFrame(share, **table)
