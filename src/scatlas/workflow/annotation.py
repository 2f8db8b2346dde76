"""Types of cells between the steps (config: annotate): a table by plate, then obs columns of all
cells, and tables of clusters, plates and the agreement of two classifiers.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas.columns import known_names
from scatlas.io import atomic_path, read_annotator, read_cells
from scatlas.matrix.annotate import (
    Answers,
    annotate_values,
    categorical,
    columns_of_answers,
    vote,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.io.products.annotators import Annotator
    from scatlas.workflow.labels import Clusters

# What is stored of a cell; its margin and fit have decided its level.
_STORED = ("codes", "level", "best", "runner_up", "probability")
UNKNOWN = "unknown"
_N_GENES = 10


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
        names = known_names(var, pd.Index(annotator.genes))
        answers = annotate_values(x, names, annotator, keep=keep, source="the plate's counts")
        columns |= columns_of_answers(answers, annotator, f"{key}_{source}" if number else key)
    return columns


def table_of_answers(answers: Answers, source: str) -> dict[str, NDArray[Any]]:
    """Columns of the table of a plate."""
    return {f"{source}_{name}": getattr(answers, name) for name in _STORED}


def read_answers(tables: Iterable[Path], source: str) -> Answers:
    """Answers of a classifier for the cells of all plates."""
    names = [f"{source}_{name}" for name in _STORED]
    parts = [read_cells(path, names) for path in tables]
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
    for number, (source, path) in enumerate(annotators.items()):
        annotator, answers = read_annotator(path), read_answers(tables.values(), source)
        name = f"{key}_{source}" if number else key
        columns |= columns_of_answers(answers, annotator, name)
        votes = votes_of(answers, annotator, clusters)
        by_cluster.append(votes.assign(source=source))
        of_cells = clusters.of_cells(answers.codes.size)
        won = votes.set_index("leiden")["vote"].reindex(clusters.names).replace("", None)
        columns[f"{name}_vote"] = categorical(of_cells, won.to_numpy(object))
        by_plate.append(_shares_by_plate(columns[name], tables).assign(source=source))
        genes.append(_first_genes(annotator).assign(source=source))
        cells[name] = pd.Series(columns[name])
    pairs = pd.DataFrame({k: _with_unknown(values) for k, values in cells.items()})
    sizes = pairs.value_counts(sort=False).rename("n_cells").reset_index()
    sizes = sizes.astype(dict.fromkeys(cells, str))
    # Of equal sizes by name, so that no order of the cells is left.
    ascending = [False, *[True] * len(cells)]
    written = {
        "annotation": pd.concat(by_cluster),
        "annotation_by_plate": pd.concat(by_plate),
        "annotation_genes": pd.concat(genes),
        "annotation_agreement": sizes.sort_values(["n_cells", *cells], ascending=ascending),
    }
    return columns, written


def _with_unknown(values: pd.Series) -> pd.Categorical:
    """Labels of cells as categories, which take a byte or two per cell, with one for no label."""
    found = pd.Categorical(values)
    found = found.rename_categories([str(name) for name in found.categories])
    if UNKNOWN not in found.categories:
        found = found.add_categories([UNKNOWN])
    return found.fillna(UNKNOWN)


def votes_of(answers: Answers, annotator: Annotator, clusters: Clusters) -> pd.DataFrame:
    """Of each cluster its vote, the most frequent type with its share, the second one, and what is
    unknown.
    """
    codes = answers.codes if clusters.rows is None else answers.codes[clusters.rows]
    sizes = annotator.labels.size, len(clusters.names)
    table = vote(codes, np.asarray(clusters.codes), *sizes)
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
    return shown.set_index("leiden").loc[natsorted(clusters.names)].reset_index()


def _first_genes(annotator: Annotator) -> pd.DataFrame:
    """Genes with the largest coefficients of each type, per standard deviation of the gene."""
    order = np.argsort(-annotator.coef, axis=1, kind="stable")[:, :_N_GENES]
    names = annotator.genes[order]
    return pd.DataFrame({"name": annotator.labels, "genes": [" ".join(row) for row in names]})


def _shares_by_plate(cells: Any, tables: Mapping[str, Path]) -> pd.DataFrame:
    """Cells of each type and plate, and their share of the plate; unknown ones last."""
    sizes = [len(read_cells(path, [])) for path in tables.values()]
    rows, first = [], 0
    for plate, size in zip(tables, sizes, strict=True):
        counts = np.bincount(
            cells.codes[first : first + size] % (len(cells.categories) + 1),
            minlength=len(cells.categories) + 1,
        )
        first += size
        names = [*map(str, cells.categories), UNKNOWN]
        rows += [
            {"plate": plate, "name": name, "n_cells": n, "share": round(n / max(size, 1), 4)}
            for name, n in zip(names, counts.tolist(), strict=True)
            if n or name == UNKNOWN
        ]
    return pd.DataFrame(rows)


def write_tables(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write tables as TSV, each in ``folder`` under its name."""
    for name, table in tables.items():
        with atomic_path(folder / f"{name}.tsv") as path:
            table.to_csv(path, sep="\t", index=False, lineterminator="\n")
