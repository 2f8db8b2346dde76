"""Moments of groups of cells and of the cells they are compared with; Welch's t-test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.moments import group_sums_cpu
from scatlas.kernels.moments.group_sums_cpu import SumKinds, Sums
from scatlas.kernels.moments.other_group_sums_cpu import other_group_sums
from scatlas.matrix.group_sums import check_result_size, sum_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.tl._rank_groups import Groups

# Values of groups and genes that are processed at once.
_AT_ONCE = 2**20


@dataclass(frozen=True)
class GroupMoments:
    """Moments of the groups, and of the cells that each group is compared with (its other side).

    Attributes
    ----------
    n, n_other
        int64 ``[n_groups]``, cells of the group and of its other side.
    mean, var, mean_other, var_other
        float64 ``[n_groups, n_genes]``; variances (over n - 1) are None if not requested.
        With a reference, its row is the other side of all groups.
    nonzero
        int64 ``[n_groups, n_genes]``, cells with a nonzero value, or None. Without a reference,
        cells of no group have one more row.
    like_counts
        Whether all sums are non-negative integers: then X holds counts, not logarithms.
    """

    n: NDArray[np.int64]
    n_other: NDArray[np.int64]
    mean: NDArray[np.float64]
    var: NDArray[np.float64] | None
    nonzero: NDArray[np.int64] | None
    mean_other: NDArray[np.float64]
    var_other: NDArray[np.float64] | None
    like_counts: bool


def moments(
    x: Any, groups: Groups, names: pd.Index, genes: NDArray[np.int64] | None, wanted: SumKinds
) -> GroupMoments:
    """Moments of the groups, in one pass over a matrix.

    Parameters
    ----------
    x
        Matrix ``[n_cells, n_genes]``, in memory or Dask, on the CPU or a GPU.
    groups
        Groups of its cells.
    names
        Names of the genes to rank.
    genes
        Their positions in the matrix; None for all of its genes.
    wanted
        Sums to compute: ``squares`` for variances, ``nonzero`` for the cells that express a gene.

    Raises
    ------
    InputError
        A gene has values that are not finite, or a group holds all cells and there is no rest.
    TooLargeError
        The sums and results do not fit the memory.
    """
    n_groups, n_cells = len(groups.names), x.shape[0]
    codes, sizes = groups.all_compared()
    if groups.reference is None and sizes.size == 1:
        msg = f"all cells belong to {groups.names[0]!r}: there is no rest to compare it with"
        raise InputError(msg)
    # Three arrays per sum: the sum, the moments of both sides, and scores or p-values.
    check_result_size((sizes.size, x.shape[1]), 3 * wanted.n_arrays(np.float64), "the ranked genes")
    total = _on_host(sum_groups(x, codes, sizes.size, wanted, max_rows=int(sizes.sum())), genes)
    _check_finite(total, names)
    mean, var = _mean_var(total, sizes, rest=False)
    other: slice | NDArray[np.int64] = slice(n_groups)
    if groups.reference is None:
        n_other = n_cells - sizes
        mean_other, var_other = _mean_var(total, n_other, rest=True)
    else:
        n_other, other = sizes, np.full(n_groups, groups.reference, dtype=np.int64)
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
    found: GroupMoments, groups: Groups, *, overestimate: bool
) -> Iterator[tuple[int, Any, Any]]:
    """Welch's t-test of each group but the reference.

    Parameters
    ----------
    overestimate
        Use the size of the group for the other side as well, which overestimates its variance.

    Yields
    ------
    Number of the group, float64 ``[n_genes]`` t statistics and two-sided p-values. A gene with the
    same value in all cells has a score of 0 and a p-value of 1.
    """
    from scipy.stats import ttest_ind_from_stats

    assert found.var is not None
    assert found.var_other is not None
    std, std_other = np.sqrt(found.var), np.sqrt(found.var_other)
    for group in groups.compared:
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


def _on_host(total: Sums, genes: NDArray[np.int64] | None) -> Sums:
    def select(array: Any) -> Any:
        if array is None:
            return None
        array = blocks.on_host(array)
        return array if genes is None else array[:, genes]

    arrays = (total.sums, total.errors, total.squares, total.square_errors, total.nonzero)
    return Sums(total.whole, *map(select, arrays))


def _check_finite(total: Sums, names: pd.Index) -> None:
    bad = ~np.isfinite(total.sums).all(axis=0)
    if total.squares is not None:
        bad |= ~np.isfinite(total.squares).all(axis=0)
    if bad.any():
        msg = (
            f"gene {names[int(np.argmax(bad))]!r} has NaN or infinite values (or values too large "
            "to square): rank_genes_groups expects log-normalised values"
        )
        raise InputError(msg)


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
    step = max(1, _AT_ONCE // max(1, shape[0]))
    for first in range(0, shape[1], step):
        genes = slice(first, first + step)
        part = Sums(
            total.whole,
            *(
                None if array is None else np.ascontiguousarray(array[:, genes])
                for array in (total.sums, total.errors, total.squares, total.square_errors, None)
            ),
        )
        part = other_group_sums(part) if rest else part
        part_mean = np.empty(part.sums.shape)
        part_var = None if var is None else np.empty(part.sums.shape)
        group_sums_cpu.mean_var(part, n[:, None], 1, part_mean, part_var)
        mean[:, genes] = part_mean
        if var is not None and part_var is not None:
            # One cell has no variance; zero, as scanpy has it.
            var[:, genes] = np.where(n[:, None] > 1, part_var, 0.0)
    return mean, var
