"""Marker genes of groups of cells, from sums by group of each plate."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from natsort import natsorted

from scatlas.columns import common_genes
from scatlas.errors import InputError
from scatlas.io.products.group_sums import GroupSums, add_group_sums, read_groups
from scatlas.kernels.moments.group_sums_cpu import SumKinds, Sums
from scatlas.matrix.group_sums import check_result_size, sum_groups
from scatlas.matrix.rank_statistics import (
    adjust_pvalues,
    log_fold_changes,
    moments_of_sums,
    welch,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.columns import GeneRule
    from scatlas.matrix.rank_statistics import GroupMoments

logger = logging.getLogger(__name__)

# Columns of the table, with the names of `scanpy.get.rank_genes_groups_df`. Both pct_nz are shares
# from 0 to 1, as there.
COLUMNS = (
    *("by", "group", "rank", "names", "scores", "logfoldchanges", "pvals", "pvals_adj"),
    *("pct_nz_group", "pct_nz_reference", "mean_group", "mean_reference"),
)
# Markers of a group that should be seen, and genes that a sentence names.
_FIRST, _MAX_NAMED = 10, 20
_KINDS = SumKinds(sums=True, squares=True, nonzero=True)


class Markers(NamedTuple):
    """Marker genes of groups of cells."""

    table: pd.DataFrame  # one row per group and marker, with the columns COLUMNS
    groups: pd.DataFrame  # all groups: by, group, n_cells
    genes: pd.Index  # of the table, in the order of the plates
    # [n_groups, n_genes]: mean of log-normalised values, and share of cells with a count
    mean: NDArray[np.float32]
    share: NDArray[np.float32]


def sum_plate(x: Any, labels: pd.DataFrame, genes: pd.Index) -> GroupSums:
    """Sums of a plate's log-normalised values by group that has cells, in the order of the
    categories and one pass for each column of labels; no bit depends on blocks or threads.
    """
    parts: list[Sums] = []
    tables: list[pd.DataFrame] = []
    for by, column in labels.items():
        values = column.cat.remove_unused_categories()
        codes = values.cat.codes.to_numpy().astype(np.int64)
        names = values.cat.categories.astype(str)
        sizes = np.bincount(codes[codes >= 0], minlength=names.size).astype(np.int64)
        tables.append(pd.DataFrame({"by": by, "group": names, "n_cells": sizes}))
        shape = (names.size, genes.size)
        check_result_size(shape, 2 * _KINDS.n_arrays(np.float64), f"the sums by {by}")
        parts.append(sum_groups(x, codes, names.size, _KINDS, max_rows=int(sizes.max(initial=0))))
    return GroupSums(pd.concat(tables, ignore_index=True), genes, _stack(parts))


def merge_plates(paths: Mapping[str, Path], genes: GeneRule = "same") -> GroupSums:
    """Sums of the groups, in natural order, over ``group_sums.h5`` of all plates, with one plate
    in memory at a time; a gene that a plate lacks counts zero there.
    """
    known: dict[str, pd.Index] = {}
    found = {plate: read_groups(path, plate, known) for plate, path in paths.items()}
    shared = _genes_of_plates({plate: names for plate, (_, names) in found.items()}, genes)
    every = pd.concat([groups for groups, _ in found.values()])
    n_cells = every.groupby(["by", "group"])["n_cells"].sum()
    groups = pd.DataFrame(
        [
            {"by": by, "group": group, "n_cells": n_cells[by, group]}
            for by in every["by"].unique()
            for group in natsorted(every.loc[every["by"] == by, "group"].unique())
        ],
        columns=["by", "group", "n_cells"],
    )
    shape = (len(groups), shared.size)
    # The sums of all plates and of one, moments of both sides, scores.
    check_result_size(shape, 4 * _KINDS.n_arrays(np.float64), "the marker genes")
    total = Sums.zeros(np, shape, np.float64, _KINDS)
    rows = pd.MultiIndex.from_frame(groups[["by", "group"]])
    for plate, path in paths.items():
        own, names = found[plate]
        at = rows.get_indexer(pd.MultiIndex.from_frame(own[["by", "group"]]))
        add_group_sums(path, plate, at, names.get_indexer(shared), total)
    per_plate = pd.concat([own["by"].value_counts() for own, _ in found.values()], axis=1)
    is_plate_wise = (per_plate.max(axis=1) == 1) & (groups["by"].value_counts() > 1)
    names = (by for by in groups["by"].unique() if is_plate_wise[by])
    return GroupSums(groups, shared, total, tuple(names))


def markers_to_add(
    table: pd.DataFrame, columns: Iterable[str], genes: Collection[str]
) -> list[str]:
    """A sentence for each of some columns, if the first markers of its groups are not all among
    the ``genes`` of the atlas.
    """
    sentences = []
    first = table[table["rank"] <= _FIRST].sort_values("rank", kind="stable")
    for by in columns:
        names = first.loc[first["by"] == by, "names"].unique()
        absent = names[~np.isin(names, list(genes))].tolist()
        if absent:
            shown = yaml.safe_dump(absent[:_MAX_NAMED], default_flow_style=True, width=np.inf)
            more = len(absent) - _MAX_NAMED
            sentences.append(
                f"{len(absent):,} of the {len(names):,} first marker genes of {by} are not among "
                "the genes of the atlas, which vary within plates. Components and clusters follow "
                f"them with consensus: {{also: {shown.strip()}}}"
                + (f", and {more:,} more in tables/markers.tsv" if more > 0 else "")
            )
    return sentences


def rank_markers(found: GroupSums, n_genes: int, min_fold_change: float = 0.0) -> Markers:
    """Rank the genes of each group of two cells or more by Welch's t-test against all other cells
    with a label; the numbers are those of :func:`scatlas.tl.rank_genes_groups` on these cells.
    Genes below the smallest fold change are no markers: among many cells a test finds differences
    of a few per cent, which are the same in all cells, surer than any other.
    """
    groups, total = found.groups, found.sums
    rows = [
        row for by in groups["by"].unique() for row in _rank(found, by, n_genes, min_fold_change)
    ]
    table = pd.DataFrame(rows, columns=COLUMNS)
    number = table.select_dtypes("float64").columns.difference(["pvals", "pvals_adj"])
    table = table.astype(dict.fromkeys(number, np.float32))
    at = np.flatnonzero(found.genes.isin(table["names"]))
    n = groups["n_cells"].to_numpy()[:, None]
    mean, share = total.sums[:, at] / n, total.nonzero[:, at] / n
    genes = found.genes[at]
    return Markers(table, groups, genes, mean.astype(np.float32), share.astype(np.float32))


def _rank(
    found: GroupSums, by: str, n_genes: int, min_fold_change: float
) -> Iterator[dict[str, Any]]:
    """Rows of the table for the groups of one column."""
    at = np.flatnonzero(found.groups["by"] == by)
    groups = found.groups.iloc[at]
    sizes, names = groups["n_cells"].to_numpy(), groups["group"].to_numpy()
    tested = np.flatnonzero(sizes > 1)
    if at.size < 2:
        logger.warning("all cells have one value of %s: it has no marker genes", by)
        return
    if tested.size < at.size:
        few = ", ".join(names[sizes < 2])
        logger.warning("groups of %s with one cell have no marker genes: %s", by, few)
    # Groups of one column are neighbours, so this is a view.
    sums = found.sums.map(lambda part: part[at[0] : at[-1] + 1])
    moments = moments_of_sums(sums, sizes, found.genes)
    for group, scores, pvals in welch(moments, tested):
        folds = log_fold_changes(moments.mean[group], moments.mean_other[group], None)
        scores[np.exp2(folds) < min_fold_change] = -np.inf
        yield from (
            {"by": by, "group": names[group], **row}
            for row in _best_genes(moments, group, scores, pvals, found.genes, n_genes)
        )


def _best_genes(
    moments: GroupMoments,
    group: int,
    scores: NDArray[np.float64],
    pvals: NDArray[np.float64],
    genes: pd.Index,
    n_genes: int,
) -> Iterator[dict[str, Any]]:
    """Rows of the table for one group, by descending score; -inf: no marker."""
    assert moments.nonzero is not None
    best = np.argsort(-scores, kind="stable")[: min(n_genes, np.count_nonzero(scores > -np.inf))]
    mean, mean_other = moments.mean[group, best], moments.mean_other[group, best]
    nonzero = moments.nonzero[group, best]
    others = moments.nonzero[:, best].sum(axis=0) - nonzero
    columns = (
        np.arange(1, best.size + 1),
        genes[best],
        scores[best],
        log_fold_changes(mean, mean_other, None),
        pvals[best],
        adjust_pvalues(pvals, "benjamini-hochberg")[best],
        nonzero / moments.n[group],
        others / moments.n_other[group],
        mean,
        mean_other,
    )
    for values in zip(*columns, strict=True):
        yield dict(zip(COLUMNS[2:], values, strict=True))


def _genes_of_plates(found: Mapping[str, pd.Index], genes: GeneRule) -> pd.Index:
    first, shared = next(iter(found.items()))
    for plate, names in found.items() if genes == "same" else ():
        if not names.equals(shared):
            raise InputError(
                f"the genes of plate {plate} are not those of plate {first}: load both again, or "
                "set genes: intersect (or union)"
            )
    return common_genes([*found.values()], genes)


def _stack(parts: list[Sums]) -> Sums:
    """Sums of several columns, one below the other."""
    names = ("sums", "errors", "squares", "square_errors", "nonzero")
    return Sums(False, *(np.concatenate([getattr(part, name) for part in parts]) for name in names))
