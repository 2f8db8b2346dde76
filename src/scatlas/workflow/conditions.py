"""Cells of conditions beside those of the control (config: effects): sums of their components, and
their numbers in clusters, from a block of rows at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas.errors import InputError
from scatlas.io import open_tables
from scatlas.io.matrices.lazy import read_embedding
from scatlas.matrix.composition import COLUMNS, compositions
from scatlas.matrix.edistance import add_up, edistances, sum_cells
from scatlas.matrix.effects_groups import (
    add_cells,
    check_control,
    count_cells,
    label_names,
    read_labels,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.workflow.config.sections import Effects

# Cells that are read at once: a fixed number, so that no bit of a sum depends on the memory.
_ROWS = 2**18


def distances(store: Path, wanted: Effects, *, seed: int) -> pd.DataFrame:
    """Table of :func:`scatlas.tl.edistance` of all cells of a store with ``obsm['X_pca']``."""
    x = read_embedding(store, "X_pca")
    names = label_names(wanted.condition, wanted.within, wanted.replicate, wanted.block)
    within = [name for name in names if name.startswith("within")]
    total: tuple[Any, ...] = ()
    for rows, labels in _blocks(store, names):
        samples, sums, squares = sum_cells(x[rows], labels)
        samples = samples.astype(dict.fromkeys(names, str))
        if total:
            samples = pd.concat([total[0], samples])
            sums, squares = np.concatenate([total[1], sums]), np.concatenate([total[2], squares])
        total = add_up(samples, sums, squares, within)
    check_control(wanted.control, total[0]["condition"].astype("category"), wanted.condition)
    options: dict[str, Any] = {"min_cells": max(2, wanted.min_cells), "random_state": seed}
    table = edistances(*total, control=wanted.control, within=within, **options)
    return table.rename(columns=names)


def shares(store: Path, wanted: Effects, by: Sequence[str]) -> pd.DataFrame:
    """Tables of :func:`scatlas.tl.composition` for the columns ``by``, whose names are the first
    column, below each other; for one that cannot be compared a row with the reason.
    """
    tables = []
    options: dict[str, Any] = {"control": wanted.control, "min_cells": max(1, wanted.min_cells)}
    for column in by:
        try:
            table = compositions(*_cluster_sizes(store, wanted, column), **options)
        except InputError as error:
            reason = {"condition": "", "cluster": "", "reason": str(error)}
            table = pd.DataFrame([reason], columns=COLUMNS)
        table.insert(0, "by", column)
        tables.append(table)
    whole = dict.fromkeys(["n_replicates", "n_controls", "n_cells"], "Int64")
    table = pd.concat(tables, ignore_index=True).astype(whole)
    return table.rename(columns={"condition": wanted.condition})


def _cluster_sizes(
    store: Path, wanted: Effects, column: str
) -> tuple[NDArray[np.int64], pd.DataFrame, pd.Index]:
    """Numbers of cells ``[replicates, clusters]``, the replicates, and the clusters."""
    names = label_names(wanted.condition, (column,), wanted.replicate, wanted.block)
    names["cluster"] = names.pop("within 0")
    parts: list[pd.DataFrame] = []
    for _, labels in _blocks(store, names):
        parts = [add_cells([*parts, count_cells(labels)])]
    index = [name for name in names if name != "cluster"]
    counts = parts[0].pivot_table("n", index, "cluster", aggfunc="sum", fill_value=0)
    counts = counts[natsorted(counts.columns)].astype(np.int64)
    samples = counts.index.to_frame(index=False).astype("category")
    return counts.to_numpy(), samples, counts.columns


def _blocks(store: Path, names: Mapping[str, str]) -> Iterator[tuple[slice, pd.DataFrame]]:
    """Rows and their labels, by the keys of ``names``."""
    with open_tables(store) as (obs, _):
        for name in names.values():
            if name not in obs.columns:
                raise InputError(
                    f"the cells have no obs column {name!r}, which effects names; they have "
                    f"{', '.join(obs.columns)}"
                )
        read: dict[str, Any] = {name: obs.columns[name] for name in names.values()}
        for first in range(0, obs.n_rows, _ROWS):
            rows = slice(first, min(first + _ROWS, obs.n_rows))
            values = {name: column.array(rows.start, rows.stop) for name, column in read.items()}
            yield rows, read_labels(pd.DataFrame(values), names)
