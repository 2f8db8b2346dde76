"""Cutting cells and genes out of one block of counts and log-normalising them, in one sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.normalize_cpu import log1p, scale_rows, scaled_dtype
from scatlas.kernels.counts.select_cpu import index_dtype, insert

if TYPE_CHECKING:
    Block = np.ndarray | sp.csr_matrix | sp.csr_array


def select_and_log_normalize(x: Block, scales: np.ndarray, place: np.ndarray) -> Block:
    """log(1 + normalised count) of the wanted genes of the kept cells.

    The bits are those of :func:`~scatlas.kernels.counts.select_cpu.select_genes`,
    :func:`~scatlas.kernels.counts.normalize_cpu.scale_rows` and
    :func:`~scatlas.kernels.counts.normalize_cpu.log1p` one after another.

    Parameters
    ----------
    x
        Counts [cells x genes], dense or CSR, of any real dtype and index width.
    scales
        float64 [cells], one over the size factor of each cell. NaN leaves the cell out.
    place
        Integer [genes], where each gene goes; negative for genes that are not wanted
        (:func:`~scatlas.kernels.counts.select_cpu.new_column_of_gene`).

    Returns
    -------
    A new block [cells kept, genes wanted] of the same kind: float32, but float64 for float64
    counts. Indices of a sparse result are sorted within each cell and, like its indptr, int32
    wherever that is wide enough.
    """
    if scales.shape != x.shape[:1] or place.shape != x.shape[1:]:
        msg = f"{scales.size} scales and {place.size} genes for a block of {x.shape}"
        raise ValueError(msg)
    kept = ~np.isnan(scales)
    wanted = place >= 0
    shape = np.count_nonzero(kept), np.count_nonzero(wanted)
    if not sp.issparse(x):
        index = np.empty(shape[1], np.int64)
        index[place[wanted]] = np.flatnonzero(wanted)
        return log1p(scale_rows(x[np.ix_(kept, index)], scales[kept]))
    pointers = x.indptr.astype(np.int64, copy=False)
    lengths = np.diff(pointers)
    # As long as if every value were kept. Pages that no value comes to lie on are never made.
    n_most = int(lengths[kept].sum())
    data = np.empty(n_most, scaled_dtype(x.dtype))
    indices = np.empty(n_most, index_dtype(n_most, shape[1]))
    indptr = np.zeros(shape[0] + 1, indices.dtype)
    row = np.empty(lengths.max(initial=0) + 1, np.int64)
    _cut(x.data, x.indices, pointers, scales, wanted, place, row, data, indices, indptr)
    n = int(indptr[-1])
    return type(x)((log1p(data[:n]), indices[:n].copy(), indptr), shape=shape)


@njit(nogil=True, cache=True)
def _cut(data, indices, indptr, scales, wanted, place, found, out_data, out_indices, out_indptr):
    k = 0
    kept = 0
    for row in range(scales.size):
        scale = scales[row]
        if np.isnan(scale):
            continue
        # Which values to take, without a branch that would be mispredicted. Unsigned subscripts:
        # Numba tests signed ones for being negative.
        n = np.uint64(0)
        for at in range(indptr[row], indptr[row + 1]):
            found[n] = at
            n += np.uint64(wanted[np.uint64(indices[at])])
        start = k
        for i in range(np.int64(n)):
            gene = place[indices[found[i]]]
            insert(gene, np.float64(data[found[i]]) * scale, start, k, out_data, out_indices)
            k += 1
        kept += 1
        out_indptr[kept] = k
