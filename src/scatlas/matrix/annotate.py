"""Types of cells by a linear classifier, with doubt: one pass over counts or log-normalised values.

Scores come from stored values alone. With ``m = mean / scale`` a zero is worth ``-m``, a constant
per label, and only stored values can reach the bound of 10, so that the score of a label is
``intercept - coef @ m + sum(coef * min(x / scale, 10 + m))``: exact, without a dense matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit, softmax

from scatlas import blocks, elements
from scatlas.errors import InputError
from scatlas.io.products.annotators import CLIP, TARGET_SUM, Annotator
from scatlas.kernels import kernels_for
from scatlas.matrix.size_factors import reciprocal

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Fewer shared genes, or a smaller share of the model's, are another species or other names.
_MIN_GENES, MIN_SHARE = 20, 0.1
# Normalised values of a cell sum to 10,000, with the rounding of float32.
_SUM_TOLERANCE = 1e-3
_NO_LABEL = -1


@dataclass(frozen=True)
class Answers:
    """Labels of cells, by their number in the annotator."""

    codes: NDArray[np.int32]  # of the supported answer: a label, or -1 for none at the finest level
    level: NDArray[np.int8]  # how many levels are supported, from the coarsest; 0: unknown
    best: NDArray[np.int32]  # the likeliest label, also of an unknown cell
    runner_up: NDArray[np.int32]
    probability: NDArray[np.float32]  # of the best label
    margin: NDArray[np.float32]  # less that of the runner-up
    fit: NDArray[np.float32]  # best score, in standard deviations from the mean of its label

    @staticmethod
    def join(parts: list[Answers]) -> Answers:
        """Answers of cells after one another."""
        return Answers(
            *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Answers))
        )


@dataclass(frozen=True)
class SharedGenes:
    """Genes of a matrix that an annotator knows: positions there, and in the annotator."""

    of_matrix: NDArray[np.int64]
    of_annotator: NDArray[np.int64]


def shared_genes(annotator: Annotator, names: pd.Index, source: str) -> SharedGenes:
    """Genes spelt alike, in the order of the matrix; of a name that occurs twice, the first.

    A gene that the matrix lacks is left out of the scores, unlike those with zero counts.
    """
    names = pd.Index(names).astype(str)
    positions = pd.Index(annotator.genes.astype(str)).get_indexer(names)
    rows = np.flatnonzero((positions >= 0) & ~names.duplicated())
    n_shared, n_genes = rows.size, annotator.genes.size
    few = min(_MIN_GENES, n_genes) if annotator.link != "lists" else 1
    if n_shared < few or n_shared < MIN_SHARE * n_genes:
        raise InputError(
            f"{source}: {n_shared:,} of the {n_genes:,} genes of the model are among its "
            f"{len(names):,}: the model has {str(annotator.genes[0])!r}, the cells {names[0]!r}: "
            "use a model of this species and of these names (symbols or ids)"
        )
    return SharedGenes(rows, positions[rows])


def annotate_values(
    x: Any, names: pd.Index, annotator: Annotator, *, keep: Any = None, source: str = "X"
) -> Answers:
    """Label each cell in one pass.

    Parameters
    ----------
    x
        [n_cells, n_genes], in memory or Dask, on the CPU or a GPU: counts, or ``log1p`` of counts
        normalised to 10,000 per cell, of all measured genes. A block has one or the other.
    names
        Genes of `x`.
    annotator
        The classifier.
    keep
        bool [n_cells]: cells to label, as long as the answers; None for all.
    source
        Name of `x` in errors.

    Raises
    ------
    InputError
        Too few shared genes, or values that are neither.
    """
    if annotator.link == "lists":
        raise InputError("lists of marker genes name clusters alone: annotate.markers of a run")
    genes = shared_genes(annotator, names, source)
    scorer = Scorer.from_annotator(annotator, genes)

    def of_block(block: Any, keep: NDArray[np.bool_]) -> tuple[Answers, NDArray[np.bool_]]:
        values, forms = log_normalised(block, keep, genes.of_matrix, source)
        return answers_of_scores(scorer.scores(values), annotator), forms

    keep = np.ones(x.shape[0], dtype=bool) if keep is None else keep
    parts = [*blocks.stream(elements.as_rows(x), of_block, keep, combine=_join_halves)]
    answers, forms = _join_halves(parts)
    if forms.all():
        raise InputError(
            f"{source} has counts in some cells and logarithms in others: give counts of all cells"
        )
    return answers


def _join_halves(
    parts: list[tuple[Answers, NDArray[np.bool_]]],
) -> tuple[Answers, NDArray[np.bool_]]:
    answers, forms = zip(*parts, strict=True)
    return Answers.join(list(answers)), np.logical_or.reduce(forms)


@dataclass(frozen=True)
class Scorer:
    """Coefficients of the genes that a matrix shares with an annotator."""

    coef: NDArray[np.float64]  # [n_genes + 1, n_labels], of x itself; the last row intercepts
    bound: NDArray[np.float64]  # [n_genes], in the units of x

    @classmethod
    def from_annotator(cls, annotator: Annotator, genes: SharedGenes) -> Scorer:
        mean, scale = annotator.mean[genes.of_annotator], annotator.scale[genes.of_annotator]
        coef = annotator.coef[:, genes.of_annotator] / scale
        intercept = annotator.intercept - coef @ mean
        return cls(np.vstack([coef.T, intercept]), CLIP * scale + mean)

    def scores(self, values: Any) -> NDArray[np.float64]:
        """Scores ``[n_cells, n_labels]`` of the log-normalised values of the genes."""
        return kernels_for("ranking.logreg", values).class_scores(
            bounded(values, self.bound), self.coef
        )


def bounded(values: Any, bound: NDArray[np.float64], scale: Any = None) -> Any:
    """``min(values, bound of the gene)``, divided by its scale; sparse values stay sparse."""
    if not blocks.is_sparse(values):
        values = np.minimum(values, np.asarray(bound, like=values))
        return values if scale is None else values / np.asarray(scale, like=values)
    data = np.minimum(values.data, np.asarray(bound, like=values.data)[values.indices])
    if scale is not None:
        data = data / np.asarray(scale, like=values.data)[values.indices]
    return blocks.csr(data, values.indices, values.indptr, values.shape[1])


def log_normalised(
    block: Any, keep: NDArray[np.bool_], genes: NDArray[np.int64], source: str
) -> tuple[Any, NDArray[np.bool_]]:
    """Log-normalised values of chosen cells and genes, and whether the block has counts, and
    whether it has logarithms.
    """
    qc = kernels_for("counts.qc", block)
    if qc.holds_counts(block):
        new_column = np.full(block.shape[1], -1, dtype=np.int64)
        new_column[genes] = np.arange(genes.size)
        totals = np.asarray(qc.row_sums(block), dtype=np.float64)
        scales = np.where(keep, TARGET_SUM * reciprocal(totals), np.nan)
        normalize = kernels_for("counts.normalize", block)
        forms = np.array([bool(totals.any()), False])  # zeros alone are either
        return normalize.select_and_log_normalize(block, scales, new_column), forms
    with np.errstate(over="ignore"):  # of large values that are no logarithms
        sums = np.asarray(qc.row_sums(_expm1(block)), dtype=np.float64)
    wrong = ~(np.abs(sums / TARGET_SUM - 1) < _SUM_TOLERANCE) & (sums != 0)
    if wrong.any():
        raise InputError(
            f"{source} has neither counts nor log1p of counts normalised to 10,000 per cell (the "
            f"values of one cell sum to {sums[np.argmax(wrong)]:,.0f} before the logarithm): give "
            "counts of all measured genes"
        )
    select = kernels_for("counts.select", block)
    cells = block if keep.all() else select.select_rows(block, keep)
    return select.select_genes(cells, genes), np.array([False, True])


def _expm1(block: Any) -> Any:
    if not blocks.is_sparse(block):
        return np.expm1(block)
    return blocks.csr(np.expm1(block.data), block.indices, block.indptr, block.shape[1])


def answers_of_scores(scores: NDArray[np.float64], annotator: Annotator) -> Answers:
    """Best label, runner-up and doubt of the scores ``[n_cells, n_labels]`` of some cells."""
    n_cells, n_labels = scores.shape
    likely = softmax(scores, axis=1) if annotator.link == "softmax" else expit(scores)
    # By scores, because probabilities of large ones are the same; the first of equal ones.
    best = scores.argmax(axis=1)
    rows = np.arange(n_cells)
    top = scores[rows, best]
    others = scores.copy()
    others[rows, best] = -np.inf
    runner_up = others.argmax(axis=1) if n_labels > 1 else np.full(n_cells, _NO_LABEL)
    probability = likely[rows, best]
    margin = probability - (likely[rows, runner_up] if n_labels > 1 else 0.0)
    fit = np.zeros(n_cells)
    if annotator.score_mean is not None and annotator.score_sd is not None:
        fit = (top - annotator.score_mean[best]) / annotator.score_sd[best]
    level = np.zeros(n_cells, dtype=np.int8)
    known = fit >= annotator.min_fit
    for number, groups in enumerate(_groups_of_levels(annotator), start=1):
        sums = likely @ groups if annotator.coarser else likely
        own = groups[best].argmax(axis=1)
        first = sums[rows, own]
        second = np.where(groups[best] > 0, 0.0, sums).max(axis=1)
        certain = (first >= annotator.min_probability) & (first - second >= annotator.min_margin)
        level[known & certain] = number
    n_levels = 1 + len(annotator.coarser)
    codes = np.where(level == n_levels, best, _NO_LABEL)
    return Answers(
        codes.astype(np.int32),
        level,
        best.astype(np.int32),
        runner_up.astype(np.int32),
        probability.astype(np.float32),
        margin.astype(np.float32),
        fit.astype(np.float32),
    )


def _groups_of_levels(annotator: Annotator) -> list[NDArray[np.float64]]:
    """For each level, from the coarsest, 0 or 1 [n_labels, n_names]: whether a label has a name."""
    groups = [pd.factorize(np.asarray(names))[0] for names in annotator.coarser.values()]
    groups.append(np.arange(annotator.labels.size))
    return [np.eye(codes.max() + 1)[codes] for codes in groups]


def vote(
    codes: NDArray[np.integer[Any]],
    clusters: NDArray[np.integer[Any]],
    n_labels: int,
    n_clusters: int,
) -> pd.DataFrame:
    """The most frequent label of each cluster, by number (of equal ones the first; -1 for none).

    Columns: ``n_cells``, ``label``, ``share`` of all its cells, ``second``, ``second_share``,
    ``unknown``, the share of cells without a label, and ``vote``, the label if it has as many cells
    as are unknown, else -1.
    """
    chosen = clusters >= 0
    counts = np.zeros((n_clusters, n_labels + 1), dtype=np.int64)
    np.add.at(counts, (clusters[chosen], codes[chosen]), 1)  # the last column is -1
    n_cells = counts.sum(axis=1)
    of_labels = np.pad(counts[:, :-1], ((0, 0), (0, 2)))  # so that there is a second one
    order = np.argsort(-of_labels, axis=1, kind="stable")[:, :2]
    sizes = np.take_along_axis(of_labels, order, axis=1)
    order = np.where(sizes > 0, order, _NO_LABEL)
    total = np.maximum(n_cells, 1)
    wins = sizes[:, 0] >= counts[:, -1]
    return pd.DataFrame(
        {
            "n_cells": n_cells,
            "label": order[:, 0],
            "share": sizes[:, 0] / total,
            "second": order[:, 1],
            "second_share": sizes[:, 1] / total,
            "unknown": counts[:, -1] / total,
            "vote": np.where(wins, order[:, 0], _NO_LABEL),
        }
    )


def columns_of_answers(
    answers: Answers, annotator: Annotator, key: str
) -> dict[str, pd.Categorical | NDArray[np.float32]]:
    """Columns of obs, by name."""
    table: dict[str, pd.Categorical | NDArray[np.float32]] = {
        key: categorical(answers.codes, annotator.labels)
    }
    for level, (name, names) in enumerate(annotator.coarser.items(), start=1):
        codes = np.where(answers.level >= level, answers.best, -1)
        table[f"{key}_{name}"] = categorical(codes, np.array(names, dtype=object))
    table[f"{key}_probability"] = answers.probability
    table[f"{key}_runner_up"] = categorical(answers.runner_up, annotator.labels)
    if annotator.ontology_ids is not None:
        ids = np.array(annotator.ontology_ids, dtype=object)
        table[f"{key}_ontology_term_id"] = categorical(answers.codes, ids)
    return table


def categorical(codes: NDArray[np.integer], names: NDArray[np.object_]) -> pd.Categorical:
    """Values of codes (-1: missing), of names that several codes may have."""
    new_codes, categories = pd.factorize(names, sort=True)
    return pd.Categorical.from_codes(np.append(new_codes, -1)[codes], categories)
