"""Groups that ``rank_genes_groups`` compares, their moments, and scanpy's tables of the results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from natsort import natsorted

from scatlas import blocks, columns
from scatlas.errors import InputError
from scatlas.matrix.group_sums import check_result_size, sum_groups
from scatlas.matrix.rank_statistics import GroupMoments, adjust_pvalues, moments_of_sums

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from scatlas.kernels.moments.group_sums_cpu import SumKinds, Sums


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
    """Groups of the cells from the column ``groupby``; values that are not categorical are sorted,
    strings in natural order (``plate9`` before ``plate10``).
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
        raise InputError(f"obs[{groupby!r}] has no group {unknown[0]!r}; it has {names}")
    chosen = np.array([position[name] for name in wanted], dtype=np.int64)
    new = np.full(len(names) + 1, -1, dtype=np.int64)  # the last for cells without a value
    new[chosen] = np.arange(chosen.size)
    codes = new[values.codes]
    sizes = np.bincount(codes[codes >= 0], minlength=chosen.size).astype(np.int64)
    if few := [name for name, size in zip(wanted, sizes, strict=True) if size < 2]:
        raise InputError(
            f"a group needs two cells or more, but obs[{groupby!r}] has fewer of "
            f"{', '.join(map(repr, few))}: leave such groups out with groups="
        )
    parsed = Groups(
        wanted,
        codes,
        sizes,
        np.argsort(chosen),
        None if reference == REST else wanted.index(str(reference)),
    )
    if not parsed.compared:
        msg = f"obs[{groupby!r}] and groups={groups!r} leave no group to compare with {reference!r}"
        raise InputError(msg)
    return parsed


def _parse_names(names: list[str], groups: Any) -> list[str]:
    if isinstance(groups, str) and groups == "all":
        return list(names)
    if isinstance(groups, str):
        msg = f"groups={groups!r} must be 'all' or a list of groups: pass groups=[{groups!r}]"
        raise InputError(msg)
    wanted = [str(group) for group in columns.as_names(groups, "groups")]
    if len(set(wanted)) < len(wanted):
        raise InputError(f"groups names {_duplicate(wanted)!r} twice")
    return wanted


def _duplicate(names: list[str]) -> str:
    return Counter(names).most_common(1)[0][0]


def moments(
    x: Any, groups: Groups, names: pd.Index, genes: NDArray[np.int64] | None, wanted: SumKinds
) -> GroupMoments:
    """Moments of the groups, in one pass, of the genes ``names`` at the positions ``genes`` (None:
    all).
    """
    codes, sizes = groups.all_compared()
    if groups.reference is None and sizes.size == 1:
        msg = f"all cells belong to {groups.names[0]!r}: there is no rest to compare it with"
        raise InputError(msg)
    # Three arrays per sum: the sum, the moments of both sides, and scores or p-values.
    check_result_size((sizes.size, x.shape[1]), 3 * wanted.n_arrays(np.float64), "the ranked genes")
    total = sum_groups(x, codes, sizes.size, wanted, max_rows=int(sizes.sum()))
    total = _sums_on_host(total, genes)
    n_groups = len(groups.names)
    return moments_of_sums(total, sizes, names, n_groups=n_groups, reference=groups.reference)


def _sums_on_host(total: Sums, genes: NDArray[np.int64] | None) -> Sums:
    def select(array: Any) -> Any:
        array = blocks.on_host(array)
        return array if genes is None else array[:, genes]

    return total.map(select)


# Types of the fields, as in scanpy.
_TYPES = {
    "names": "O",
    "scores": "float32",
    "pvals": "float64",
    "pvals_adj": "float64",
    "logfoldchanges": "float32",
}


class GroupResult(NamedTuple):
    """Result of a method for one group: float64 arrays ``[n_genes]``, or None."""

    name: str
    scores: NDArray[np.float64]
    pvals: NDArray[np.float64] | None = None
    logfoldchanges: NDArray[np.float64] | None = None


def tables(
    results: Iterable[GroupResult],
    genes: pd.Index,
    *,
    n_genes: int | None,
    rankby_abs: bool,
    corr_method: str,
) -> dict[str, np.recarray]:
    """Structured arrays of ``uns['rank_genes_groups']`` with one field per group; genes are by
    descending score, those of equal score in their order in ``genes``.
    """
    columns: dict[str, dict[str, NDArray[Any]]] = {name: {} for name in _TYPES}
    for group in results:
        key = -np.abs(group.scores) if rankby_abs else -group.scores
        order = np.argsort(key, kind="stable")[:n_genes]
        columns["names"][group.name] = genes.to_numpy(dtype=object)[order]
        columns["scores"][group.name] = group.scores[order]
        if group.pvals is not None:
            columns["pvals"][group.name] = group.pvals[order]
            columns["pvals_adj"][group.name] = adjust_pvalues(group.pvals, corr_method)[order]
        if group.logfoldchanges is not None:
            columns["logfoldchanges"][group.name] = group.logfoldchanges[order]
    # A list of pairs would call the field of the group '' f0.
    return {
        name: np.rec.fromarrays(
            list(by_group.values()),
            dtype=np.dtype({"names": [*by_group], "formats": [_TYPES[name]] * len(by_group)}),
        )
        for name, by_group in columns.items()
        if by_group
    }
