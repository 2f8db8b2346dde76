"""Which cells are compared with which, for ``rank_genes_groups``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import columns
from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

REST = "rest"


@dataclass(frozen=True)
class Groups:
    """Groups of cells that genes are ranked for."""

    names: list[str]  # in the order of the result; includes the reference
    codes: NDArray[np.int64]  # [n_cells], -1 for cells of no group
    sizes: NDArray[np.int64]  # [n_groups], cells
    by_category: NDArray[np.int64]  # groups in the order of their categories
    reference: int | None  # group to compare with; None: each with all other cells

    def all_compared(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Codes and sizes, with one more group for cells of no group if all others are the rest."""
        others = self.codes.size - self.sizes.sum()
        if self.reference is not None or others == 0:
            return self.codes, self.sizes
        return np.where(self.codes < 0, self.sizes.size, self.codes), np.append(self.sizes, others)

    @property
    def compared(self) -> list[int]:
        """Groups that get a result."""
        return [group for group in range(len(self.names)) if group != self.reference]


def parse_groups(
    obs: pd.DataFrame, groupby: str, groups: Literal["all"] | Iterable[Any], reference: Any
) -> Groups:
    """Groups of the cells from the column ``groupby`` of obs; ``groups`` and ``reference`` are as
    for :func:`scatlas.tl.rank_genes_groups`. Values that are not categorical are sorted, strings in
    natural order (``plate9`` before ``plate10``).
    """
    values = columns.get_labels(obs, groupby, "groupby")
    is_sorted = isinstance(columns.get_column(obs, groupby, "groupby").dtype, pd.CategoricalDtype)
    if not is_sorted and all(isinstance(name, str) for name in values.categories):
        values = values.reorder_categories(natsorted(values.categories))
    names = [str(category) for category in values.categories]
    position = {name: at for at, name in enumerate(names)}
    if len(position) < len(names):
        twice = _duplicate(names)
        msg = f"two values of obs[{groupby!r}] are both written {twice!r}: rename one of them"
        raise InputError(msg)
    wanted = _parse_names(names, groups)
    if reference != REST and str(reference) not in wanted:
        wanted.append(str(reference))
    if unknown := [name for name in wanted if name not in position]:
        msg = f"obs[{groupby!r}] has no group {unknown[0]!r}; it has {names}"
        raise InputError(msg)
    chosen = np.array([position[name] for name in wanted], dtype=np.int64)
    new = np.full(len(names) + 1, -1, dtype=np.int64)  # the last for cells without a value
    new[chosen] = np.arange(chosen.size)
    codes = new[values.codes]
    sizes = np.bincount(codes[codes >= 0], minlength=chosen.size).astype(np.int64)
    if few := [name for name, size in zip(wanted, sizes, strict=True) if size < 2]:
        msg = (
            f"a group needs two cells or more, but obs[{groupby!r}] has fewer of "
            f"{', '.join(map(repr, few))}: leave such groups out with groups="
        )
        raise InputError(msg)
    found = Groups(
        wanted,
        codes,
        sizes,
        np.argsort(chosen),
        None if reference == REST else wanted.index(str(reference)),
    )
    if not found.compared:
        msg = f"obs[{groupby!r}] and groups={groups!r} leave no group to compare with {reference!r}"
        raise InputError(msg)
    return found


def _parse_names(names: list[str], groups: Any) -> list[str]:
    if isinstance(groups, str) and groups == "all":
        return list(names)
    if isinstance(groups, str):
        msg = f"groups={groups!r} must be 'all' or a list of groups: pass groups=[{groups!r}]"
        raise InputError(msg)
    wanted = [str(group) for group in columns.as_names(groups, "groups")]
    if len(set(wanted)) < len(wanted):
        msg = f"groups names {_duplicate(wanted)!r} twice"
        raise InputError(msg)
    return wanted


def _duplicate(names: list[str]) -> str:
    return Counter(names).most_common(1)[0][0]
