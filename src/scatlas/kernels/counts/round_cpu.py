"""Expected counts, which tools such as alevin and RSEM write, rounded to whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array


class RoundedCounts(NamedTuple):
    """Values of a block with fractional ones rounded, in the type that they had."""

    values: Array
    n_changed: int  # how many were fractional
    n_counts: int  # what these are together, rounded


def round_counts(values: Array) -> RoundedCounts:
    """Round positive fractional values as :func:`numpy.rint`, halves to the even number.

    Negative, infinite and missing values stay as they are: they are no expected counts, and
    :func:`scatlas.kernels.counts.check_cpu.check_counts` reports them.
    """
    if values.dtype.kind != "f":
        return RoundedCounts(values, 0, 0)
    rounded = np.rint(values)
    changed = (rounded != values) & (values > 0)
    if not changed.any():
        return RoundedCounts(values, 0, 0)
    n_counts = int(rounded[changed].sum(dtype=np.float64))
    return RoundedCounts(np.where(changed, rounded, values), int(changed.sum()), n_counts)
