"""Effects within each value of some columns: tables of pseudobulks, a model after the other."""

from __future__ import annotations

import logging
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import pandas as pd

from scatlas import columns
from scatlas.errors import InputError
from scatlas.matrix.effects import N_CELLS as N_CELLS
from scatlas.matrix.effects import fit_effects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from scatlas.matrix.effects import Effects

COLUMNS = (
    *("n_replicates", "n_controls", "n_cells", "df_residual", "df_prior", "n_genes"),
    *("n_significant", "model"),
)
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
    table = read_labels(obs, label_names(condition, within, replicate, block))
    for i, name in enumerate(within):
        if gaps := int(table[f"within {i}"].isna().sum()):
            logger.warning("%d rows have no value of %s and are left out", gaps, name)
    check_control(str(control), table["condition"], condition)
    return table


def label_names(
    condition: str,
    within: Sequence[str] = (),
    replicate: str | None = None,
    block: str | None = None,
) -> dict[str, str]:
    """Columns of obs by those of :func:`label_samples`."""
    given = {"condition": condition, "block": block, "replicate": replicate}
    names = {f"within {i}": name for i, name in enumerate(within)}
    return names | {option: name for option, name in given.items() if name}


def read_labels(obs: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Labels as texts, without the comparison with the control."""
    table = pd.DataFrame(index=obs.index)
    for key, name in names.items():
        option = key.split()[0]
        columns.check_groups(columns.get_column(obs, name, option), option)
        labels = columns.get_labels(obs, name, option).remove_unused_categories()
        texts = Counter(str(label) for label in labels.categories)
        if bad := [text for text in texts if text in _NO_NAMES or texts[text] > 1]:
            raise InputError(
                f"obs[{name!r}] ({option}) has the label {bad[0]!r}, which tables read as a gap or "
                "as another label: rename it"
            )
        labels = labels.rename_categories([*texts])
        gaps = int((labels.codes < 0).sum())
        if gaps and option not in ("within", "cluster"):
            raise InputError(
                f"obs[{name!r}] ({option}) has no value in {gaps:,} of {len(obs):,} rows: "
                "leave them out (in the workflow by qc.filter), or give them one"
            )
        table[key] = pd.Categorical(labels)
    return table


def check_control(control: str, labels: pd.Series, name: str) -> None:
    """Refuse a control that is no label."""
    there = list(labels.cat.categories)
    if control not in there:
        by_lower = {label.lower(): label for label in there}
        near = get_close_matches(control.lower(), by_lower, 1, 0)
        which = repr(by_lower[near[0]]) if near else "a column with values"
        raise InputError(f"obs[{name!r}] has no control {control!r}: try {which}")


def count_cells(labels: pd.DataFrame) -> pd.DataFrame:
    """Labels as texts, and the number of cells ``n``; those without a label are not counted."""
    sizes = labels.groupby([*labels], observed=True).size()
    return sizes.rename("n").reset_index().astype(dict.fromkeys(labels, str))


def add_cells(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The same of several plates or blocks."""
    table = pd.concat(parts, ignore_index=True)
    return table.groupby([*table.columns.drop("n")], as_index=False)["n"].sum()


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


def with_labels(table: pd.DataFrame, group: Mapping[str, str], condition: str) -> pd.DataFrame:
    """A table of the conditions of a group, with their labels."""
    return pd.DataFrame({**group, condition: table.index.astype(str)}, table.index).join(table)


def as_obs(table: pd.DataFrame, labels: Sequence[str]) -> pd.DataFrame:
    """The conditions of all groups with names, and labels as categories."""
    from anndata.utils import make_index_unique

    table = table.copy()
    for name in labels:
        table[name] = pd.Categorical(table[name], table[name].unique())
    names = ["_".join(row) for row in table[[*labels]].astype(str).to_numpy()]
    return table.set_axis(make_index_unique(pd.Index(names, dtype=object)))


def fit_groups(
    samples: pd.DataFrame,
    counts_of: Callable[[NDArray[Any]], NDArray[Any]],
    genes: pd.Index,
    left_out: list[tuple[str, ...]],
    **options: Any,
) -> Iterator[tuple[tuple[str, ...], Effects]]:
    """Labels and effects of each group of samples that has some; a caller that forgets the last
    before it asks for the next holds the counts of one.

    `samples` has the columns of :func:`label_samples`, and ``row``, which ``counts_of`` takes. What
    is left out, with the reason, is added to the list: labels of the group, condition, sample.
    """
    within = [name for name in samples if name.startswith("within")]
    for key, own in samples.groupby(within, observed=True) if within else [((), samples)]:
        rows, own = own["row"].to_numpy(), own.drop(columns=["row", *within])
        try:
            found = [fit_effects(counts_of(rows), own, genes, **options)]
        except InputError as error:
            if not within:
                raise
            left_out.append((*key, "", "", str(error)))
            logger.warning("no effects within %s: %s", ", ".join(key), error)
            continue
        left_out += [(*key, *row) for row in found[0].left_out.itertuples(index=False)]
        yield key, found.pop()
