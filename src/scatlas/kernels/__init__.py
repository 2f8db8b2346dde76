"""Numerics of one row block: arrays in, arrays out; no AnnData, no Dask, no files.

Where a docstring does not say otherwise:

- ``x`` is a block ``[n, n_genes]``, dense or CSR, of any real dtype and index width, and stores a
  gene of a cell once;
- ``codes`` are the groups of its rows, integers ``[n]``: a negative one leaves its row out, and
  None puts all rows in group 0;
- ``run`` is ``map``, or a function like it that calls in several threads; BLAS uses one thread;
- factors and results are float64;
- ``<operation>_cpu`` is for NumPy and SciPy, ``<operation>_gpu`` for CuPy: the type of the block
  decides, never a setting;
- a function of a ``_gpu`` module does what its counterpart in ``_cpu`` does, on the current device.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scatlas.arrays.kinds import is_gpu

if TYPE_CHECKING:
    from types import ModuleType

    from scatlas.arrays.array_types import Array, Ints, SparseBlock

# What counts are stored as, the narrowest first.
COUNT_DTYPES = (np.uint8, np.uint16, np.uint32)


def kernels_for(operation: str, x: object) -> ModuleType:
    """Module of an operation, such as ``linalg.gram``, for a block ``x`` or the blocks of ``x``."""
    return import_module(f"scatlas.kernels.{operation}_{'gpu' if is_gpu(x) else 'cpu'}")


def gene_dtype(n_genes: int) -> np.dtype:
    """Smallest dtype of the gene indices of counts in memory."""
    return np.dtype(np.uint16 if n_genes <= 2**16 else np.int32)


class CsrArrays(NamedTuple):
    """CSR rows, or CSC columns, as compiled functions take them."""

    data: Array
    indices: Array
    indptr: Ints


def csr_arrays(x: SparseBlock) -> CsrArrays:
    """Arrays of a block, with offsets as int64: a copy of these only if they are not."""
    return CsrArrays(x.data, x.indices, x.indptr.astype(np.int64, copy=False))
