"""Memory and disk of data that is not processed in blocks, from the shape of the data."""

from __future__ import annotations

# Number of clusters of Harmony: one per 30 cells, at most 100 (defaults of harmonypy).
CELLS_PER_CLUSTER, MAX_CLUSTERS = 30, 100
# Bytes per cell, as measured with harmonypy 2.1: per component (input, result, copies in float32
# and float64), per cluster (membership of the cell), and a constant.
_PER_COMPONENT, _PER_CLUSTER, _CONSTANT = 40, 10, 64


def harmony_bytes(n_cells: float, n_comps: int) -> float:
    """Peak bytes of :func:`scatlas.pp.harmony_integrate`."""
    n_clusters = min(n_cells / CELLS_PER_CLUSTER, MAX_CLUSTERS)
    return n_cells * (_PER_COMPONENT * n_comps + _PER_CLUSTER * n_clusters + _CONSTANT)


# Bytes per cell of the largest of the steps neighbors, umap and leiden, as measured with 200,000
# cells on 50 and 300 components: per component, and a constant.
_MAP_PER_COMPONENT, _MAP_CONSTANT = 6, 4000


def map_bytes(n_cells: float, n_comps: int) -> float:
    """Peak bytes of the steps that compute neighbours, UMAP and clusters of the given cells."""
    return n_cells * (_MAP_PER_COMPONENT * n_comps + _MAP_CONSTANT)


# A plate's Gram matrix takes at most this share of its counts (2 bytes per stored value).
MAX_GRAM_SHARE, _BYTES_PER_COUNT = 0.1, 2
_BYTES_PER_GRAM_ENTRY = 8


def gram_is_worth_storing(n_cells: float, values_per_cell: float, n_genes: float) -> bool:
    """Whether a plate stores its own Gram matrix, so that PCA need not sum over its cells again.

    The sum over cells of few values takes less time than to write and read the matrix, and less
    disk. Without this rule hundreds of small samples would store many times the size of their
    counts.
    """
    triangle_bytes = _BYTES_PER_GRAM_ENTRY * n_genes * (n_genes + 1) / 2
    return triangle_bytes <= max_gram_bytes(n_cells * values_per_cell)


def max_gram_bytes(n_values: float) -> float:
    """Largest triangle of a Gram matrix that a plate of ``n_values`` counts stores, in bytes."""
    return MAX_GRAM_SHARE * _BYTES_PER_COUNT * n_values
