"""Training of an annotator from labelled cells, with its doubt calibrated on held-out groups."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax

from scatlas import blocks, elements
from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError
from scatlas.io.products.annotators import CLIP, Annotator, check_labels
from scatlas.kernels import kernels_for
from scatlas.kernels.counts.normalize_cpu import scaled_dtype
from scatlas.kernels.moments.group_sums_cpu import SumKinds
from scatlas.matrix.annotate import answers_of_scores, bounded, log_normalised
from scatlas.matrix.group_sums import sum_groups
from scatlas.matrix.logistic import LogisticCells, fit
from scatlas.matrix.rank_statistics import moments_of_sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Cells of a label: fewer cannot teach and test.
_MIN_CELLS = 10
_MAX_FOLDS = 5
# Cells that choose the strength of the penalty.
_MAX_TUNED = 20_000
# Of half the sum of squared coefficients beside the mean loss, from the strongest.
_STRENGTHS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
_MAX_ITER, _TOLERANCE = 300, 1e-4
# Shares of the cells of known types that may be unknown for their fit, probability and margin.
_BAD_FIT, _BAD_PROBABILITY = 0.03, 0.005
# No answer needs a higher probability or margin than this, however sure others are.
_SURE, _CLEAR = 0.5, 0.1


def train(
    x: Any,
    names: pd.Index,
    labels: pd.Categorical,
    *,
    groups: pd.Categorical | None = None,
    coarser: Mapping[str, pd.Categorical] | None = None,
    ontology_ids: pd.Categorical | None = None,
    shared: NDArray[np.int64] | None = None,
    n_genes: int = 3000,
    max_cells: int = 1000,
    random_state: int = 0,
    source: str = "X",
) -> Annotator:
    """Fit a multinomial logistic classifier of the labels.

    Parameters
    ----------
    x
        [n_cells, n_genes] as for :func:`scatlas.matrix.annotate.annotate_values`; two passes.
    names
        Genes of `x`.
    labels
        Type of each cell; cells without one are left out.
    groups
        Donors or plates: a whole one is held out at a time, to choose the penalty and to calibrate.
        Without it, or for a label of one group, random cells are.
    coarser
        Further columns of types, from the coarsest; each label has one name in each.
    ontology_ids
        Id of each cell's type; each label has one.
    shared
        Positions of the genes to learn from; all others count in the totals of the cells alone.
    n_genes
        Genes that differ most between the types: variance of a type's means over that within types.
    max_cells
        Cells of each label, as many of each group as there are.
    random_state
        Seed of the choice of cells.
    source
        Name of `x` in errors.
    """
    shared = np.arange(x.shape[1]) if shared is None else shared
    names = pd.Index(names).astype(str)[shared]
    all_labels, codes, levels, ids = check_types(labels, coarser, ontology_ids, source)
    group_codes = np.zeros(codes.size, np.int64) if groups is None else groups.codes.astype(int)
    rng = np.random.default_rng(random_state)
    chosen, folds, rank = _choose(codes, group_codes, max_cells, rng)
    values, codes = _values_of(x, chosen, shared, source), codes[chosen]
    sizes = np.bincount(codes)

    kinds = SumKinds(sums=True, squares=True, nonzero=False)
    sums = sum_groups(values, codes, sizes.size, kinds, max_rows=int(sizes.max()))
    moments = moments_of_sums(sums.map(blocks.on_host), sizes, names)
    assert moments.var is not None
    genes = _genes_that_differ(moments.mean, moments.var, names, n_genes)
    mean, scale = _mean_and_sd(moments.mean[:, genes], moments.var[:, genes], sizes)
    scaled = bounded(
        blocks.to_memory(blocks.select_genes(values, genes)), CLIP * scale + mean, scale
    )

    tuned = rank < max(_MIN_CELLS, _MAX_TUNED // sizes.size)
    centre = mean / scale
    strength, scores, losses = _tune(scaled, np.where(tuned, codes, -1), folds, centre)
    coef = _fit(scaled, codes, sizes.size, strength, centre)
    annotator = Annotator(
        all_labels,
        names[genes].to_numpy(),
        np.ascontiguousarray(coef[:-1].T),
        coef[-1] + centre @ coef[:-1],
        mean,
        scale,
        coarser=levels,
        ontology_ids=ids,
    )
    return _calibrated(
        annotator,
        scores[tuned],
        codes[tuned],
        {
            "n_cells": int(codes.size),
            "cells_per_label": dict(zip(map(str, all_labels), sizes.tolist(), strict=True)),
            "n_groups": int(np.unique(group_codes[chosen]).size) if groups is not None else 0,
            "n_folds": int(folds.max()) + 1,
            "penalty": strength,
            "held_out_losses": losses,
            "random_state": random_state,
        },
    )


def check_types(
    labels: pd.Categorical,
    coarser: Mapping[str, pd.Categorical] | None,
    ontology_ids: pd.Categorical | None,
    source: str,
) -> tuple[NDArray[Any], NDArray[np.int64], dict[str, list[str]], list[str] | None]:
    """Names of the types in order, the number of each cell's, -1 for none, and of each type its
    coarser ones and its id.
    """
    if labels.isna().all():
        raise InputError(f"{source}: no cell has a label: name another column")
    labels = labels.remove_unused_categories()
    check_labels(labels.categories, source)
    all_labels = np.unique(labels.categories.astype(str).to_numpy())
    codes = np.searchsorted(all_labels, labels.categories.astype(str).to_numpy())
    codes = np.append(codes, -1)[labels.codes].astype(np.int64)
    sizes = np.bincount(codes[codes >= 0])
    if sizes.size < 2:
        raise InputError(
            f"{source}: all labelled cells are {all_labels[0]!r}: add cells of another type"
        )
    if (few := np.flatnonzero(sizes < _MIN_CELLS)).size:
        n = int(sizes[few[0]])
        raise InputError(
            f"{source}: label {str(all_labels[few[0]])!r} has {n} cell{'s' * (n != 1)}, too few to "
            f"learn from ({_MIN_CELLS}): join it with another, or leave its cells without a label"
        )
    levels = {
        name: _one_each(labels, column, f"{source}: {name}")
        for name, column in (coarser or {}).items()
    }
    ids = None
    if ontology_ids is not None:
        ids = _one_each(labels, ontology_ids, f"{source}: ontology ids")
    return all_labels, codes, levels, ids


def _one_each(labels: pd.Categorical, column: pd.Categorical, name: str) -> list[str]:
    """The value of each label in another column, in the order of the labels' names."""
    pairs = pd.DataFrame({"label": labels.astype(str), "value": column})[~labels.isna()]
    found = pairs.dropna().drop_duplicates().sort_values(["label", "value"])
    if (twice := found[found["label"].duplicated(keep=False)]).size:
        label, both = twice["label"].iloc[0], twice["value"].iloc[:2].tolist()
        raise InputError(
            f"{name}: label {label!r} belongs to {both[0]!r} and to {both[1]!r}: give each one name"
        )
    missing = sorted(set(pairs["label"]) - set(found["label"]))
    if missing:
        raise InputError(f"{name}: label {missing[0]!r} has none: fill it in for all labels")
    return found["value"].astype(str).tolist()


