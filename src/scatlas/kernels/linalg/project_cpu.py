"""Projection of one row block on components."""

from __future__ import annotations

from typing import Any

import numpy as np

from scatlas.arrays.array_types import Array, Block, Floats, Ints, is_sparse, row_offsets
from scatlas.arrays.numpy_arrays import aligned_zeros
from scatlas.kernels.build.numba_cache import njit

# Components per panel: the loadings of a panel (0.5 MB for 1,000 genes) stay in the L2 cache for
# all cells of the block.
_PANEL = 64
# Values of the dense rows that are converted at a time.
_DENSE_VALUES = 1_000_000


def prepare_components(components: Floats) -> Floats:
    """Components in the form that is fastest for many blocks: on the CPU, unchanged."""
    return components


def project(x: Block, components: Floats, offset: Floats, *, dtype: Any = np.float32) -> Array:
    """Dense ``x @ components - offset``, rounded once to `dtype` and summed in the order of the
    genes, without BLAS, whose sums depend on its threads: CSR and dense rows give the same bits.
    """
    panels = _panels(components)
    out = np.empty((x.shape[0], components.shape[1]), dtype=dtype)
    if is_sparse(x):
        indptr = row_offsets(x)
        _project_csr(x.data, x.indices, indptr, panels, offset, out)
        return out
    x = np.asarray(x)
    n_genes = x.shape[1]
    step = max(1, _DENSE_VALUES // max(1, n_genes))
    values, genes = np.empty(step * n_genes), np.empty(step * n_genes, np.int32)
    for start in range(0, x.shape[0], step):
        rows = slice(start, min(start + step, x.shape[0]))
        indptr = np.zeros(rows.stop - start + 1, np.int64)
        _write_csr(x[rows], values, genes, indptr)
        _project_csr(values, genes, indptr, panels, offset, out[rows])
    return out


def _panels(components: Array) -> Floats:
    """Components in panels, float64 [panels, genes, _PANEL], the last padded with zeros."""
    n_genes, k = components.shape
    panels = aligned_zeros((-(-k // _PANEL), n_genes, _PANEL))
    for panel, first in zip(panels, range(0, k, _PANEL), strict=True):
        part = components[:, first : first + _PANEL]
        panel[:, : part.shape[1]] = part
    return panels


@njit(nogil=True, cache=True)
def _project_csr(
    data: Array, indices: Array, indptr: Ints, panels: Floats, offset: Floats, out: Array
) -> None:
    total = np.empty(_PANEL)
    for panel in range(panels.shape[0]):
        loadings = panels[panel]
        first = panel * _PANEL
        for row in range(out.shape[0]):
            total[:] = 0.0
            at = indptr[row]
            stop = indptr[row + 1]
            # Four genes at a time, added in order, so that sums are read and written once for four.
            while at + 4 <= stop:
                a, b = np.float64(data[at]), np.float64(data[at + 1])
                c, d = np.float64(data[at + 2]), np.float64(data[at + 3])
                row_a, row_b = loadings[indices[at]], loadings[indices[at + 1]]
                row_c, row_d = loadings[indices[at + 2]], loadings[indices[at + 3]]
                for k in range(_PANEL):
                    two = (total[k] + a * row_a[k]) + b * row_b[k]
                    total[k] = (two + c * row_c[k]) + d * row_d[k]
                at += 4
            while at < stop:
                a = np.float64(data[at])
                row_a = loadings[indices[at]]
                for k in range(_PANEL):
                    total[k] += a * row_a[k]
                at += 1
            for k in range(min(_PANEL, offset.size - first)):
                out[row, first + k] = total[k] - offset[first + k]


@njit(nogil=True, cache=True)
def _write_csr(x: Array, values: Array, genes: Array, indptr: Ints) -> None:
    """Write the nonzero values of dense rows as CSR arrays."""
    n = 0
    for row in range(x.shape[0]):
        for gene in range(x.shape[1]):
            v = np.float64(x[row, gene])
            if v != 0.0:
                values[n] = v
                genes[n] = gene
                n += 1
        indptr[row + 1] = n
