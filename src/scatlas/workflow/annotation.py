"""Types of cells between the steps (config: annotate): a table by plate, then obs columns of all
cells, and tables of clusters, plates and the agreement of two classifiers.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas.columns import known_names
from scatlas.errors import InputError
from scatlas.io import read_annotator, read_cells
from scatlas.io.products.annotators import Annotator, check_labels
from scatlas.matrix.annotate import (
    Answers,
    annotate_values,
    categorical,
    columns_of_answers,
    vote,
)
from scatlas.matrix.marker_lists import NO_SCORE, vote_by_scores
from scatlas.workflow.labels import read_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.workflow.labels import Clusters

# What is stored of a cell; its margin and fit have decided its level.
_STORED = ("codes", "level", "best", "runner_up", "probability")
UNKNOWN = "unknown"
_N_GENES = 10


def read_marker_lists(path: Path) -> Annotator:
    """Types of a table with the columns label, up and down: a row of genes for each type."""
    header, *rows = read_rows(path, "marker genes")
    table = pd.DataFrame(rows, columns=header)
    for name in ("label", "up"):
        if name not in header:
            raise InputError(
                f"{path} has no column {name!r}; it has {', '.join(header)}: name its columns "
                "label, up and down, with the genes of a type separated by spaces or commas"
            )
    check_labels(table["label"], str(path))
    if (twice := table["label"].duplicated()).any():
        name = table["label"][twice].iloc[0]
        raise InputError(f"{path}: type {name!r} has two rows: write its genes into one")
    lists = []
    for name, *texts in zip(
        table["label"], table["up"], table.get("down", table["up"].str[:0]), strict=True
    ):
        up, down = (dict.fromkeys(re.findall(r"[^\s,;|]+", text)) for text in texts)
        if not up:
            raise InputError(f"{path}: type {name!r} has no gene in the column up: write some")
        if both := [gene for gene in up if gene in down]:
            raise InputError(f"{path}: {both[0]} is up and down in type {name!r}: remove one")
        lists.append((up, down))
    names = pd.Index(dict.fromkeys(gene for up, down in lists for gene in (*up, *down)))
    coef = np.zeros((len(table), len(names)))
    for row, of_list in zip(coef, lists, strict=True):
        for sign, some in zip((1, -1), of_list, strict=True):
            row[names.get_indexer([*some])] = sign
    return Annotator(
        labels=table["label"].to_numpy(),
        genes=names.to_numpy(),
        coef=coef,
        intercept=np.zeros(len(table)),
        mean=np.zeros(len(names)),
        scale=np.ones(len(names)),
        link="lists",
    )


def types_of_cells(
    x: Any,
    var: pd.DataFrame,
    keep: NDArray[np.bool_],
    annotators: Mapping[str, Path],
    key: str,
) -> dict[str, pd.Categorical | NDArray[Any]]:
    """obs columns of the kept cells of a plate, without votes of clusters."""
    columns: dict[str, pd.Categorical | NDArray[Any]] = {}
    for number, (source, path) in enumerate(annotators.items()):
        annotator = read_annotator(path)
        if annotator.link == "lists":
            continue  # its columns are of clusters
        names = known_names(var, pd.Index(annotator.genes))
        answers = annotate_values(x, names, annotator, keep=keep, source="the plate's counts")
        columns |= columns_of_answers(answers, annotator, f"{key}_{source}" if number else key)
    return columns


def table_of_answers(answers: Answers, source: str) -> dict[str, NDArray[Any]]:
    return {f"{source}_{name}": getattr(answers, name) for name in _STORED}


def table_of_scores(scores: NDArray[np.int16], source: str) -> dict[str, NDArray[Any]]:
    """Columns of a plate's table: scores by lists of marker genes, and the best list."""
    best = {f"{source}_best": scores.argmax(axis=1).astype(np.int32)}
    return best | {f"{source}_{n}": scores[:, n] for n in range(scores.shape[1])}


def votes_by_lists(
    tables: Iterable[Path], source: str, shape: tuple[int, int], of_cells: NDArray[np.int64]
) -> pd.DataFrame:
    """Votes of ``shape[0]`` clusters by the scores of ``shape[1]`` lists of all plates."""
    n_clusters, n_lists = shape
    # A last row for cells of no cluster; sums of integers, which are exact.
    sums, cells, best = (np.zeros((n_clusters + 1, n_lists)) for _ in range(3))
    first = 0
    for path in tables:
        firsts = read_cells(path, [f"{source}_best"])[f"{source}_best"].to_numpy()
        own = of_cells[first : first + firsts.size] % (n_clusters + 1)
        first += firsts.size
        np.add.at(best, (own, firsts), 1)
        for number in range(n_lists):
            name = f"{source}_{number}"
            scores = read_cells(path, [name])[name].to_numpy()
            if not (scores == NO_SCORE).any():  # else the plate has none of its genes
                sums[:, number] += np.bincount(own, scores, n_clusters + 1)
                cells[:, number] += np.bincount(own, minlength=n_clusters + 1)
    return vote_by_scores(sums[:-1], cells[:-1], best[:-1])