def _choose(
    codes: NDArray[np.int64], groups: NDArray[np.int64], max_cells: int, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Cells to learn from, and of each chosen one its fold and its rank within its label."""
    cells = pd.DataFrame({"label": codes, "group": groups, "row": np.arange(codes.size)})
    cells = cells[codes >= 0].iloc[rng.permutation(np.count_nonzero(codes >= 0))]
    cells["turn"] = cells.groupby(["label", "group"]).cumcount()
    cells = cells.sort_values(["turn", "group", "row"])
    cells["rank"] = cells.groupby("label").cumcount()
    cells = cells[cells["rank"] < max_cells].sort_values("row")
    # The groups go round the folds by size, so that folds have about as many cells.
    order = cells["group"].value_counts(sort=True).sort_index(kind="stable")
    order = order.sort_values(ascending=False, kind="stable").index
    n_folds = min(_MAX_FOLDS, len(order)) if len(order) > 1 else _MAX_FOLDS
    fold = cells["group"].map(dict(zip(order, np.arange(len(order)) % n_folds, strict=True)))
    # Held out with all its cells, a label cannot be learnt.
    alone = fold.groupby(cells["label"]).transform("nunique") < 2
    fold = fold.where(~alone, cells["rank"] % n_folds)
    chosen = np.zeros(codes.size, dtype=bool)
    chosen[cells["row"]] = True
    return chosen, fold.to_numpy(np.int64), cells["rank"].to_numpy()


def _values_of(x: Any, chosen: NDArray[np.bool_], genes: NDArray[np.int64], source: str) -> Any:
    """Log-normalised values of the chosen cells and genes, lazy for a Dask matrix."""

    def of_block(block: Any, keep: NDArray[np.bool_]) -> Any:
        return log_normalised(block, keep, genes, source)[0]

    x = elements.as_rows(x)
    if not is_dask(x):
        return of_block(x, chosen)
    in_blocks = chosen.copy()
    for rows in blocks.row_slices(x):
        in_blocks[rows] = chosen[rows].any()
    x, chosen = blocks.select_rows(x, in_blocks), chosen[in_blocks]
    n_rows = tuple(int(np.count_nonzero(chosen[rows])) for rows in blocks.row_slices(x))
    dtype, n_vars = scaled_dtype(x.dtype), genes.size
    return blocks.map_blocks(of_block, x, chosen, dtype=dtype, row_chunks=n_rows, n_vars=n_vars)


def _genes_that_differ(
    mean: NDArray[np.float64], var: NDArray[np.float64], names: pd.Index, n_genes: int
) -> NDArray[np.int64]:
    """Positions, ascending, of the genes with the largest ratio of variances."""
    within = var.mean(axis=0)
    ratio = np.divide(mean.var(axis=0), within, out=np.zeros(within.size), where=within > 0)
    ratio[names.duplicated(keep=False)] = 0.0
    usable = np.count_nonzero(ratio > 0)
    if usable < 2:
        raise InputError(
            "the labelled cells have no genes that differ between types: check their labels"
        )
    return np.sort(np.argsort(-ratio, kind="stable")[: min(n_genes, usable)])


def _mean_and_sd(
    means: NDArray[np.float64], variances: NDArray[np.float64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of all cells, of those of groups (variances over n - 1)."""
    n, weights = sizes.sum(), sizes[:, None]
    mean = (weights * means).sum(axis=0) / n
    squares = ((weights - 1) * variances + weights * (means - mean) ** 2).sum(axis=0)
    return mean, np.sqrt(squares / n)


def _fit(
    x: Any, codes: NDArray[np.int64], n_labels: int, strength: float, centre: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Coefficients ``[n_genes + 1, n_labels]``; of labels without a cell 0 and -infinity."""
    present, inverse = np.unique(codes[codes >= 0], return_inverse=True)
    own = codes.copy()
    own[codes >= 0] = inverse
    sizes = np.bincount(inverse)
    coef = fit(
        LogisticCells(x, own, None),
        sizes,
        C=1 / (strength * sizes.sum()),
        balanced=True,
        tol=_TOLERANCE,
        max_iter=_MAX_ITER,
        centre=centre,
    )
    if coef.shape[1] == 1:
        coef = np.hstack([-coef, coef]) / 2
    out = np.zeros((coef.shape[0], n_labels))
    out[-1] = -np.inf
    out[:, present] = coef
    return out


def _tune(
    x: Any, codes: NDArray[np.int64], folds: NDArray[np.int64], centre: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64], dict[str, float]]:
    """Strength of the penalty with the least loss of held-out cells, all labels counting alike;
    their scores ``[n_cells, n_labels]``, and the loss of each strength tried.
    """
    used = codes >= 0
    sizes = np.bincount(codes[used])
    weights = 1 / (sizes.size * sizes[codes[used]])
    losses: dict[str, float] = {}
    best: tuple[float, float, Any] = (np.inf, _STRENGTHS[0], None)
    kernels = kernels_for("ranking.logreg", x)
    for strength in _STRENGTHS:
        scores = np.zeros((codes.size, sizes.size))
        for fold in np.unique(folds[used]):
            coef = _fit(x, np.where(folds == fold, -1, codes), sizes.size, strength, centre)
            own = np.flatnonzero(used & (folds == fold))
            part = kernels_for("counts.select", x).select_rows(x, own)
            scores[own] = kernels.class_scores(part, np.nan_to_num(coef, neginf=-1e9))
        likely = log_softmax(scores[used], axis=1)
        own_likely = likely[np.arange(len(likely)), codes[used]]
        loss = float(-(weights * np.maximum(own_likely, -50)).sum())
        losses[f"{strength:g}"] = round(loss, 6)
        logger.info("penalty %g: loss of held-out cells %.4f", strength, loss)
        if loss >= best[0]:
            break
        best = (loss, strength, scores)
    return best[1], best[2], losses


def _calibrated(
    annotator: Annotator,
    scores: NDArray[np.float64],
    codes: NDArray[np.int64],
    record: dict[str, Any],
) -> Annotator:
    """The annotator with bounds that leave few held-out cells of known types unknown."""
    from dataclasses import replace

    n_labels = annotator.labels.size
    own = scores[np.arange(codes.size), codes]
    sizes = np.bincount(codes, minlength=n_labels)
    mean = np.bincount(codes, own, n_labels) / sizes
    sd = np.sqrt(np.bincount(codes, (own - mean[codes]) ** 2, n_labels) / sizes)
    annotator = replace(annotator, score_mean=mean, score_sd=np.maximum(sd, 1e-9))
    found = answers_of_scores(scores, annotator)
    fits = found.fit >= (min_fit := float(np.quantile(found.fit, _BAD_FIT)))
    bounds = {
        name: min(limit, float(np.quantile(getattr(found, name)[fits], _BAD_PROBABILITY)))
        for name, limit in (("probability", _SURE), ("margin", _CLEAR))
    }
    annotator = replace(
        annotator,
        min_fit=min_fit,
        min_probability=bounds["probability"],
        min_margin=bounds["margin"],
    )
    known = answers_of_scores(scores, annotator).codes >= 0
    record = record | {
        "held_out_macro_f1": round(macro_f1(codes, found.best, n_labels), 6),
        "held_out_unknown": round(float(1 - known.mean()), 6),
        "held_out_right_where_known": round(float((found.best == codes)[known].mean()), 6),
    }
    logger.info(
        "held-out cells: macro F1 %.3f, %.1f%% unknown",
        record["held_out_macro_f1"],
        100 * record["held_out_unknown"],
    )
    return replace(annotator, record=record)


def macro_f1(truth: NDArray[Any], found: NDArray[Any], n_labels: int) -> float:
    """Mean over labels of the harmonic mean of precision and recall."""
    right = np.bincount(truth[truth == found], minlength=n_labels)
    both = np.bincount(truth, minlength=n_labels) + np.bincount(
        found[found >= 0], minlength=n_labels
    )
    return float((2 * right / np.maximum(both, 1)).mean())
