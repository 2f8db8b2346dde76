"""PCA of scaled genes out of core, without scaled values: scaling turns each zero of a gene into
one number z, so the matrix is S + 1 z^T with the sparse S of scaled values minus z, from whose sums
and products its own follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels import kernels_for
from scatlas.matrix.gram import GramStats, gram_stats

if TYPE_CHECKING:
    import dask.array as da
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class GeneScale:
    """Parameters of :func:`scatlas.pp.scale` for each gene.

    Attributes
    ----------
    mean, std
        float64 ``[n_genes]``; the standard deviation (n - 1) of a constant gene is 1.
    zero_center
        Whether the mean is subtracted.
    max_value
        Upper bound of scaled values; with ``zero_center`` its negative is the lower bound.
    """

    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    zero_center: bool
    max_value: float | None

    @classmethod
    def from_stats(
        cls, stats: GramStats, *, zero_center: bool, max_value: float | None
    ) -> GeneScale:
        """Scaling of genes from their sums and products, without a pass over the cells.

        Raises
        ------
        InputError
            The statistics have no cell or are not finite.
        """
        if stats.n_cells == 0:
            raise InputError("genes cannot be scaled without cells: give at least one")
        mean = stats.sums / stats.n_cells
        squares = stats.gram.diagonal()
        if not (np.isfinite(stats.sums).all() and np.isfinite(squares).all()):
            raise InputError("genes with NaN or infinite values cannot be scaled: remove these")
        variance = np.maximum(squares - mean * stats.sums, 0.0) / max(stats.n_cells - 1, 1)
        # A variance below the rounding error of the sums is that of a constant gene.
        constant = variance <= np.finfo(np.float64).eps * squares
        return cls(mean, np.where(constant, 1.0, np.sqrt(variance)), zero_center, max_value)

    @property
    def zeros(self) -> NDArray[np.float64]:
        """Scaled value of a zero of each gene, float64 ``[n_genes]``."""
        if not self.zero_center:
            return np.zeros_like(self.mean)
        return np.clip(-self.mean / self.std, *self._bounds)

    @property
    def _bounds(self) -> tuple[float, float]:
        high = np.inf if self.max_value is None else float(self.max_value)
        return (-high if self.zero_center else -np.inf), high

    def shift(self, x: da.Array) -> da.Array:
        """S: the scaled values minus :attr:`zeros`, lazily, as CSR blocks of float32.

        Parameters
        ----------
        x
            Dask array of CSR blocks, of SciPy or CuPyX.
        """
        return blocks.map_blocks(self.shift_block, x, dtype=np.float32)

    def shift_block(self, block: Any) -> Any:
        """Rows of S from a CSR block of SciPy or CuPyX."""
        scale_stored = kernels_for("linalg.scale", block).scale_stored_values
        mean = self.mean if self.zero_center else np.zeros_like(self.mean)
        return scale_stored(block, mean, self.std, self.zeros, self._bounds)

    def stats(self, unscaled: GramStats, shifted: da.Array | None) -> GramStats:
        """Sums and products of the scaled genes; one pass over S if values are clipped."""
        if self.max_value is None:
            shifted_stats = GramStats(
                unscaled.n_cells,
                unscaled.sums / self.std,
                unscaled.gram / self.std[:, None] / self.std,
            )
        else:
            shifted_stats = gram_stats(shifted)
        n, zeros = shifted_stats.n_cells, self.zeros
        cross = np.outer(shifted_stats.sums, zeros)
        gram = shifted_stats.gram + cross + cross.T + n * np.outer(zeros, zeros)
        return GramStats(n, shifted_stats.sums + n * zeros, gram)
