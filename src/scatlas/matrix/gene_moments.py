"""Moments of genes over all row blocks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks, elements
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

# Parts of the cells of an array in memory, for that many threads.
_PARTS = 16


def check_finite_moments(moments: Moments, names: pd.Index, expected: str) -> None:
    """Refuse moments that are not finite; highly_variable_genes expects `expected`."""
    bad = ~np.isfinite(moments.mean).all(axis=0) | ~np.isfinite(moments.var).all(axis=0)
    if bad.any():
        raise InputError(
            f"gene {names[int(np.argmax(bad))]!r} has NaN or infinite values (or values so large "
            f"that expm1 overflows): highly_variable_genes expects {expected}"
        )


def gene_moments(
    x: Any,
    codes: NDArray[np.integer] | None = None,
    *,
    expm1: bool = False,
    log_base: float | None = None,
) -> Moments:
    """Moments per gene of each group that has cells (code >= 0), in one pass, with the options of
    ``moments_cpu.moments``.
    """
    from scatlas.kernels.moments import moments_cpu
    from scatlas.matrix.sums_by_gene import exact_moments

    kernels = kernels_for("moments.moments", x)

    def block_moments(block: Any, codes: NDArray[np.integer] | None = None) -> Moments:
        pending = getattr(block, "pending", None)
        if pending is not None and log_base is None and (pending.log or not expm1):
            from scatlas.kernels.moments.count_moments_cpu import normalized_moments

            counts, scales, log = pending
            return normalized_moments(counts, scales, codes, log=log, expm1=expm1)
        return kernels.moments(block, codes, expm1=expm1, log_base=log_base)

    if codes is None:

        def transformed(values: NDArray[Any]) -> NDArray[Any]:
            return moments_cpu.expm1_values(values, log_base) if expm1 else values

        if (by_gene := exact_moments(x, transformed)) is not None:
            return by_gene
        return blocks.reduce(block_moments, moments_cpu.merge_in_place, x)
    kind = kind_of(x)
    if kind.lazy or kind.gpu:
        return blocks.reduce(block_moments, moments_cpu.merge_in_place, x, codes)
    return _moments_by_group(block_moments, x, codes)


def _moments_by_group(
    block_moments: Callable[[Any], Moments], x: Any, codes: NDArray[np.integer]
) -> Moments:
    """Moments of each group, one after the other: blocks of all groups would have partial results
    as large as the whole.
    """
    from scatlas.kernels.moments import moments_cpu

    groups, sizes = np.unique(codes[codes >= 0], return_counts=True)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(sizes) + np.count_nonzero(codes < 0)
    x = elements.as_rows(x)
    # Large groups in several parts, which are views of their cells where these are neighbours.
    rows = max(1, x.shape[0] // _PARTS)
    parts = [
        (group, slice(first, min(first + rows, end)))
        for group, (start, end) in enumerate(zip(ends - sizes, ends, strict=True))
        for first in range(start, end, rows)
    ]

    def of_part(i: int) -> Moments:
        cells = order[parts[i][1]]
        if cells[-1] - cells[0] + 1 == cells.size:
            return block_moments(blocks.view(x, slice(cells[0], cells[-1] + 1)))
        return block_moments(blocks.select_rows(x, cells))

    sums = np.empty((groups.size, x.shape[1], 4))
    expressed = np.empty((groups.size, x.shape[1]), np.int64)
    of_group: list[Moments] = []
    for i, part in enumerate(blocks.map_in_order(of_part, len(parts))):
        of_group = [moments_cpu.merge_in_place([*of_group, part])]
        group, cells = parts[i]
        if cells.stop == ends[group]:
            sums[group], expressed[group] = of_group[0].sums[0], of_group[0].expressed[0]
            of_group = []
    return moments_cpu.Moments(groups.astype(np.int64), sizes.astype(np.int64), sums, expressed)


def normalized_moments(
    x: Any,
    scales: NDArray[np.float64],
    codes: NDArray[np.integer] | None = None,
    *,
    log: bool,
) -> Moments:
    """:func:`gene_moments` of normalised counts, to the same bits, in one pass over the counts.

    ``scales`` has 1 / size factor of each cell; NaN leaves the cell out.
    """
    from scatlas.kernels.moments import moments_cpu

    rows = (scales,) if codes is None else (scales, codes)
    kernels = kernels_for("moments.count_moments", x)

    return blocks.reduce(
        partial(kernels.normalized_moments, log=log), moments_cpu.merge_in_place, x, *rows
    )
