"""Effects within each value of some columns: tables of pseudobulks, a model after the other."""

from __future__ import annotations

import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas import columns
from scatlas.errors import InputError
from scatlas.matrix.effects import Effects, fit_effects
from scatlas.matrix.effects_moderation import n_discoveries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

N_CELLS = "n_obs_aggregated"  # as sa.get.aggregate names it
_FDR = 0.05
# Texts that readers of tables take for a gap.
_NO_NAMES = ("", "NA", "NaN", "nan", "None", "<NA>")
logger = logging.getLogger(__name__)


def label_samples(
    obs: pd.DataFrame,
    condition: str,
    control: str,
    within: Sequence[str] = (),
    replicate: str | None = None,
    block: str | None = None,
) -> pd.DataFrame:
    """Labels as texts, in the columns ``within 0`` and on, ``condition``, ``block``, ``replicate``;
    those of ``within`` may have gaps.
    """
    names = {f"within {i}": name for i, name in enumerate(within)}
    given = {"condition": condition, "block": block, "replicate": replicate}
    table = _labels(obs, names | {option: name for option, name in given.items() if name})
    _check_control(str(control), table["condition"], condition)
    return table


def _labels(obs: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    table = pd.DataFrame(index=obs.index)
    for option, name in names.items():
        columns.check_groups(columns.get_column(obs, name, option), option)
        labels = columns.get_labels(obs, name, option).remove_unused_categories()
        labels = labels.rename_categories([str(label) for label in labels.categories])
        if bad := [label for label in labels.categories if label in _NO_NAMES]:
            raise InputError(
                f"obs[{name!r}] ({option}) has the label {bad[0]!r}, which tables read as a gap: "
                "rename it"
            )
        gaps = int((labels.codes < 0).sum())
        if gaps and not option.startswith("within"):
            raise InputError(
                f"obs[{name!r}] ({option}) has no value in {gaps:,} of {len(obs):,} rows: fill "
                "them, or leave these rows out"
            )
        if gaps:
            logger.warning("%d rows have no value of %s and are left out", gaps, name)
        table[option] = pd.Categorical(labels)
    return table


def _check_control(control: str, labels: pd.Series, name: str) -> None:
    """Refuse a control that is no label."""
    there = list(labels.cat.categories)
    if control not in there:
        near = get_close_matches(control, there, 1) or there[:1]
        raise InputError(f"obs[{name!r}] has no control {control!r}: try {', '.join(near)!r}")


def drop_small(samples: pd.DataFrame, min_cells: int) -> tuple[pd.DataFrame, list[tuple[str, ...]]]:
    """Without pseudobulks of few cells, which are listed."""
    if N_CELLS not in samples:
        return samples, []
    small = samples[N_CELLS] < min_cells
    within = [name for name in samples if name.startswith("within")]
    rows = [
        (*map(str, own[within]), str(own["condition"]), str(name), f"{own[N_CELLS]:,} cells")
        for name, own in samples[small].iterrows()
    ]
    return samples[~small], rows


def _groups(
    samples: pd.DataFrame, groups: Sequence[str]
) -> Iterable[tuple[tuple[str, ...], pd.DataFrame]]:
    """Samples of each combination of labels that occurs, in the order of the categories."""
    if not groups:
        return [((), samples)]
    return samples.groupby(list(groups), observed=True, sort=True)


def fit_groups(
    samples: pd.DataFrame,
    counts_of: Callable[[NDArray[Any]], NDArray[Any]],
    genes: pd.Index,
    left_out: list[tuple[str, ...]],
    **options: Any,
) -> Iterator[tuple[tuple[str, ...], Effects]]:
    """Effects of each group of samples that has some, by its labels.

    `samples` has the columns of :func:`label_samples`, and ``row``, which ``counts_of`` takes. What
    is left out, with the reason, is added to the list: labels of the group, condition, sample.
    """
    within = [name for name in samples if name.startswith("within")]
    for key, own in _groups(samples, within):
        try:
            fit = fit_effects(counts_of(own["row"].to_numpy()), own, genes, **options)
        except InputError as error:
            if not within:
                raise
            left_out.append((*key, "", "", str(error)))
            logger.warning("no effects within %s: %s", ", ".join(key), error)
            continue
        found = fit.to_memory()
        left_out += [(*key, *row) for row in found.left_out.itertuples(index=False)]
        yield key, found


def table_of(found: Effects) -> pd.DataFrame:
    """The conditions of a model, with what they rest on and how many genes they change."""
    df = found.genes["df"].to_numpy()
    table = found.conditions.assign(
        df_residual=float(found.genes["df_residual"].max()),
        df_prior=found.df_prior,
        n_genes=np.isfinite(found.t).sum(axis=1),
        n_significant=[n_discoveries(row, df, _FDR) for row in found.t],
    )
    if N_CELLS in found.samples:
        cells = found.samples.groupby("condition", observed=True)[N_CELLS].sum()
        table.insert(2, "n_cells", cells[table.index].to_numpy())
    return table
