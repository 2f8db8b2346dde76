"""UMAP's layout on the GPU, by cuML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy as cp
import numpy as np
from cupyx.scipy import sparse

if TYPE_CHECKING:
    from types import ModuleType

    import scipy.sparse as sp
    from numpy.typing import NDArray


def layout(
    graph: sp.csr_matrix,
    start: str | NDArray[np.float32],
    curve: tuple[float, float],
    *,
    n_components: int,
    n_epochs: int,
    alpha: float,
    gamma: float,
    negative_sample_rate: int,
    random_state: int | np.random.RandomState | None,
    cuml: ModuleType,
) -> NDArray[np.float32]:
    """Coordinates of the cells of a fuzzy graph.

    Parameters
    ----------
    graph
        Symmetric weights ``[n, n]``, in the main memory, sorted.
    start
        ``"spectral"``, ``"random"``, or float32 ``[n, n_components]``.
    curve
        ``a`` and ``b`` of the low-dimensional weight ``1 / (1 + a * d**(2 * b))``.
    n_components
        Dimensions of the layout.
    n_epochs, alpha, gamma, negative_sample_rate
        As for :func:`scatlas.kernels.graphs.umap_cpu.optimize_layout`.
    random_state
        Seed; with None cuML takes a quicker way that gives another layout on each run.
    cuml
        The module ``cuml.manifold.umap``.

    Returns
    -------
    float32 ``[n, n_components]``, in the main memory.
    """
    n_cells = graph.shape[0]
    rows = np.repeat(np.arange(n_cells, dtype=np.int32), np.diff(graph.indptr))
    parts = graph.data.astype(np.float32), rows, graph.indices.astype(np.int32)
    weights, rows, columns = map(cp.asarray, parts)
    edges = sparse.coo_matrix((weights, (rows, columns)), shape=graph.shape)
    # It is sorted and has no entry twice: cuML need not sort it again.
    edges.has_canonical_format = True
    a, b = map(float, curve)
    found = cuml.simplicial_set_embedding(
        data=cp.zeros((n_cells, 1), cp.float32),  # only the number of cells is taken from it
        graph=edges,
        n_components=n_components,
        initial_alpha=alpha,
        a=a,
        b=b,
        gamma=gamma,
        negative_sample_rate=negative_sample_rate,
        n_epochs=n_epochs,
        init=start if isinstance(start, str) else cp.asarray(start, dtype=cp.float32),
        random_state=random_state,
    )
    return np.ascontiguousarray(cp.asnumpy(found), dtype=np.float32)
