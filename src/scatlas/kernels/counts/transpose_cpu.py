"""Entries of lines sorted by their indices (Numba): a block by gene, CSC as CSR; dense as CSR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from scatlas.kernels import CsrArrays, csr_arrays
from scatlas.kernels.build.numba_cache import njit
from scatlas.kernels.moments.group_sums_cpu import as_numba_dtype

if TYPE_CHECKING:
    from scatlas.arrays.array_types import Array, Ints


@njit(nogil=True, cache=True)
def count_indices(indices: Array, counts: Ints) -> None:
    """Add the number of entries of each index to `counts`."""
    for at in range(indices.size):
        counts[indices[at]] += 1


@njit(nogil=True, cache=True)
def scatter(
    lines: CsrArrays,
    labels: Array,
    new_index: Ints | None,
    next_slot: Ints,
    out_data: Array,
    out_labels: Array,
) -> None:
    """Write each value, and the label of its line, to the next slot of its index, which moves on.

    Of each index the entries keep the order of the lines. Lines with a negative label are left out.
    With `new_index`, entries go to that of their index; zeros and those without one are left out.
    """
    for line in range(labels.size):
        label = labels[line]
        if label < 0:
            continue
        for at in range(lines.indptr[line], lines.indptr[line + 1]):
            index = np.uint64(lines.indices[at])  # Numba tests signed ones for negative values
            if new_index is not None:  # decided when it is compiled
                if new_index[index] < 0 or lines.data[at] == 0:
                    continue
                index = np.uint64(new_index[index])
            slot = next_slot[index]
            next_slot[index] = slot + 1
            out_data[slot] = lines.data[at]
            out_labels[slot] = label


def by_gene(block: sp.csr_matrix, row_dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of a CSR block gene after gene, in the order of the cells; their rows in the block, in
    an unsigned type; and the number of values of each gene.
    """
    rows = csr_arrays(block)
    counts = np.zeros(block.shape[1], np.int64)
    count_indices(rows.indices[rows.indptr[0] : rows.indptr[-1]], counts)
    n_values, first_slots = int(counts.sum()), np.cumsum(counts) - counts
    data, out_rows = np.empty(n_values, rows.data.dtype), np.empty(n_values, row_dtype)
    labels = np.arange(block.shape[0], dtype=row_dtype)
    scatter(rows, labels, None, first_slots, data, out_rows)
    return data, out_rows, counts


def slots_of_parts(counts: Ints) -> tuple[Ints, Ints]:
    """Offsets of the new lines, and the slot of the first entry of each part of the old order in
    each. `counts` ``[n_parts, n_lines]`` are the entries of each new line in each part.
    """
    indptr = np.zeros(counts.shape[1] + 1, np.int64)
    np.cumsum(counts.sum(axis=0), out=indptr[1:])
    return indptr, indptr[:-1] + np.cumsum(counts, axis=0) - counts


@njit(nogil=True, cache=True)
def copy_segments(
    data: Array, labels: Array, counts: Ints, shift: int, slots: Ints, out: Array, out_labels: Array
) -> None:
    """Copy the values of successive genes of one block, and their labels plus `shift`, to those of
    all blocks, of which `slots` has the first of each gene.
    """
    at = 0
    for gene in range(counts.size):
        n = counts[gene]
        own, to = slice(at, at + n), slice(slots[gene], slots[gene] + n)
        # By slices, whose loops are vectorised: a third of the time, of long segments a tenth.
        values, out_values = data[own], out[to]
        for k in range(n):
            out_values[k] = values[k]
        old, new = labels[own], out_labels[to]
        for k in range(n):
            new[k] = shift + old[k]
        at += n


def dense_to_csr(x: Array) -> sp.csr_matrix:
    """Nonzero values of a dense block, NaN included, as CSR in a tenth of SciPy's time; bool
    becomes uint8, float16 float32 and long double float64, because Numba has none of them.
    """
    values = np.ascontiguousarray(as_numba_dtype(x))
    offsets = np.zeros(x.shape[0] + 1, dtype=np.int64)
    _count_nonzero(values, offsets)
    np.cumsum(offsets, out=offsets)
    data = np.empty(offsets[-1], dtype=values.dtype)
    indices = np.empty(data.size, dtype=np.int32)
    _copy_nonzero(values, offsets, data, indices)
    csr = sp.csr_matrix(x.shape, dtype=values.dtype)
    csr.data, csr.indices, csr.indptr = data, indices, offsets
    return csr


@njit(nogil=True, cache=True)
def _count_nonzero(x: Array, offsets: Ints) -> None:
    for row in range(x.shape[0]):
        n = 0
        for column in range(x.shape[1]):
            n += x[row, column] != 0
        offsets[row + 1] = n


@njit(nogil=True, cache=True)
def _copy_nonzero(x: Array, offsets: Ints, data: Array, indices: Array) -> None:
    # Every value is written, and the next one over it if it was zero: a branch that depends on the
    # values would take several times as long.
    values = np.empty(x.shape[1] + 1, dtype=data.dtype)
    columns = np.empty(x.shape[1] + 1, dtype=np.int32)
    for row in range(x.shape[0]):
        n = np.uint64(0)
        for column in range(x.shape[1]):
            value = x[row, column]
            values[n] = value
            columns[n] = column
            n += np.uint64(value != 0)
        start = offsets[row]
        for at in range(n):
            data[start + at] = values[at]
            indices[start + at] = columns[at]
