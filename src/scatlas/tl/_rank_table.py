"""Ranked genes in scanpy's form: corrected p-values, fold changes, tables of ``uns``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

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
# scanpy adds it to both means, so that no fold change is infinite.
_PSEUDOCOUNT = 1e-9


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
    """Structured arrays of ``uns['rank_genes_groups']``, with one field per group.

    Parameters
    ----------
    found
        Results of the groups.
    genes
        Names of the genes.
    n_genes, rankby_abs, corr_method
        As for :func:`scatlas.tl.rank_genes_groups`.

    Returns
    -------
    ``names``, ``scores`` and the other fields of the method; genes by descending score, genes of
    equal score in their order in ``genes``.
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
    return {
        name: np.rec.fromarrays(
            list(by_group.values()), dtype=[(group, _TYPES[name]) for group in by_group]
        )
        for name, by_group in columns.items()
        if by_group
    }


def adjust_pvalues(pvals: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    """P-values corrected for the number of tests.

    ``"benjamini-hochberg"`` bounds the false discovery rate (Y. Benjamini, Y. Hochberg, J. R. Stat.
    Soc. B 57 (1995)), ``"bonferroni"`` the chance of one false discovery.
    """
    n = pvals.size
    if method == "bonferroni":
        return np.minimum(pvals * n, 1.0)
    order = np.argsort(pvals, kind="stable")
    steps = pvals[order] / (np.arange(1, n + 1) / n)
    out = np.empty(n)
    out[order] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0)
    return out


def log_fold_changes(
    means: NDArray[np.float64], others: NDArray[np.float64], base: Any
) -> NDArray[np.float64]:
    """Base-2 logarithm of the ratio of two means, from means of logarithms.

    Parameters
    ----------
    means, others
        Means ``[n_genes]`` of log(1 + x) in the group, and in the cells that it is compared with.
    base
        Base of that logarithm, None for the natural one.

    Returns
    -------
    float64 ``[n_genes]``, scanpy's formula: log2((expm1(mean) + 1e-9) / (expm1(other) + 1e-9)).
    Infinite or NaN where expm1 overflows, because the values were no logarithms.
    """
    factor = 1.0 if base is None else np.log(base)
    with np.errstate(all="ignore"):
        ratio = (np.expm1(means * factor) + _PSEUDOCOUNT) / (
            np.expm1(others * factor) + _PSEUDOCOUNT
        )
        return np.log2(ratio)
