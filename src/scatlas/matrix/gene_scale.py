"""PCA of scaled genes out of core, without scaled values in memory or on disk.

Scaling turns every zero of a gene into the same number z. The sparse matrix S that holds, at the
stored values, how far the scaled value lies from z, is all that has to be worked on: the scaled
matrix is S + 1 z^T, so that its sums and products follow from those of S.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.gram import GramStats, gram_stats

if TYPE_CHECKING:
    import dask.array as da
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class GeneScale:
    """What :func:`scatlas.pp.scale` does to each gene.

    Attributes
    ----------
    mean, std
        float64 ``[n_genes]``; the standard deviation (n - 1) of a constant gene is 1.
    zero_center
        Whether the mean is subtracted.
    max_value
        Clip here after scaling; with ``zero_center``, at its negative too.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    zero_center: bool
    max_value: float | None

    @classmethod
    def from_stats(
        cls, stats: GramStats, *, zero_center: bool, max_value: float | None
    ) -> GeneScale:
        """Scaling of the genes whose sums and products these are: no pass over the cells.

        Raises
        ------
        InputError
            The sums are of no cell, or not finite.
        """
        if stats.n_cells == 0:
            raise InputError("genes cannot be scaled by the sums of no cell: give at least one")
        mean = stats.sums / stats.n_cells
        squares = stats.gram.diagonal()
        if not (np.isfinite(stats.sums).all() and np.isfinite(squares).all()):
            raise InputError("genes of NaN or infinite values have no scale: remove them first")
        variance = np.maximum(squares - mean * stats.sums, 0.0) / max(stats.n_cells - 1, 1)
        # Below the rounding of the sums a gene is constant.
        constant = variance <= np.finfo(np.float64).eps * squares
        return cls(mean, np.where(constant, 1.0, np.sqrt(variance)), zero_center, max_value)

    @property
    def zeros(self) -> NDArray[np.float64]:
        """What a zero of each gene becomes, float64 ``[n_genes]``."""
        if not self.zero_center:
            return np.zeros_like(self.mean)
        return np.clip(-self.mean / self.std, *self._bounds)

    @property
    def _bounds(self) -> tuple[float, float]:
        high = np.inf if self.max_value is None else float(self.max_value)
        return (-high if self.zero_center else -np.inf), high

    def shifted(self, x: da.Array) -> da.Array:
        """S: the scaled values less :attr:`zeros`, lazily, as CSR blocks of float32.

        Parameters
        ----------
        x
            Dask array of CSR blocks, of SciPy or CuPyX.
        """
        shift = kernels_for("linalg.scale", x).shift
        mean = self.mean if self.zero_center else np.zeros_like(self.mean)
        zeros, std, bounds = self.zeros, self.std, self._bounds
        return blocks.map_blocks(
            lambda block: shift(block, mean, std, zeros, bounds), x, dtype=np.float32
        )

    def stats(self, unscaled: GramStats, shifted: da.Array) -> GramStats:
        """Sums and products of the scaled genes; one pass over S if values are clipped."""
        if self.max_value is None:
            own = GramStats(
                unscaled.n_cells,
                unscaled.sums / self.std,
                unscaled.gram / self.std[:, None] / self.std,
            )
        else:
            own = gram_stats(shifted)
        n, zeros = own.n_cells, self.zeros
        cross = np.outer(own.sums, zeros)
        gram = own.gram + cross + cross.T + n * np.outer(zeros, zeros)
        return GramStats(n, own.sums + n * zeros, gram)
