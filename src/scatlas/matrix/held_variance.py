"""Share of the variance of plates that given components hold: it shows when they are outdated.

Components hold most of the variance of the cells from which they were computed. New plates whose
share is much smaller vary in directions that the components lack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from scatlas.matrix.group_sums import aggregate_rows

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Floats, Ints

# Shares that differ by this part of the smallest are taken for equal, however alike the plates of
# the atlas are: a plate's depth and its mix of cells change the share by as much.
_TOLERANCE = 0.1


class ColumnMomentsByPlate(NamedTuple):
    """Moments of the columns of a matrix by plate, the same whatever its blocks."""

    # int64 [n_plates]: cells
    sizes: Ints
    # float64 [n_plates, n_columns]; the variance (n - 1) of a plate of one cell is 0
    mean: Floats
    variance: Floats

    @classmethod
    def read(cls, x: Any, codes: Ints, n_plates: int) -> ColumnMomentsByPlate:
        """Compute the moments in one pass; `codes` has the plate of each cell, negative: none."""
        sizes = np.bincount(codes[codes >= 0], minlength=n_plates)
        found = aggregate_rows(x, codes, sizes, ("mean", "var"), 1)
        return cls(sizes, *(np.nan_to_num(found[name]) for name in ("mean", "var")))

    @property
    def mean_of_all(self) -> Floats:
        """Mean of the cells of all plates, float64 ``[n_columns]``."""
        return (self.sizes[:, None] * self.mean).sum(axis=0) / self.sizes.sum()

    @property
    def std_of_all(self) -> Floats:
        """Standard deviation (n - 1) of the cells of all plates; 1 for a constant column."""
        n, mean = self.sizes.sum(), self.mean_of_all
        within = ((self.sizes - 1).clip(min=0)[:, None] * self.variance).sum(axis=0)
        between = (self.sizes[:, None] * (self.mean - mean) ** 2).sum(axis=0)
        variance = (within + between) / max(n - 1, 1)
        constant = variance <= np.finfo(np.float64).eps * n * (variance + mean**2)
        return np.where(constant, 1.0, np.sqrt(variance))


def held_variance(
    genes: ColumnMomentsByPlate, components: ColumnMomentsByPlate, names: list[str]
) -> pd.DataFrame:
    """Table of the variance of each plate around its own mean, and the share that components hold.

    ``genes`` are moments of the values from which the components were computed, ``components``
    those of the same cells on orthonormal components. The share is NaN for a plate without
    variance.
    """
    total, held = (moments.variance.sum(axis=1) for moments in (genes, components))
    share = np.divide(held, total, out=np.full(len(names), np.nan), where=total > 0)
    columns = {"n_cells": genes.sizes, "variance": total, "held": held, "share": share}
    return pd.DataFrame(columns, index=pd.Index(names, name="plate"))


def count_leading(variance: Floats) -> int:
    """Count the components with at least twice the variance of the last one; all if there are none.

    The last components hold noise, and more of the noise of the cells from which they were computed
    than of any other cells (Marchenko, Pastur 1967): with them every new plate would seem to fit
    badly where components are many and cells few.
    """
    return int((variance >= 2 * variance[-1]).sum()) or variance.size


def smallest_usual_share(shares: Floats) -> float:
    """Share of variance below which a new plate asks for new components; NaN without finite shares.

    The smallest share of the atlas's plates, less the larger of their range and a tenth of it. The
    components were fitted to these plates, so a new plate of the same kind has a somewhat smaller
    share; only one that lies as far below the atlas's plates as these lie apart counts.
    """
    known = shares[np.isfinite(shares)]
    if not known.size:
        return float("nan")
    smallest = known.min()
    return float(smallest - max(known.max() - smallest, _TOLERANCE * smallest))
