"""Memory of steps that do not process blocks, computed from the number of cells."""

from __future__ import annotations

# Number of clusters of Harmony: one per 30 cells, at most 100 (defaults of harmonypy).
CELLS_PER_CLUSTER, MAX_CLUSTERS = 30, 100
# Bytes per cell, as measured with harmonypy 2.1: per component (input, result, copies in float32
# and float64), per cluster (membership of the cell), and a constant.
_PER_COMPONENT, _PER_CLUSTER, _CONSTANT = 40, 10, 64


def harmony_bytes(n_cells: float, n_comps: int) -> float:
    """Peak bytes of :func:`scatlas.pp.harmony_integrate`.

    Parameters
    ----------
    n_cells, n_comps
        Shape of the components.
    """
    n_clusters = min(n_cells / CELLS_PER_CLUSTER, MAX_CLUSTERS)
    return n_cells * (_PER_COMPONENT * n_comps + _PER_CLUSTER * n_clusters + _CONSTANT)
