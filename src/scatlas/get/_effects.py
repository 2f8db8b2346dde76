"""Effects of conditions as a table: ``sa.get.effects``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from scatlas import columns, elements
from scatlas.errors import InputError
from scatlas.matrix.effects_moderation import false_discovery_rates, t_pvalues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData
    from numpy.typing import NDArray


def effects(
    adata: AnnData,
    *,
    conditions: str | Sequence[str] | None = None,
    genes: str | Sequence[str] | None = None,
    fdr_over: Literal["condition", "all"] = "condition",
) -> pd.DataFrame:
    """Rows of what :func:`scatlas.tl.effects` returned, with p-values.

    Of one cell line: ``sa.get.effects(found[found.obs["cell_line"] == "A549"])``.

    Parameters
    ----------
    adata
        Result of :func:`scatlas.tl.effects`, or a part of its rows with all genes.
    conditions, genes
        Those to list; by default all.
    fdr_over
        Tests that the false discovery rate is taken over: those of one condition (of one value of
        ``within``), or of all rows of `adata`.

    Returns
    -------
    Table with the columns of ``within`` and of the condition, and ``gene``, ``log2_fold_change``,
    ``standard_error``, ``t``, ``p_value``, ``fdr`` (Benjamini and Hochberg), ``mean_expression``
    (log2 counts per million) and ``df`` (degrees of freedom of the p-value); the rows of a
    condition by ascending p-value. Genes without a value are left out.

    Raises
    ------
    InputError
        No such condition or gene, or `adata` has no effects.
    """
    elements.check_not_backed(adata)
    if "effects" not in adata.uns or "t" not in adata.layers:
        raise InputError("adata has no effects: pass what sa.tl.effects returned")
    if fdr_over not in ("condition", "all"):
        raise InputError(f"fdr_over={fdr_over!r} is unknown: use 'condition' or 'all'")
    condition = str(adata.uns["effects"]["condition"])
    labels = list(adata.obs.columns[: adata.obs.columns.get_loc(condition) + 1])
    rows = _positions(pd.Index(adata.obs[condition].astype(str)), conditions, "conditions")
    listed = np.zeros(adata.n_vars, bool)
    listed[_positions(adata.var_names, genes, "genes")] = True
    t, df = np.asarray(adata.layers["t"], np.float64), np.asarray(adata.varm["df"]).T
    models = adata.obs["model"].to_numpy()
    p = {i: t_pvalues(t[i], df[models[i]]) for i in (range(len(t)) if fdr_over == "all" else rows)}
    fdr = false_discovery_rates(np.stack([*p.values()])) if fdr_over == "all" else None
    tables = []
    for i in rows:
        own = false_discovery_rates(p[i]) if fdr is None else fdr[i]
        at = np.flatnonzero(np.isfinite(t[i]) & listed)
        at = at[np.argsort(p[i][at], kind="stable")]
        change = np.asarray(adata.X[i, at], np.float64)
        with np.errstate(invalid="ignore"):
            error = change / t[i, at]
        tables.append(
            pd.DataFrame(
                {
                    **{name: adata.obs[name].iloc[np.full(at.size, i)].array for name in labels},
                    "gene": adata.var_names[at],
                    "log2_fold_change": change,
                    "standard_error": error,
                    "t": t[i, at],
                    "p_value": p[i][at],
                    "fdr": own[at],
                    "mean_expression": np.asarray(adata.varm["mean_expression"])[at, models[i]],
                    "df": df[models[i], at],
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def _positions(
    names: pd.Index, wanted: str | Sequence[str] | None, option: str
) -> NDArray[np.intp]:
    """Positions of names, each of which must be there."""
    if wanted is None:
        return np.arange(names.size)
    listed = columns.as_names(wanted, option)
    if unknown := [name for name in listed if name not in names]:
        raise InputError(f"there is no {unknown[0]!r} ({option}) among the effects: name others")
    return np.flatnonzero(names.isin(listed))
