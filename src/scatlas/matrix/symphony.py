"""New cells beside cells that Harmony has mixed (Symphony): what was mixed stays as it is.

A cluster of the mixed cells has a size N and a sum C of their components, each cell with its share.
The components z of new cells are those of the cluster, m, and an effect of their batch, b, with a
ridge penalty on b: b = (s - n m) / (n + 1), where n and s are N and C of the new batch, and
m = (C + sum of s / (n + 1)) / (N + sum of n / (n + 1)) over the batches (Kang et al., Nature
Communications 2021, equations 6 to 8, with the inverse written out).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.compute.threads import blas_on_one_thread
from scatlas.matrix.harmony_rows import scratch_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from scatlas.matrix.harmony_rows import Rows

    Floats = NDArray[np.float64]

# Fixed, so that no bit of a sum depends on how the cells were read.
_CELLS_AT_ONCE = 16_384
_RIDGE = 1.0


class MixedClusters(NamedTuple):
    """Soft clusters of mixed cells: what new cells are compared with."""

    sizes: Floats  # [clusters]: sum of the cells' shares
    sums: Floats  # [clusters, components]: sum of the mixed components, by share
    sigma: float  # how soft the clusters are

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> MixedClusters:
        """Clusters as ``uns['X_pca_harmony']`` of an atlas has them."""
        return cls(table["sizes"], table["sums"], float(table["params"]["sigma"]))

    def shares(self, x: Floats) -> Floats:
        """Shares of cells ``[n, components]`` in the clusters ``[n, clusters]``, by their angles to
        the clusters' means.
        """
        near = _unit(x) @ _unit(self.sums).T
        weights = np.exp(2 * (near - near.max(axis=1, keepdims=True)) / self.sigma)
        return weights / weights.sum(axis=1, keepdims=True)

    def mix(
        self, parts: Iterable[NDArray[np.float32]], batches: NDArray[np.integer], folder: Path
    ) -> Iterator[NDArray[np.float32]]:
        """Components of new cells without the effects of their batches ``[cells]``, in parts; they
        are needed twice, so that those of many cells wait in a file in ``folder``.
        """
        n_comps = self.sums.shape[1]
        with scratch_rows(batches.size, n_comps, folder) as cells:
            first = 0
            for part in parts:
                cells[slice(first, first + len(part))] = part[:, :n_comps]
                first += len(part)
            yield from self._mix(cells, batches)

    def _mix(self, cells: Rows, batches: NDArray[np.integer]) -> Iterator[NDArray[np.float32]]:
        n_clusters, n_comps = self.sums.shape
        parts = range(0, cells.shape[0], _CELLS_AT_ONCE)
        sizes = np.zeros((int(batches.max(initial=-1)) + 1, n_clusters))
        sums = np.zeros((*sizes.shape, n_comps))
        with blas_on_one_thread():
            for lo in parts:
                x, own, shares = self._part(cells, batches, lo)
                for batch in np.unique(own):
                    sizes[batch] += shares[own == batch].sum(axis=0)
                    sums[batch] += shares[own == batch].T @ x[own == batch]
        damped = 1 / (sizes + _RIDGE)
        size = self.sizes + (_RIDGE * damped * sizes).sum(axis=0)
        mean = (self.sums + (_RIDGE * damped[..., None] * sums).sum(axis=0)) / size[:, None]
        effects = (sums - sizes[..., None] * mean) * damped[..., None]
        for lo in parts:
            with blas_on_one_thread():
                x, own, shares = self._part(cells, batches, lo)
                for batch in np.unique(own):
                    x[own == batch] -= shares[own == batch] @ effects[batch]
            yield x.astype(np.float32)

    def _part(
        self, cells: Rows, batches: NDArray[np.integer], lo: int
    ) -> tuple[Floats, NDArray[np.integer], Floats]:
        rows = slice(lo, lo + _CELLS_AT_ONCE)
        x = np.asarray(cells[rows], np.float64)
        return x, batches[rows], self.shares(x)


def _unit(x: Floats) -> Floats:
    """Rows of length 1; zeros stay."""
    length = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(length > 0, length, 1)
