"""Counts drawn on the GPU equal those of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from tests.gpu.shared import host_arrays

pytest.importorskip("cupy")

from scatlas.kernels.counts import (
    downsample_cpu,
    downsample_gpu,
)


def some_counts(rng, shape=(300, 70), dtype="uint16"):
    """Dense counts with empty rows and genes."""
    x = rng.poisson(rng.gamma(0.4, 4.0, shape[1]), shape)
    x[::9], x[:, ::11] = 0, 0
    top = {"bool": 1, "int8": 127, "uint8": 255}.get(dtype)
    return x.clip(None, top).astype(dtype)


def same(got, expected):
    assert [part.dtype for part in host_arrays(got)] == [
        part.dtype for part in host_arrays(expected)
    ]
    for a, b in zip(host_arrays(got), host_arrays(expected), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("indices", ["uint16", "int32", "int64"])
@pytest.mark.parametrize("replace", [False, True])
def test_genes_in_any_order(rng, gpu_block, indices, replace):
    x = some_counts(rng)
    args = np.arange(300), x.sum(axis=1, dtype=np.int64) // 2
    options = {"seed": 3, "replace": replace, "dtype": np.uint16}
    expected = downsample_cpu.draw_counts(sp.csr_matrix(x), *args, **options)
    unsorted = sp.csr_matrix(x)
    unsorted.indices = unsorted.indices.astype(indices)
    for start, stop in zip(unsorted.indptr[:-1], unsorted.indptr[1:], strict=True):
        order = start + rng.permutation(stop - start)
        unsorted.data[start:stop] = unsorted.data[order]
        unsorted.indices[start:stop] = unsorted.indices[order]
    block = gpu_block(unsorted)
    before = [part.tobytes() for part in host_arrays(block)]
    got = downsample_gpu.draw_counts(block, *args, **options)
    assert got.indices.dtype == indices
    for a, b in zip(host_arrays(got), host_arrays(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert [part.tobytes() for part in host_arrays(block)] == before


def test_large_counts(gpu_block):
    """Totals that need all 32 bits, and numbers that are drawn again."""
    x = sp.csr_matrix(np.tile([[3 * 2**29, 0, 5, 3 * 2**29 - 10]], (100, 1)))
    args = np.arange(100), np.full(100, 20)
    options = {"seed": 1, "replace": True, "dtype": np.int64}
    expected = downsample_cpu.draw_counts(x, *args, **options)
    same(downsample_gpu.draw_counts(gpu_block(x), *args, **options), expected)
