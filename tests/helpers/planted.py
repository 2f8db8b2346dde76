"""Effects beside the truth of simulated counts."""

from __future__ import annotations

import anndata as ad
import pandas as pd

import scatlas as sa

FDR = 0.05


def beside_truth(effects: ad.AnnData, truth: pd.DataFrame, change: float) -> pd.DataFrame:
    """Rows of sa.get.effects, with what was planted: ``planted`` (log2), ``strong``, ``called``.

    ``truth`` has the columns of labels, ``gene`` and ``log2_fold_change``, the mean of which is
    planted. Strong changes are at least ``change``, in genes with 40 counts per sum or more.
    """
    labels = [*effects.obs.columns[: list(effects.obs).index("n_replicates")], "gene"]
    table = sa.get.effects(effects).astype(dict.fromkeys(labels, str))
    planted = truth.groupby(labels)["log2_fold_change"].mean().rename("planted")
    table = table.merge(planted.reset_index(), on=labels, how="left").fillna({"planted": 0.0})
    samples, group = effects.uns["effects"]["samples"], labels[0]
    size = samples.groupby(samples[group].astype(str))["library_size"].mean()
    counts = 2 ** table["mean_expression"] * table[group].map(size) / 1e6
    strong = (table["planted"].abs() >= change) & (counts >= 40)
    return table.assign(strong=strong, called=table["fdr"] < FDR)


def summary(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Numbers of genes, planted and called, by a label."""
    changed = table["planted"] != 0
    columns = {
        "planted": changed,
        "found": changed & table["called"],
        "strong": table["strong"],
        "strong_found": table["strong"] & table["called"],
        "wrong": ~changed & table["called"],
    }
    return pd.DataFrame(columns).groupby(table[by]).sum()
