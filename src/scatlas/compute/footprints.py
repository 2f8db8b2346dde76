"""Memory of what is not worked on in blocks, known from the number of cells."""

from __future__ import annotations

# Harmony's clusters: one for thirty cells, at most so many (harmonypy's default).
CELLS_PER_CLUSTER, MAX_CLUSTERS = 30, 100
# Bytes of a cell, as measured with harmonypy 2.1: for each component the copies in float32 and
# float64 that the library keeps, the input and the result; for each cluster the cell's share in it.
_PER_COMPONENT, _PER_CLUSTER, _BESIDES = 40, 10, 64


def harmony_bytes(n_cells: float, n_comps: int) -> float:
    """Bytes that :func:`scatlas.pp.harmony_integrate` holds at most.

    Parameters
    ----------
    n_cells, n_comps
        Shape of the components.
    """
    n_clusters = min(n_cells / CELLS_PER_CLUSTER, MAX_CLUSTERS)
    return n_cells * (_PER_COMPONENT * n_comps + _PER_CLUSTER * n_clusters + _BESIDES)