def read_answers(tables: Iterable[Path], source: str) -> Answers:
    parts = [read_cells(path, [f"{source}_{name}" for name in _STORED]) for path in tables]
    found = {name: np.concatenate([part[f"{source}_{name}"] for part in parts]) for name in _STORED}
    blank = np.zeros(0, np.float32)
    return Answers(**{f.name: found.get(f.name, blank) for f in fields(Answers)})


def join_annotations(
    tables: Mapping[str, Path],
    annotators: Mapping[str, Path],
    key: str,
    clusters: Clusters,
    own: Mapping[str, pd.Series],
) -> tuple[dict[str, pd.Categorical | NDArray[Any]], dict[str, pd.DataFrame]]:
    """obs columns of all cells of the atlas, and tables by name: ``annotation`` by cluster,
    ``annotation_by_plate``, ``annotation_genes`` that speak for a type, and the numbers of cells by
    type of each classifier and in their ``own`` columns of labels, ``annotation_agreement``.
    """
    columns: dict[str, pd.Categorical | NDArray[Any]] = {}
    by_cluster, by_plate, genes, cells = [], [], [], dict(own)
    sizes = {plate: len(read_cells(path, [])) for plate, path in tables.items()}
    of_cells = clusters.of_cells(sum(sizes.values()))
    for number, (source, path) in enumerate(annotators.items()):
        annotator, name = read_annotator(path), f"{key}_{source}" if number else key
        genes.append(_first_genes(annotator).assign(source=source))
        if annotator.link == "lists":
            shape = len(clusters.names), annotator.labels.size
            votes = votes_by_lists(tables.values(), source, shape, of_cells)
        else:
            answers = read_answers(tables.values(), source)
            columns |= columns_of_answers(answers, annotator, name)
            votes = vote(answers.codes, of_cells, annotator.labels.size, len(clusters.names))
        shown = votes_of(votes, annotator, clusters)
        by_cluster.append(shown.assign(source=source))
        won = shown.set_index("leiden")["vote"].reindex(clusters.names).replace("", None)
        of_clusters = categorical(of_cells, won.to_numpy(object))
        columns[name if annotator.link == "lists" else f"{name}_vote"] = of_clusters
        by_plate.append(_shares_by_plate(columns[name], sizes).assign(source=source))
        cells[name] = pd.Series(columns[name])
    pairs = pd.DataFrame({k: _with_unknown(values) for k, values in cells.items()})
    groups = pairs.value_counts(sort=False).rename("n_cells").reset_index()
    groups = groups.astype(dict.fromkeys(cells, str))
    # Of equal sizes by name, so that no order of the cells is left.
    ascending = [False, *[True] * len(cells)]
    written = {
        "annotation": pd.concat(by_cluster),
        "annotation_by_plate": pd.concat(by_plate),
        "annotation_genes": pd.concat(genes),
        "annotation_agreement": groups.sort_values(["n_cells", *cells], ascending=ascending),
    }
    return columns, written


def _with_unknown(values: pd.Series) -> pd.Categorical:
    """Labels of cells as categories, which take a byte or two per cell, with one for no label."""
    found = pd.Categorical(values)
    found = found.rename_categories([str(name) for name in found.categories])
    if UNKNOWN not in found.categories:
        found = found.add_categories([UNKNOWN])
    return found.fillna(UNKNOWN)


def votes_of(table: pd.DataFrame, annotator: Annotator, clusters: Clusters) -> pd.DataFrame:
    """Of each cluster its vote, the best type with its share of the cells, the second one, what is
    unknown, and the mean scores by lists of marker genes.
    """
    names = np.append(annotator.labels.astype(object), "")
    shown = pd.DataFrame(
        {
            "leiden": clusters.names,
            "n_cells": table["n_cells"],
            "vote": names[table["vote"]],
            "name": names[table["label"]],
            "share": table["share"].round(4),
            "second name": names[table["second"]],
            "its share": table["second_share"].round(4),
            UNKNOWN: table["unknown"].round(4),
        }
    )
    if "score" in table:
        shown[["score", "its score"]] = table[["score", "second_score"]].round(2)
    return shown.set_index("leiden").loc[natsorted(clusters.names)].reset_index()


def _first_genes(annotator: Annotator) -> pd.DataFrame:
    """Genes with the largest coefficients of each type, per standard deviation of the gene."""
    order = np.argsort(-annotator.coef, axis=1, kind="stable")[:, :_N_GENES]
    chosen = [row[some[row] > 0] for row, some in zip(order, annotator.coef, strict=True)]
    words = [" ".join(annotator.genes[row]) for row in chosen]
    return pd.DataFrame({"name": annotator.labels, "genes": words})


def _shares_by_plate(cells: Any, sizes: Mapping[str, int]) -> pd.DataFrame:
    """Cells of each type and plate, and their share of the plate; unknown ones last."""
    rows, first = [], 0
    names = [*map(str, cells.categories), UNKNOWN]
    for plate, size in sizes.items():
        own = cells.codes[first : first + size] % len(names)
        counts = np.bincount(own, minlength=len(names))
        first += size
        rows += [
            {"plate": plate, "name": name, "n_cells": n, "share": round(n / max(size, 1), 4)}
            for name, n in zip(names, counts.tolist(), strict=True)
            if n or name == UNKNOWN
        ]
    return pd.DataFrame(rows)
