"""Labelled cells from which types are learnt (config: annotate): of a file, or of the plates."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas.columns import common_genes
from scatlas.compute.threads import DEFAULT_BUDGET
from scatlas.errors import InputError
from scatlas.io import open_tables, read_cells, read_matrix
from scatlas.matrix.annotate import MIN_SHARE, log_normalised
from scatlas.matrix.train_annotator import check_types

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.workflow.config.sections import Annotate


def columns_of_file(path: Path | str, wanted: Annotate) -> pd.DataFrame:
    """The obs columns that annotate names, all of which a file of labelled cells must have."""
    with open_tables(path) as (obs, _):
        there = list(obs.columns)
        for name in wanted.columns_of_cells:
            if name not in there:
                close = get_close_matches(name, there, 1)
                hint = f"did you mean {close[0]}? " if close else ""
                raise InputError(
                    f"{path} has no obs column {name!r}, which annotate names; {hint}it has "
                    f"{', '.join(there) or 'none'}"
                )
        return obs.read(wanted.columns_of_cells, index=False)


def types_in(obs: pd.DataFrame, wanted: Annotate) -> dict[str, Any]:
    """Types, coarser ones and ids of labelled cells, as their training and its checks take them."""
    *coarser, finest = wanted.label
    ids = [wanted.ontology] if wanted.ontology else []
    table = {name: pd.Categorical(obs[name].astype(object)) for name in [*wanted.label, *ids]}
    return {
        "labels": table[finest],
        "coarser": {name: table[name] for name in coarser},
        "ontology_ids": table[wanted.ontology] if wanted.ontology else None,
    }


def check_file(path: Path | str, wanted: Annotate, budget: str = "auto") -> None:
    """Refuse labelled cells as their training would: by all types, and by three blocks of X."""
    check_types(**types_in(columns_of_file(path, wanted), wanted), source=str(path))
    x, _ = read_matrix(path, block_budget=DEFAULT_BUDGET if budget == "auto" else budget)
    for number in sorted({0, x.numblocks[0] // 2, x.numblocks[0] - 1}):
        block = blocks.to_memory(x.blocks[number])
        n_cells, n_genes = block.shape
        log_normalised(block, np.ones(n_cells, dtype=bool), np.arange(n_genes), str(path))


def cells_of_plates(
    stores: Mapping[str, Path],
    kept: Mapping[str, Path],
    labels: Mapping[str, Mapping[str, str]],
    wanted: Annotate,
    **sizes: int,
) -> tuple[da.Array, pd.Index, NDArray[np.int64], pd.DataFrame]:
    """Counts of the plates that have all columns, in obs or in the plate sheet, their genes, the
    positions of those that all have, and the columns; cells that were not kept have gaps there.
    """
    parts: list[da.Array] = []
    tables: list[pd.DataFrame] = []
    genes: dict[str, pd.Index] = {}
    for plate, store in stores.items():
        constants = {"plate": plate, **{k: v for k, v in labels.get(plate, {}).items() if v}}
        with open_tables(store) as (obs, _):
            own = [name for name in wanted.columns_of_cells if name not in constants]
            if any(name not in obs.columns for name in own):
                continue  # a plate without labels
            table = obs.read(own, index=False) if own else pd.DataFrame(index=range(obs.n_rows))
        table = table.assign(**constants).astype(object).reset_index(drop=True)
        table[~read_cells(kept[plate], ["keep"])["keep"].to_numpy()] = np.nan
        x, var = read_matrix(store, compact=True, **sizes)
        parts.append(x)
        tables.append(table)
        genes[plate] = var.index
    if not parts:
        raise InputError(
            f"annotate: no plate has {', '.join(wanted.columns_of_cells)} in obs or in the plate "
            "sheet: correct annotate.label, or name labelled cells as annotate.reference"
        )
    names = common_genes([*genes.values()], "union")
    shared = common_genes([*genes.values()], "intersect")
    if shared.size < MIN_SHARE * min(map(len, genes.values())):
        first, *others = genes
        other = min(others, key=lambda plate: int(genes[plate].isin(genes[first]).sum()))
        raise InputError(
            f"annotate: the labelled plates share {shared.size:,} genes: plate {first} has "
            f"{str(genes[first][0])!r}, plate {other} {str(genes[other][0])!r}: give labels to "
            "plates with the same kind of gene names, or name labelled cells as annotate.reference"
        )
    x = da.concatenate([_spread(*part, names) for part in zip(parts, genes.values(), strict=True)])
    return x, names, names.get_indexer(shared), pd.concat(tables, ignore_index=True)


def _spread(x: da.Array, own: pd.Index, names: pd.Index) -> da.Array:
    """Counts of a plate among the genes of all plates, so that cells keep their totals."""
    if own.equals(names):
        return x
    columns = names.get_indexer(own)
    order = np.argsort(columns)
    x = x if (np.diff(order) == 1).all() else blocks.select_genes(x, order)
    return blocks.spread_genes(x, columns[order], names.size)
