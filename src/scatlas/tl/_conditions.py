"""Cells of conditions beside those of a control: ``sa.tl.edistance`` and ``sa.tl.composition``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, columns, elements
from scatlas._util.numbers import seed_number, whole_number
from scatlas.errors import InputError
from scatlas.matrix.composition import compositions
from scatlas.matrix.edistance import MIN_RELABELLINGS, edistances, sum_cells
from scatlas.matrix.effects_groups import label_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from anndata import AnnData


@blocks.passes(1, "over the array in obsm")
def edistance(
    adata: AnnData,
    condition: str,
    control: str,
    *,
    within: str | Sequence[str] | None = None,
    replicate: str | None = None,
    block: str | None = None,
    obsm: str = "X_pca",
    min_cells: int = 10,
    n_permutations: int = 9_999,
    random_state: int = 0,
    dof: int = 1,
) -> pd.DataFrame:
    """Measure how far the cells of every condition are from those of the control (E-distance).

    Twice the mean squared Euclidean distance of a cell of the condition to one of the control, less
    the mean within the condition and that within the control. It is computed from sums by
    replicate, in one pass and without pairs. P-values relabel whole replicates, never cells: all
    cells of a well share its chance.

    Parameters
    ----------
    adata
        Annotated data; the array in memory, Dask or on a GPU.
    condition
        Column of ``obs`` with drugs and doses, guides or diseases.
    control
        Its value that the others are compared with.
    within
        Column, or columns, such as cell lines or clusters: distances for each of their values.
        Cells without a value are left out.
    replicate
        Column with the wells, animals or donors; by default the cells of a condition (in a block)
        are one replicate.
    block
        Column with plates or batches. Conditions are compared with the control in the same blocks,
        means weighted by n m / (n + m) of the cells of both, and labels move within blocks.
    obsm
        Key of the array with the components.
    min_cells
        Replicates of fewer cells, at least 2, are left out.
    n_permutations
        Relabellings per condition; all of them where there are no more.
    random_state
        Seed of the relabellings. A condition has the same whatever the others are.
    dof
        1: means over pairs of two different cells (n - 1), as scperturb: zero on average for random
        halves of the same cells, whatever their number, so it can be negative. 0: over all pairs, a
        cell with itself among them (n), as pertpy (with ``cell_wise_metric="sqeuclidean"``): twice
        the squared distance of the means.

    Returns
    -------
    Table with a row for each condition (of each value of `within`): ``n_replicates`` and
    ``n_controls`` that are compared, ``n_cells`` of the condition, ``edistance``, in squared units
    of the components, ``p_value`` and ``fdr`` (Benjamini and Hochberg over all rows),
    ``n_relabellings`` behind it (those that differ, or `n_permutations` random ones), and
    ``reason``: why there is no distance, or no p-value, which needs 20 relabellings.

    Raises
    ------
    InputError
        A column is missing or has gaps, the control is unknown, or values are not finite.

    References
    ----------
    Peidli et al., Nature Methods 2024 (scperturb); Phipson and Smyth 2010 (p-values of random
    relabellings are never 0).
    """
    names = [] if within is None else list(dict.fromkeys(columns.as_names(within, "within")))
    options: dict[str, Any] = {
        "min_cells": whole_number(min_cells, "min_cells", least=2),
        "n_permutations": whole_number(n_permutations, "n_permutations", least=MIN_RELABELLINGS),
        "random_state": seed_number(random_state),
        "dof": whole_number(dof, "dof", most=1),
    }
    labels = _labels(adata, condition, control, names, replicate, block)
    x = elements.get_obsm(adata, obsm)
    if not x.shape[1]:
        raise InputError(f"obsm[{obsm!r}] has no components: name another array")
    samples, sums, deviations = sum_cells(x, labels)
    if (bad := ~np.isfinite(deviations)).any():
        name = "_".join(samples.loc[bad, [*labels]].iloc[0])
        raise InputError(
            f"obsm[{obsm!r}] has values that are not finite in {name!r}: remove those cells first"
        )
    table = edistances(
        *(samples, sums, deviations),
        control=str(control),
        within=[f"within {i}" for i in range(len(names))],
        **options,
    )
    named = {f"within {i}": name for i, name in enumerate(names)}
    return table.rename(columns=named | {"condition": condition})


@blocks.passes(0, "works on obs alone")
def composition(
    adata: AnnData,
    condition: str,
    control: str,
    *,
    groups: str,
    replicate: str,
    block: str | None = None,
    min_cells: int = 10,
) -> pd.DataFrame:
    """Compare the shares of clusters, or of other labels, in every condition and in the control.

    Replicates are the unit: a linear model per cluster of the arcsine of the square root of its
    share (propeller's), with effects of conditions and blocks, weights by the numbers of cells and
    variances moderated over the clusters. Shares sum to 1: where one grows, the others shrink.

    Parameters
    ----------
    adata
        Annotated data; only ``obs`` is read.
    condition, control
        As for :func:`edistance`.
    groups
        Column of ``obs`` with clusters or cell types. Cells without a value are left out.
    replicate
        Column with the wells, animals or donors.
    block
        Column with plates or batches, whose effects are removed.
    min_cells
        Replicates, and clusters, of fewer cells are left out.

    Returns
    -------
    Table with a row for each condition and cluster, whose columns have the names of `condition` and
    `groups`: ``n_replicates``, ``n_controls`` (those of its blocks), ``n_cells``,
    ``share_control``, ``share`` in the condition with the blocks of the control, ``log2_ratio`` of
    the two with its 95% interval ``ci_low`` to ``ci_high`` (-inf: with no cells at all), ``t``,
    ``df`` (degrees of freedom), ``p_value``, ``fdr`` (Benjamini and Hochberg over all rows), and
    ``reason``: why there is no value. A condition with one replicate has the variance of the
    others.

    Raises
    ------
    InputError
        A column is missing or has gaps, the control is unknown or has no replicate of `min_cells`,
        or fewer than two clusters have.

    References
    ----------
    Phipson et al., Bioinformatics 2022 (propeller); Anscombe, Biometrika 1948 (3/8 of a cell is
    added to each share, so that none is 0); Smyth 2004 (moderated t).
    """
    least = whole_number(min_cells, "min_cells", least=1)
    labels = _labels(adata, condition, control, [groups], replicate, block).dropna()
    clusters = labels.pop("within 0").cat.remove_unused_categories()
    by = labels.groupby([*labels], observed=True, sort=True)
    sample = by.ngroup().to_numpy()
    _, first = np.unique(sample, return_index=True)
    counts = np.zeros((first.size, clusters.cat.categories.size), np.int64)
    np.add.at(counts, (sample, clusters.cat.codes.to_numpy()), 1)
    samples, names = labels.iloc[first], clusters.cat.categories
    table = compositions(counts, samples, names, control=str(control), min_cells=least)
    return table.rename(columns={"condition": condition, "cluster": groups})


def _labels(adata: AnnData, condition: str, *options: Any) -> pd.DataFrame:
    """Labels as texts, of the control and at least one other condition."""
    elements.check_not_backed(adata)
    labels = label_samples(elements.get_table(adata, "obs"), condition, *options)
    if labels["condition"].nunique() < 2:
        raise InputError(
            f"all cells have the same value of obs[{condition!r}]: keep those of other conditions, "
            "too, or name another column"
        )
    return labels
