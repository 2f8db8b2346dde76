"""GPU counterpart of ``repeats_cpu``; lines in no order are rare, and are left to the CPU."""

from __future__ import annotations

from typing import Any

from scatlas.arrays.cupy_arrays import csr, on_gpu, on_host
from scatlas.kernels.counts import repeats_cpu


def has_repeats(x: Any) -> bool:
    falls = x.indices[1:] <= x.indices[:-1]
    starts = x.indptr[1:-1]
    falls[starts[(starts > 0) & (starts < x.indices.size)] - 1] = False
    return bool(falls.any()) and repeats_cpu.has_repeats(on_host(_lines(x)))


def sum_repeats(x: Any) -> Any:
    whole = on_gpu(repeats_cpu.sum_repeats(on_host(_lines(x))))
    if x.format == "csr":
        return whole
    return type(x)((whole.data, whole.indices, whole.indptr), shape=x.shape)


def _lines(x: Any) -> Any:
    """The columns of CSC as rows of CSR, which shares its arrays."""
    return csr(x.data, x.indices, x.indptr, x.shape[x.format == "csr"])
