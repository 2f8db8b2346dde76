"""Dense matrices of genes x cells, as Loom has them, read in blocks of cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from scatlas.compute.memory import BYTES_PER_VALUE, block_bytes
from scatlas.errors import InputError
from scatlas.io.files.anndata_file import load_filters
from scatlas.io.files.read_errors import REMEDY, reading
from scatlas.io.matrices.layout import StoredMatrix, cells, check_kind, in_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    import h5py


def find_transposed(path: str, root: h5py.File, key: str, shape: tuple[int, int]) -> StoredMatrix:
    """Find a matrix of genes x cells; ``shape`` is of the tables, cells first."""
    with reading(path, key):
        stored = root[key]
        load_filters(path, stored)
        found, dtype = tuple(stored.shape), stored.dtype
    if found != shape[::-1]:
        msg = (
            f"{path}: {key} has shape {found}, but there are {shape[1]:,} genes and {shape[0]:,} "
            f"cells: {REMEDY}"
        )
        raise InputError(msg)
    check_kind(f"{path}: {key}", dtype)
    return StoredMatrix(path, key, "transposed", shape, in_memory(dtype))


def transposed_blocks(
    matrix: StoredMatrix, root: h5py.File, budget: int
) -> tuple[list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
    """Cut a matrix of genes x cells into blocks of cells, and a function that reads one as CSR.

    Blocks end where chunks do, so that no chunk is decoded twice, unless a single chunk is as wide
    as the matrix.
    """
    stored = root[matrix.key]
    n_cells, n_genes = matrix.shape
    # The values, and at worst each of them in the sparse block.
    per_cell = max(1, n_genes * (matrix.dtype.itemsize + BYTES_PER_VALUE))
    width = max(1, block_bytes(budget) // per_cell)
    chunk = stored.chunks[1] if stored.chunks else 1
    width = width // chunk * chunk or min(chunk, width)
    cut = [(i, min(i + width, n_cells)) for i in range(0, n_cells, width)] or [(0, 0)]

    def read(i: int) -> sp.csr_matrix:
        first, stop = cut[i]
        with reading(matrix.path, f"{matrix.key} of {cells(first, stop)}"):
            values = np.asarray(stored[:, first:stop]).astype(matrix.dtype, copy=False)
        return sp.csr_matrix(values.T)

    return cut, read
