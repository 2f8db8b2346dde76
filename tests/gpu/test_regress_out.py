"""Regression of genes on the GPU has the sums and residuals of the CPU."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tests.gpu.shared import host_arrays

cp = pytest.importorskip("cupy")

import scatlas as sa  # noqa: E402
from scatlas import blocks  # noqa: E402
from scatlas.arrays.kinds import is_gpu  # noqa: E402
from scatlas.kernels.linalg import (  # noqa: E402
    scale_cpu,
    scale_gpu,
)

TYPES = [
    ("bool", "int32", "int32"),
    ("uint8", "uint16", "int64"),
    ("int16", "uint32", "int32"),
    ("int64", "int64", "int64"),
    ("float32", "int32", "int64"),
    ("float64", "int32", "int32"),
]
SHAPES = [(0, 5), (5, 0), (1, 1), (3, 33), (200, 1), (301, 97)]


def some_block(rng, shape, dtype):
    x = rng.poisson(1.0, shape) * rng.gamma(1.0, 20.0, shape) * rng.choice([1, -1], shape)
    if dtype in ("bool", "uint8"):
        x = np.abs(x).clip(0, 255)
    x[::9] = 0
    return x.astype(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("dense", [False, True])
def test_kernels(rng, gpu_block, shape, types, dense):
    x = some_block(rng, shape, types[0])
    block = gpu_block(x) if dense else gpu_block(sp.csr_matrix(x), *types)
    before = [part.tobytes() for part in host_arrays(block)]
    for n_weights in (0, 1, 3):
        weights = rng.normal(size=(shape[0], n_weights))
        got = scale_gpu.weighted_sums(block, weights)
        assert isinstance(got, np.ndarray)
        expected = scale_cpu.weighted_sums(x, weights)
        np.testing.assert_array_equal(got[0], expected[0])
        codes = rng.integers(0, 2, shape[0])
        base = rng.normal(size=(2, shape[1]))
        slopes = rng.normal(size=(n_weights, shape[1]))
        for dtype in (np.float32, np.float64):
            got = scale_gpu.residuals(block, codes, base, weights, slopes, dtype=dtype)
            expected = scale_cpu.residuals(x, codes, base, weights, slopes, dtype=dtype)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.get(), expected)
    assert [part.tobytes() for part in host_arrays(block)] == before


def test_dense_blocks_of_any_layout(rng):
    x = some_block(rng, (60, 40), "float32")
    weights, slopes = rng.normal(size=(60, 2)), rng.normal(size=(2, 40))
    args = np.zeros(60, np.int64), rng.normal(size=(1, 40)), weights, slopes
    wide = cp.zeros((120, 43), np.float32)
    wide[::2, :40] = cp.asarray(x)
    for block in (cp.asfortranarray(cp.asarray(x)), wide[::2, :40]):
        got = scale_gpu.weighted_sums(block, weights)
        np.testing.assert_array_equal(got[0], scale_cpu.weighted_sums(x, weights)[0])
        got = scale_gpu.residuals(block, *args, dtype=np.float32)
        expected = scale_cpu.residuals(x, *args, dtype=np.float32)
        np.testing.assert_array_equal(got.get(), expected)


@pytest.mark.parametrize("kind", ["dense", "csr", "csc", "dask-dense", "dask-csr", "exact-csr"])
@pytest.mark.parametrize("keys", [["total"], ["total", "other"], "line"], ids=str)
def test_public_function_has_the_bits_of_the_cpu(rng, kind, keys):
    x = np.abs(some_block(rng, (700, 300), "float32"))
    if kind == "exact-csr":
        x = np.rint(x).clip(0, 255).astype(np.uint8)
    obs = pd.DataFrame({"total": x.sum(axis=1), "other": rng.random(700)})
    obs["line"] = rng.choice(["a", "b", "c"], 700)
    obs.index = [f"cell{i}" for i in range(700)]
    cpu = ad.AnnData(sp.csr_matrix(x), obs=obs)
    sa.pp.regress_out(cpu, keys)
    x = x if "dense" in kind else sp.csc_matrix(x) if kind == "csc" else sp.csr_matrix(x)
    if "dask" in kind:
        x = da.from_array(x, chunks=(150, 300), asarray=False)
    gpu = ad.AnnData(sa.get.X_to_GPU(x, exact=kind != "csc"), obs=obs)
    sa.pp.regress_out(gpu, keys)
    assert is_gpu(gpu.X)
    got = blocks.join(list(blocks.stream(gpu.X))) if "dask" in kind else gpu.X
    assert got.dtype == gpu.X.dtype == cpu.X.dtype
    np.testing.assert_array_equal(got.get(), cpu.X)
