"""Leiden clusters on the GPU, by cuGraph's Python bindings of C (no data frames)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cupy as cp
import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

    import scipy.sparse as sp
    from numpy.typing import NDArray

# Levels of merged clusters at most, cuGraph's own default: it ends when modularity grows no more.
_MAX_LEVELS = 100
# How freely refinement chooses among clusters (Traag, Waltman, van Eck 2019); cuGraph's default.
_THETA = 1.0


def communities(
    graph: sp.csr_matrix, *, resolution: float, seed: int, weighted: bool, cugraph: ModuleType
) -> NDArray[np.int64]:
    """Cluster of each vertex, as cuGraph numbers them.

    Parameters
    ----------
    graph
        Symmetric weights ``[n, n]``, in the main memory, no entry twice.
    resolution
        Factor of the expected weight in modularity.
    seed
        Of cuGraph's random numbers.
    weighted
        Whether to use the weights, or only where they are.
    cugraph
        The module ``pylibcugraph``.

    Returns
    -------
    int64 ``[n]``.
    """
    entries = graph.tocoo()
    there = entries.data != 0
    weights = entries.data[there].astype(np.float32)
    handle = cugraph.ResourceHandle()
    edges = cugraph.SGGraph(
        resource_handle=handle,
        graph_properties=cugraph.GraphProperties(is_symmetric=True, is_multigraph=False),
        src_or_offset_array=cp.asarray(entries.row[there].astype(np.int32)),
        dst_or_index_array=cp.asarray(entries.col[there].astype(np.int32)),
        weight_array=cp.asarray(weights if weighted else np.ones_like(weights)),
        vertices_array=cp.arange(graph.shape[0], dtype=cp.int32),  # also those without edges
        store_transposed=False,
        renumber=True,
        do_expensive_check=False,
    )
    vertices, clusters, _ = cugraph.leiden(
        resource_handle=handle,
        random_state=seed,
        graph=edges,
        max_level=_MAX_LEVELS,
        resolution=float(resolution),
        theta=_THETA,
        do_expensive_check=False,
    )
    labels = np.empty(graph.shape[0], np.int64)
    labels[cp.asnumpy(vertices)] = cp.asnumpy(clusters)
    return labels
