"""Types of the cells in the report: where they are unknown, their genes, how far sources agree."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd

from scatlas import blocks, pl
from scatlas.columns import known_names, name_of_gaps
from scatlas.io import read_matrix
from scatlas.workflow.annotation import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scatlas.workflow.report._page import Picture, ReportWriter, Table
    from scatlas.workflow.report._results import Results

# Of a figure: types, genes, and genes of each type.
_MAX_TYPES, _MAX_GENES, _N_GENES = 40, 80, 3


def types(
    writer: ReportWriter, results: Results, wanted: Mapping[str, Any]
) -> list[Picture | Table]:
    """Pictures of each source of types, and tables; ``wanted`` is the config's section annotate."""
    clusters, plates, agreement, genes = (
        pd.read_csv(writer.tables / f"annotation{name}.tsv", sep="\t", dtype={"leiden": str})
        for name in ("", "_by_plate", "_agreement", "_genes")
    )
    for folder in ("unknown_shares", "type_genes"):  # Snakemake expects them without pictures, too
        (writer.figures / folder).mkdir(parents=True, exist_ok=True)
    items: list[Picture | Table] = []
    for number, source in enumerate(genes["source"].unique()):
        key = f"{wanted['key']}_{source}" if number else wanted["key"]
        votes, by_plate, first = (t[t["source"] == source] for t in (clusters, plates, genes))
        unknown = by_plate[by_plate["name"] == UNKNOWN].set_index("plate")
        whole = unknown["n_cells"].sum() / max(by_plate["n_cells"].sum(), 1)
        shares = votes.set_index("leiden")[UNKNOWN], unknown["share"]
        draw = partial(pl.unknown_shares, *shares, whole=whole)
        said = f"Bars of the cells without {key}, {whole:.1%} of all, by cluster and by plate."
        n_clusters = len(votes)
        items.append(writer.picture("unknown_shares", draw, said, color=key, n_clusters=n_clusters))
        assert results.umap is not None
        cells, best = genes_of_types(results.umap, results.cells.obs, key, first)
        if best:
            draw = partial(pl.dotplot, cells, best, key)
            said = f"Dot plot of the genes that speak most for {len(best)} types."
            n_groups = results.cells.obs[key].nunique()
            items.append(writer.picture("type_genes", draw, said, color=key, n_groups=n_groups))
    names, shown = (
        ["vote", "name", "second name", "source"],
        clusters.set_index("leiden").fillna(""),
    )
    agreement = agreement.set_index(agreement.columns[0])
    genes = genes.set_index("name")
    return [
        *items,
        writer.table("annotation", "Types of the clusters", shown, names=names, written=True),
        writer.table("annotation_agreement", "Types compared", agreement, written=True),
        writer.table("annotation_genes", "Genes of the types", genes, written=True),
    ]


def genes_of_types(
    sample: Path, obs: pd.DataFrame, key: str, genes: pd.DataFrame
) -> tuple[ad.AnnData, dict[str, list[str]]]:
    """The first genes of the largest types that the sample has, by names or symbols; and its cells
    with these genes alone and their types, with a name for cells of unknown type.
    """
    sizes = obs[key].value_counts(sort=False)
    largest = sizes[sizes > 0].sort_values(ascending=False, kind="stable").index[:_MAX_TYPES]
    n_genes = max(1, min(_N_GENES, _MAX_GENES // max(1, len(largest))))
    lists = genes.set_index("name")["genes"].fillna("").str.split(" ")
    x, var = read_matrix(sample)
    known = known_names(var, pd.Index(lists.explode()))
    position = {name: i for i, name in reversed([*enumerate(known)])}
    best = {
        name: [gene for gene in lists.get(name, []) if gene in position][:n_genes]
        for name in sizes.index
        if name in largest
    }
    gaps = name_of_gaps(key, obs, set(sizes.index))
    types = pd.Categorical(obs[key].astype(object).fillna(gaps), [*best, gaps])
    used = list(dict.fromkeys(chain.from_iterable(best.values())))
    at = np.array([position[gene] for gene in used], np.int64)
    cells = ad.AnnData(
        blocks.to_memory(blocks.select_genes(x, at)).tocsc(),
        obs=pd.DataFrame({key: types}, obs.index),
        var=pd.DataFrame(index=used),
    )
    return cells, {name: found for name, found in best.items() if found}
