"""Genes that are highly variable on enough plates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.columns import common_genes, first_difference
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from scatlas.columns import GeneRule

# Columns that rank the genes of a plate, in the tables of all flavours.
_RANKED_BY = ("dispersions_norm", "variances_norm")
# Columns to average over plates; a rank has a meaning on its plate alone.
_AVERAGED = ["means", "dispersions", "dispersions_norm", "variances", "variances_norm"]


def consensus_genes(
    tables: Mapping[str, pd.DataFrame],
    *,
    n_top_genes: int | None = None,
    min_plates: int = 1,
    genes: GeneRule = "same",
    voters: Collection[str] | None = None,
    also: Sequence[str] = (),
) -> pd.DataFrame:
    """Genes that are highly variable on at least ``min_plates``, in the first plate's order, with
    the number of these plates, whether they are all, and the means over plates of the numbers of
    their tables (:func:`scatlas.pp.highly_variable_genes`), named as by scanpy's ``batch_key``.
    With ``genes="union"`` a plate that lacks a gene is one where no cell expresses it. Only plates
    among ``voters`` (None: all) count; the others add their genes to the order alone.

    The ``n_top_genes`` first are on the largest number of plates, then of best median rank on
    these, then first in order, as :func:`scanpy.pp.highly_variable_genes` ranks them for
    seurat_v3_paper with ``batch_key``. The published 100M-cell notebook orders genes by the hash of
    a set.

    The genes ``also`` come on top, whatever their ranks; if there are any, a column ``also`` marks
    those that are chosen for this alone.
    """
    first, *others = tables
    order = common_genes([table.index for table in tables.values()], genes)
    for plate in others if genes == "same" else ():
        if differing := first_difference(tables[plate].index, order):
            ours, theirs = (repr(n) if n is not None else "no gene" for n in differing[1:])
            raise InputError(
                f"plate {plate} has {ours} as gene {differing.at + 1} where plate {first} has "
                f"{theirs}; give all plates the same genes in the same order, or set genes: "
                "intersect (or union)"
            )
    if order.empty:
        msg = "the plates have no gene in common: are their genes named alike (symbols, Ensembl)?"
        raise InputError(msg)
    tables = {name: tables[name] for name in tables if voters is None or name in voters}
    aligned = [table if genes == "same" else _align(table, order) for table in tables.values()]
    n_plates = np.sum([table["highly_variable"].to_numpy(bool) for table in aligned], axis=0)
    chosen = n_plates >= min_plates
    if not chosen.any():
        raise InputError(
            f"no gene is highly variable on {min_plates} of {len(tables)} plates (at most "
            f"{n_plates.max()} agree): lower consensus.min_plates or consensus.min_cells, or raise "
            "hvg.n_top_genes"
        )
    if n_top_genes is not None:
        # Equal scores are ranked in the order of the plate, or of the union.
        ranked = aligned if genes == "union" else [*tables.values()]
        ranks = pd.DataFrame(dict(enumerate(_ranks(table).loc[order] for table in ranked)))
        facts = pd.DataFrame({"n": -n_plates, "rank": ranks.median(axis=1).to_numpy()})
        best = facts.sort_values(["n", "rank"]).index[:n_top_genes]
        chosen &= np.isin(np.arange(n_plates.size), best)
    is_extra = order.isin(also) & ~chosen
    table = pd.DataFrame(
        {
            "highly_variable": True,
            "highly_variable_nbatches": n_plates,
            "highly_variable_intersection": n_plates == len(tables),
            **({"also": is_extra} if also else {}),
        },
        index=pd.Index(order, name="gene"),
    )
    for column in next(iter(tables.values())).columns.intersection(_AVERAGED, sort=False):
        # A gene without a value on some plates has the mean of the others, or none.
        values = pd.DataFrame(dict(enumerate(t[column].to_numpy() for t in aligned)))
        table[column] = values.mean(axis=1).to_numpy()
    return table[chosen | is_extra]


def _align(table: pd.DataFrame, order: pd.Index) -> pd.DataFrame:
    """Table of a plate among the genes of the atlas; those that it lacks have a mean of 0 and no
    dispersion, as genes that no cell expresses have with ``min_cells=1``.
    """
    absent = ~order.isin(table.index)
    aligned = table.reindex(order)
    aligned["highly_variable"] = table["highly_variable"].reindex(order, fill_value=False)
    # `seurat` and `cell_ranger` replace a mean of 0 by this, as scanpy does.
    zero = 0.0 if "variances" in table else 1e-12
    aligned.loc[absent, "means"] = zero
    if "variances" in table:
        aligned.loc[absent, "variances"] = 0.0
    return aligned


def plates_with_other_genes(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Plates whose genes, or their order, are not those of most plates (of ties, the earlier
    plate's): by plate, a sentence that names the first gene that differs.
    """
    plates_of_list: list[list[str]] = []
    for plate, table in tables.items():
        same = (plates for plates in plates_of_list if tables[plates[0]].index.equals(table.index))
        if (plates := next(same, None)) is None:
            plates_of_list.append(plates := [])
        plates.append(plate)
    usual = max(plates_of_list, key=len, default=[])
    found = {}
    for plates in plates_of_list:
        differing = first_difference(tables[plates[0]].index, tables[usual[0]].index)
        if differing is None:
            continue
        ours, theirs = (repr(n) if n is not None else "no gene" for n in differing[1:])
        for plate in plates:
            found[plate] = (
                f"plate {plate} has {ours} as gene {differing.at + 1} where plate {usual[0]} "
                f"({len(usual):,} of {len(tables):,} plates have its genes) has {theirs}: give all "
                "plates the same genes in the same order, or set 'genes: intersect' (or union) in "
                "the config"
            )
    return found


def _ranks(table: pd.DataFrame) -> pd.Series:
    """Rank of each gene among the highly variable ones of its plate, from 0; NaN of the others."""
    score = next(name for name in _RANKED_BY if name in table)
    rank = table[score].where(table["highly_variable"]).rank(ascending=False, method="first")
    return rank - 1
