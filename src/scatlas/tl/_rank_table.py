"""Ranked genes in scanpy's form: the tables of ``uns``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.matrix.rank_statistics import adjust_pvalues

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from numpy.typing import NDArray

# Types of the fields, as in scanpy.
_TYPES = {
    "names": "O",
    "scores": "float32",
    "pvals": "float64",
    "pvals_adj": "float64",
    "logfoldchanges": "float32",
}


class GroupResult(NamedTuple):
    """Result of a method for one group: float64 arrays ``[n_genes]``, or None."""

    name: str
    scores: NDArray[np.float64]
    pvals: NDArray[np.float64] | None = None
    logfoldchanges: NDArray[np.float64] | None = None


def tables(
    found: Iterable[GroupResult],
    genes: pd.Index,
    *,
    n_genes: int | None,
    rankby_abs: bool,
    corr_method: str,
) -> dict[str, np.recarray]:
    """Structured arrays of ``uns['rank_genes_groups']`` with one field per group: ``names``,
    ``scores`` and the other fields of the method. Genes are by descending score, genes of equal
    score in their order in ``genes``. Options are as for :func:`scatlas.tl.rank_genes_groups`.
    """
    columns: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in _TYPES}
    for group in found:
        key = -np.abs(group.scores) if rankby_abs else -group.scores
        order = np.argsort(key, kind="stable")[:n_genes]
        columns["names"][group.name] = genes.to_numpy(dtype=object)[order]
        columns["scores"][group.name] = group.scores[order]
        if group.pvals is not None:
            columns["pvals"][group.name] = group.pvals[order]
            columns["pvals_adj"][group.name] = adjust_pvalues(group.pvals, corr_method)[order]
        if group.logfoldchanges is not None:
            columns["logfoldchanges"][group.name] = group.logfoldchanges[order]
    # A list of pairs would call the field of the group '' f0.
    return {
        name: np.rec.fromarrays(
            list(by_group.values()),
            dtype=np.dtype({"names": [*by_group], "formats": [_TYPES[name]] * len(by_group)}),
        )
        for name, by_group in columns.items()
        if by_group
    }
