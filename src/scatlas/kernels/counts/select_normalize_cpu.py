"""Selection of cells and genes of one block of counts and log-normalisation, in one sweep."""

from __future__ import annotations

import numpy as np

from scatlas.arrays.array_types import Array, Block, Bools, Floats, Ints, is_sparse, row_offsets
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.counts.normalize_cpu import log1p, scale_rows, scaled_dtype
from scatlas.kernels.counts.select_cpu import index_dtype, insert_sorted


def select_and_log_normalize(x: Block, scales: Array, new_column: Array) -> Block:
    """log(1 + normalised count) of the selected genes of the kept cells.

    The bits are those of :func:`~scatlas.kernels.counts.select_cpu.select_genes`,
    :func:`~scatlas.kernels.counts.normalize_cpu.scale_rows` and
    :func:`~scatlas.kernels.counts.normalize_cpu.log1p` one after another. `scales` are one over the
    size factor of each cell, NaN leaves it out; `new_column` is that of
    :func:`~scatlas.kernels.counts.select_cpu.new_column_of_gene`. Indices of a sparse result are
    sorted within each cell; they and its indptr are int32 if that is wide enough.
    """
    if scales.shape != x.shape[:1] or new_column.shape != x.shape[1:]:
        msg = f"{scales.size} scales and {new_column.size} genes for a block of {x.shape}"
        raise ValueError(msg)
    kept = ~np.isnan(scales)
    is_selected = new_column >= 0
    shape = int(np.count_nonzero(kept)), int(np.count_nonzero(is_selected))
    if not is_sparse(x):
        index = np.empty(shape[1], np.int64)
        index[new_column[is_selected]] = np.flatnonzero(is_selected)
        return log1p(scale_rows(np.asarray(x)[np.ix_(kept, index)], scales[kept]))
    offsets = row_offsets(x)
    lengths = np.diff(offsets)
    # Long enough for all values of the kept cells. The system makes only pages that are written.
    max_values = int(lengths[kept].sum())
    data = np.empty(max_values, scaled_dtype(x.dtype))
    indices: Array = np.empty(max_values, index_dtype(max_values, shape[1]))
    indptr = np.zeros(shape[0] + 1, indices.dtype)
    row = np.empty(lengths.max(initial=0) + 1, np.int64)
    _select_and_scale(
        x.data, x.indices, offsets, scales, is_selected, new_column, row, data, indices, indptr
    )
    n = int(indptr[-1])
    return type(x)((log1p(data[:n]), indices[:n].copy(), indptr), shape=shape)


@njit(nogil=True, cache=True)
def _select_and_scale(
    data: Array,
    indices: Array,
    indptr: Ints,
    scales: Floats,
    is_selected: Bools,
    new_column: Ints,
    positions: Array,
    out_data: Array,
    out_indices: Array,
    out_indptr: Array,
) -> None:
    k = 0
    kept = 0
    for row in range(scales.size):
        scale = scales[row]
        if np.isnan(scale):
            continue
        # Positions of the selected values, without a branch that would be mispredicted. Subscripts
        # are unsigned, because Numba tests signed ones for negative values.
        n = np.uint64(0)
        for at in range(indptr[row], indptr[row + 1]):
            positions[n] = at
            n += np.uint64(is_selected[np.uint64(indices[at])])
        start = k
        for i in range(np.int64(n)):
            gene = new_column[indices[positions[i]]]
            insert_sorted(
                gene, np.float64(data[positions[i]]) * scale, start, k, out_data, out_indices
            )
            k += 1
        kept += 1
        out_indptr[kept] = k
