"""Counts drawn on the GPU equal those of the CPU."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from tests.gpu.shared import host_arrays

cp = pytest.importorskip("cupy")

import scatlas as sa  # noqa: E402
from scatlas import blocks  # noqa: E402
from scatlas.arrays.kinds import is_gpu  # noqa: E402
from scatlas.kernels.counts import (  # noqa: E402
    downsample_cpu,
    downsample_gpu,
)

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


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


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
@pytest.mark.parametrize("replace", [False, True])
def test_all_types(rng, gpu_block, dtype, replace):
    x = some_counts(rng, dtype=dtype)
    totals = x.sum(axis=1, dtype=np.int64)
    targets = rng.integers(-1, totals + 1)
    targets[totals == 0] = -1
    cells = rng.integers(0, 2**40, len(x))
    for result in {dtype if dtype != "bool" or not replace else "uint8", "float64", "int64"}:
        options = {"seed": 2**63 + 12345, "replace": replace, "dtype": result}
        for host in (x, sp.csr_matrix(x)):
            block = gpu_block(host)
            before = [part.tobytes() for part in host_arrays(block)]
            expected = downsample_cpu.draw_counts(host, cells, targets, **options)
            same(downsample_gpu.draw_counts(block, cells, targets, **options), expected)
            assert [part.tobytes() for part in host_arrays(block)] == before


@pytest.mark.parametrize("indices", ["uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("indptr", ["int32", "int64"])
def test_all_index_types(rng, gpu_block, indices, indptr):
    x = sp.csr_matrix(some_counts(rng))
    x.indices, x.indptr = x.indices.astype(indices), x.indptr.astype(indptr)
    args = np.arange(300), np.asarray(x.sum(axis=1)).ravel().astype(np.int64) // 2
    options = {"seed": 3, "replace": False, "dtype": np.uint16}
    same(
        downsample_gpu.draw_counts(gpu_block(x), *args, **options),
        downsample_cpu.draw_counts(x, *args, **options),
    )


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


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 70), (200, 1), (301, 97)])
def test_shapes(rng, gpu_block, shape):
    x = some_counts(rng, shape, "float32")
    args = np.arange(shape[0]), x.sum(axis=1).astype(np.int64) // 3
    for replace in (False, True):
        options = {"seed": 0, "replace": replace, "dtype": np.float32}
        for host in (x, sp.csr_matrix(x)):
            expected = downsample_cpu.draw_counts(host, *args, **options)
            same(downsample_gpu.draw_counts(gpu_block(host), *args, **options), expected)


def test_dense_of_any_layout(rng):
    x = some_counts(rng)
    args = np.arange(300), x.sum(axis=1, dtype=np.int64) // 3
    wide = cp.zeros((600, 73), x.dtype)
    wide[::2, :70] = cp.asarray(x)
    for replace in (False, True):
        options = {"seed": 0, "replace": replace, "dtype": x.dtype}
        expected = downsample_cpu.draw_counts(x, *args, **options)
        for block in (cp.asfortranarray(cp.asarray(x)), wide[::2, :70]):
            same(downsample_gpu.draw_counts(block, *args, **options), expected)


def test_large_counts(gpu_block):
    """Totals that need all 32 bits, and numbers that are drawn again."""
    x = sp.csr_matrix(np.tile([[3 * 2**29, 0, 5, 3 * 2**29 - 10]], (100, 1)))
    args = np.arange(100), np.full(100, 20)
    options = {"seed": 1, "replace": True, "dtype": np.int64}
    expected = downsample_cpu.draw_counts(x, *args, **options)
    same(downsample_gpu.draw_counts(gpu_block(x), *args, **options), expected)


@pytest.mark.parametrize("kind", ["dense", "csr", "csc", "dask-dense", "dask-csr", "exact-csr"])
@pytest.mark.parametrize("replace", [False, True])
def test_public_function(rng, kind, replace):
    counts = some_counts(rng, (700, 300), "uint16" if kind == "exact-csr" else "float32")
    x = counts if "dense" in kind else sp.csr_matrix(counts)
    x = x.tocsc() if kind == "csc" else x
    if "dask" in kind:
        x = da.from_array(x, chunks=(150, 300), asarray=False)
    for how in ({"counts_per_cell": 50}, {"total_counts": 9000}):
        cpu = ad.AnnData(sp.csr_matrix(counts))
        gpu = ad.AnnData(sa.get.X_to_GPU(x, exact=kind != "csc"))
        for adata in (cpu, gpu):
            sa.pp.downsample_counts(adata, **how, replace=replace)
        assert is_gpu(gpu.X)
        assert gpu.X.dtype == cpu.X.dtype
        got = blocks.join(list(blocks.stream(gpu.X))) if "dask" in kind else gpu.X
        got = blocks.on_host(got)
        got = got.toarray() if sp.issparse(got) else got
        np.testing.assert_array_equal(got, cpu.X.toarray())
