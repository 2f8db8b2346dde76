"""Moments of the groups of ``rank_genes_groups``, in one pass over a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.matrix.group_sums import check_result_size, sum_groups
from scatlas.matrix.rank_statistics import GroupMoments, moments_of_sums

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.group_sums_cpu import SumKinds, Sums
    from scatlas.tl._rank_groups import Groups


def moments(
    x: Any, groups: Groups, names: pd.Index, genes: NDArray[np.int64] | None, wanted: SumKinds
) -> GroupMoments:
    """Moments of the groups, in one pass over a matrix. ``names`` are the genes to rank, and
    ``genes`` their positions in the matrix; None for all of its genes. Of ``wanted`` sums
    ``squares`` are for variances, ``nonzero`` for the cells that express a gene.
    """
    codes, sizes = groups.all_compared()
    if groups.reference is None and sizes.size == 1:
        msg = f"all cells belong to {groups.names[0]!r}: there is no rest to compare it with"
        raise InputError(msg)
    # Three arrays per sum: the sum, the moments of both sides, and scores or p-values.
    check_result_size((sizes.size, x.shape[1]), 3 * wanted.n_arrays(np.float64), "the ranked genes")
    total = _on_host(sum_groups(x, codes, sizes.size, wanted, max_rows=int(sizes.sum())), genes)
    n_groups = len(groups.names)
    return moments_of_sums(total, sizes, names, n_groups=n_groups, reference=groups.reference)


def _on_host(total: Sums, genes: NDArray[np.int64] | None) -> Sums:
    def select(array: Any) -> Any:
        array = blocks.on_host(array)
        return array if genes is None else array[:, genes]

    return total.map(select)
