"""Projection of one row block on components, on the GPU."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

from scatlas.kernels.build import cuda

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.arrays.cupy_arrays import Block

# Components per panel, as in project.cu.
_PANEL = 16
_ROWS_PER_BLOCK = 4 * cuda.THREADS // 32
# Dense rows per dgemm, the last padded: all have one shape, so that the result of a cell does not
# depend on the other cells.
_DENSE_ROWS = 4096


class Loadings:
    """Components ``[n_genes, k]`` with a copy on each device, which stays in its process."""

    def __init__(self, components: NDArray[np.float64] | cp.ndarray) -> None:
        self._components = components
        self.shape = components.shape
        self._start()

    def __getstate__(self) -> Any:
        return cp.asnumpy(self._components)

    def __setstate__(self, components: NDArray[np.float64]) -> None:
        self._components = components
        self.shape = components.shape
        self._start()

    def _start(self) -> None:
        self._lock = Lock()
        self._by_device: dict[int, tuple[cp.ndarray, cp.ndarray]] = {}

    def on_device(self) -> tuple[cp.ndarray, cp.ndarray]:
        """On the current device: ``[n_genes, k]``, and in panels, the last filled with zeros."""
        with self._lock:
            device = cp.cuda.Device().id
            if device not in self._by_device:
                n_genes, k = self.shape
                n_panels = max(1, -(-k // _PANEL))
                whole = cuda.as_float64(self._components)
                wide = cp.zeros((n_genes, n_panels * _PANEL))
                wide[:, :k] = whole
                panels = wide.reshape(n_genes, n_panels, _PANEL).transpose(1, 0, 2).copy(order="C")
                # For other threads, whose streams do not wait for this one.
                cp.cuda.get_current_stream().synchronize()
                self._by_device[device] = whole, panels
            return self._by_device[device]


def prepare_components(components: NDArray[np.float64] | cp.ndarray) -> Loadings:
    """Components in the form that is fastest for many blocks."""
    return Loadings(components)


def project(
    x: Block,
    components: NDArray[np.float64] | cp.ndarray | Loadings,
    offset: NDArray[np.float64] | cp.ndarray,
    *,
    dtype: Any = np.float32,
) -> cp.ndarray:
    """As on the CPU; the result stays on the GPU. CSR gives the CPU's bits; of a dense block the
    order of the sums is that of cuBLAS.
    """
    if not isinstance(components, Loadings):
        components = Loadings(components)
    (n_rows, n_genes), k = x.shape, components.shape[1]
    out = cp.empty((n_rows, k), dtype)
    if n_rows == 0 or k == 0:
        return out
    whole, panels = components.on_device()
    offset = cuda.as_float64(offset)
    if sparse.issparse(x):
        indptr = cuda.row_offsets(x)
        sizes = (np.int64(n_rows), np.int64(n_genes), np.int32(k))
        args = (x.data, x.indices, indptr, *sizes, panels, offset, out)
        blocks = min(-(-n_rows // _ROWS_PER_BLOCK), 132 * 16)
        run = cuda.kernel("linalg/project", "project", x.data.dtype, x.indices.dtype, out.dtype)
        run((blocks, len(panels)), (cuda.THREADS,), args)
        return out
    rows = cp.empty((_DENSE_ROWS, n_genes))
    for start in range(0, n_rows, _DENSE_ROWS):
        part = x[start : start + _DENSE_ROWS]
        n = len(part)
        rows[:n] = part
        rows[n:] = 0.0
        cp.subtract((rows @ whole)[:n], offset, out=out[start : start + n], casting="same_kind")
    return out
