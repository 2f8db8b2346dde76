"""Statistics that rank the genes of groups of cells, from sums by group: Welch's t-test and others.

`tl.rank_genes_groups` and the workflow's marker genes share them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.errors import InputError
from scatlas.kernels.moments import group_sums_cpu
from scatlas.kernels.moments.group_sums_cpu import Sums, other_group_sums

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    from numpy.typing import NDArray

# Values of groups and genes that are processed at once.
_AT_ONCE = 2**20
# scanpy adds it to both means, so that no fold change is infinite.
_PSEUDOCOUNT = 1e-9


@dataclass(frozen=True)
class GroupMoments:
    """Moments of the groups, and of the cells that each is compared with (its other side: the
    reference, if there is one).

    ``n`` and ``n_other`` are ``[n_groups]``, the others ``[n_groups, n_genes]``.
    """

    n: NDArray[np.int64]
    n_other: NDArray[np.int64]
    mean: NDArray[np.float64]
    # over n - 1; None if not requested
    var: NDArray[np.float64] | None
    # Cells with a nonzero value. Without a reference, cells of no group have one more row.
    nonzero: NDArray[np.int64] | None
    mean_other: NDArray[np.float64]
    var_other: NDArray[np.float64] | None
    # Whether all sums are non-negative integers: then X holds counts, not logarithms.
    like_counts: bool


def moments_of_sums(
    total: Sums,
    sizes: NDArray[np.int64],
    names: pd.Index,
    *,
    n_groups: int | None = None,
    reference: int | None = None,
) -> GroupMoments:
    """Moments of the first ``n_groups`` groups and of their other sides, ``reference`` or all other
    cells, from sums by group on the host.
    """
    n_groups = sizes.size if n_groups is None else n_groups
    _check_finite(total, names)
    mean, var = _mean_var(total, sizes, rest=False)
    other: slice | NDArray[np.int64] = slice(n_groups)
    if reference is None:
        n_other = sizes.sum() - sizes
        mean_other, var_other = _mean_var(total, n_other, rest=True)
    else:
        n_other, other = sizes, np.full(n_groups, reference, dtype=np.int64)
        mean_other, var_other = mean, var
    return GroupMoments(
        sizes[:n_groups],
        n_other[other],
        mean[:n_groups],
        None if var is None else var[:n_groups],
        total.nonzero,
        mean_other[other],
        None if var_other is None else var_other[other],
        _like_counts(total),
    )


def welch(
    found: GroupMoments, groups: Iterable[int], *, overestimate: bool = False
) -> Iterator[tuple[int, Any, Any]]:
    """Yield number, t statistics and two-sided p-values of groups, each against its other side; a
    gene with one value in all cells has a score of 0 and a p-value of 1.

    ``overestimate`` takes the size of the group for the other side, and so too large a variance.
    """
    from scipy.stats import ttest_ind_from_stats

    assert found.var is not None
    assert found.var_other is not None
    std, std_other = np.sqrt(found.var), np.sqrt(found.var_other)
    for group in groups:
        n, n_other = int(found.n[group]), int(found.n_other[group])
        # Constant on both sides: 0 / 0 where the means agree, else infinite.
        with np.errstate(invalid="ignore", divide="ignore"):
            scores, pvals = ttest_ind_from_stats(
                found.mean[group],
                std[group],
                n,
                found.mean_other[group],
                std_other[group],
                n if overestimate else n_other,
                equal_var=False,
            )
        same = np.isnan(scores)
        yield group, np.where(same, 0.0, scores), np.where(same, 1.0, pvals)


def adjust_pvalues(pvals: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    """P-values corrected for the number of tests: ``"benjamini-hochberg"`` bounds the false
    discovery rate (J. R. Stat. Soc. B 57, 1995), ``"bonferroni"`` the chance of one false
    discovery.
    """
    n = pvals.size
    if method == "bonferroni":
        return np.minimum(pvals * n, 1.0)
    order = np.argsort(pvals, kind="stable")
    steps = pvals[order] / (np.arange(1, n + 1) / n)
    out = np.empty(n)
    out[order] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0)
    return out


def log_fold_changes(
    means: NDArray[np.float64], others: NDArray[np.float64], base: Any
) -> NDArray[np.float64]:
    """Base-2 logarithm of the ratio of two means, by scanpy's formula, from means of log(1 + x) to
    ``base``; not finite where expm1 overflows, because the values were no logarithms.
    """
    factor = 1.0 if base is None else np.log(base)
    with np.errstate(all="ignore"):
        ratio = (np.expm1(means * factor) + _PSEUDOCOUNT) / (
            np.expm1(others * factor) + _PSEUDOCOUNT
        )
        return np.log2(ratio)


def _check_finite(total: Sums, names: pd.Index) -> None:
    bad = ~np.isfinite(total.sums).all(axis=0)
    if total.squares is not None:
        bad |= ~np.isfinite(total.squares).all(axis=0)
    if bad.any():
        raise InputError(
            f"gene {names[int(np.argmax(bad))]!r} has NaN or infinite values (or values too large "
            "to square): rank_genes_groups expects log-normalised values"
        )


def _like_counts(total: Sums) -> bool:
    """Whether all sums, and sums of squares, are whole and none is negative."""
    if (total.sums < 0).any():
        return False
    reals = () if total.whole else (total.sums, total.errors, total.squares, total.square_errors)
    return all((array == np.rint(array)).all() for array in reals if array is not None)


def _mean_var(
    total: Sums, n: NDArray[np.int64], *, rest: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """Means and variances of the groups, or of all cells but theirs, which are `n` each."""
    shape = total.sums.shape
    mean = np.empty(shape)
    var = None if total.squares is None else np.empty(shape)
    total = replace(total, nonzero=None)

    def part_of(genes: slice) -> Sums:
        return total.map(lambda array: np.ascontiguousarray(array[:, genes]))

    step = max(1, _AT_ONCE // max(1, shape[0]))
    for first in range(0, shape[1], step):
        genes = slice(first, first + step)
        part = other_group_sums(part_of(genes)) if rest else part_of(genes)
        part_mean = np.empty(part.sums.shape)
        part_var = None if var is None else np.empty(part.sums.shape)
        group_sums_cpu.mean_var(part, n[:, None], 1, part_mean, part_var)
        mean[:, genes] = part_mean
        if var is not None and part_var is not None:
            # One cell has no variance; zero, as scanpy has it.
            var[:, genes] = np.where(n[:, None] > 1, part_var, 0.0)
    return mean, var
