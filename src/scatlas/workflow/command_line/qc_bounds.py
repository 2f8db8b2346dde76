"""Bounds of cell quality that the distributions of the plates suggest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.workflow.cell_filter import qc_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd

# Distance of the bounds from the median, as in scater's isOutlier (McCarthy et al. 2017).
N_MADS = 3.0
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
_TO_SD = 1.4826
# A smaller bound on mitochondrial counts, in per cent, would drop good cells of clean plates.
_MIN_PCT_MT = 5

# Bounds of each metric: lower, upper.
BOUNDS: dict[str, tuple[str | None, str]] = {
    "n_genes_by_counts": ("min_genes", "max_genes"),
    "total_counts": ("min_counts", "max_counts"),
    "pct_counts_mt": (None, "max_pct_mt"),
}
_PERCENT = "pct_counts_mt"


def suggest_bounds(plates: Iterable[pd.DataFrame], *, with_mt: bool) -> dict[str, int]:
    """Suggest bounds that suit all plates, from metrics of some cells of each: by their keys in the
    section ``qc``, without those that could drop no cell.

    Each plate has bounds at `N_MADS` median absolute deviations from its median: of ``log(1 + x)``,
    and of the mitochondrial percentages as they are, whose logarithms spread too much. Of the lower
    bounds the smallest is taken and of the upper ones the largest, so that no plate loses cells
    because it is sequenced less deeply than the others.
    """
    ranges: dict[str, list[tuple[float, float]]] = {column: [] for column in BOUNDS}
    for metrics in plates:
        for column, found in ranges.items():
            values = metrics[column].to_numpy(np.float64)
            values = values[np.isfinite(values)]
            if values.size:
                found.append(_range(values, is_percent=column == _PERCENT))
    if not with_mt:
        del ranges[_PERCENT]
    bounds = {}
    for column, found in ranges.items():
        low, high = BOUNDS[column]
        lower = _round(min((lower for lower, _ in found), default=0), math.floor)
        upper = max((upper for _, upper in found), default=math.inf)
        if low and lower > 0:
            bounds[low] = lower
        if math.isfinite(upper):
            bounds[high] = _round(upper, math.ceil)
    return bounds


def _range(values: np.ndarray, *, is_percent: bool) -> tuple[float, float]:
    """Bounds of one metric of a plate; 0 and infinity stand for none."""
    scaled = values if is_percent else np.log1p(values)
    middle = float(np.median(scaled))
    reach = N_MADS * _TO_SD * float(np.median(np.abs(scaled - middle)))
    if is_percent:
        upper = max(middle + reach, _MIN_PCT_MT)
        return 0.0, upper if upper < 100 else math.inf
    if reach == 0:  # most cells have the same value
        return 0.0, math.inf
    return math.expm1(middle - reach), math.expm1(middle + reach)


def kept_by(metrics: pd.DataFrame, bounds: Mapping[str, Any]) -> np.ndarray:
    """Which cells the step `qc_filter` keeps with these bounds, bool [cells]."""
    if metrics.empty:
        return np.zeros(0, bool)
    return qc_filter(metrics, source="the cells seen", **bounds)[0]


def _round(value: float, direction: Callable[[float], int]) -> int:
    """Two significant digits."""
    if value < 1:
        return max(0, direction(value))
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return int(direction(value / unit) * unit)
