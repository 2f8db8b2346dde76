"""Gene names of several plates: compared, shared, or together."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

# Values of the config's key ``genes``.
GeneRule = Literal["same", "intersect", "union"]


class GeneDifference(NamedTuple):
    """The first place at which two lists of genes differ."""

    at: int
    """Position, from 0."""
    own: str | None
    """Gene there in the first list; None where the list has ended."""
    other: str | None
    """Gene there in the second list, likewise."""


def first_difference(own: pd.Index, other: pd.Index) -> GeneDifference | None:
    """Where two lists of gene names first differ in name, order or length; None if nowhere."""
    n = min(len(own), len(other))
    differing = np.flatnonzero(np.asarray(own[:n]) != np.asarray(other[:n]))
    if not differing.size and len(own) == len(other):
        return None
    at = int(differing[0]) if differing.size else n
    return GeneDifference(at, *(names[at] if at < len(names) else None for names in (own, other)))


def common_genes(lists: Sequence[pd.Index], rule: GeneRule) -> pd.Index:
    """Genes that all plates have (``"intersect"``), or any (``"union"``), in the order of the first
    plate that has them; ``"same"``: the first list, which the caller has compared with the others.
    """
    first, *others = lists
    if rule == "union":
        names = dict.fromkeys(chain.from_iterable(lists))
        return type(first)(list(names), dtype=first.dtype, name=first.name)
    if rule == "intersect":
        for names in others:
            first = first[first.isin(names)]
    return first


def among_genes(var: pd.DataFrame, genes: pd.Index) -> pd.DataFrame:
    """Table of a plate's genes among others: where the plate lacks one, ``n_cells_by_counts`` and
    ``total_counts`` are 0, and other columns have gaps, with types that can have gaps.
    """
    at = var.index.get_indexer(genes)  # `genes.isin` takes a third of a second for Arrow's text
    if (at >= 0).all():
        return var.iloc[at]
    kinds = {"b": "boolean", "i": "Int64", "u": "UInt64"}
    sums = [name for name in ("n_cells_by_counts", "total_counts") if name in var]
    wide = {
        name: kinds[dtype.kind]
        for name, dtype in var.dtypes.items()
        if name not in sums and isinstance(dtype, np.dtype) and dtype.kind in kinds
    }
    table = var.astype(wide).reindex(genes)
    table.index.name = var.index.name
    for name in sums:
        table[name] = table[name].fillna(0).astype(var[name].dtype)
    return table
