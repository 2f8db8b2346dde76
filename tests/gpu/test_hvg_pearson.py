"""Pearson residuals on the GPU have the sums of the CPU."""

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
from scatlas.kernels.moments import (  # noqa: E402
    moments_cpu,
    pearson_cpu,
    pearson_gpu,
)
from scatlas.kernels.moments.pearson_cpu import PearsonModel  # noqa: E402


def some_counts(rng, shape=(300, 70), dtype="uint16"):
    """Dense counts with empty rows and genes, some far above the others."""
    x = rng.poisson(rng.gamma(0.4, 4.0, shape[1]), shape) + rng.poisson(0.02, shape) * 1000
    x[::9], x[:, ::11] = 0, 0
    top = {"bool": 1, "int8": 127, "uint8": 255}.get(dtype)
    return x.clip(None, top).astype(dtype)


def some_model(x, codes, theta=100.0, clips=(0.9, 3.0, 1e9)):
    genes = np.array([x[codes == code].sum(axis=0, dtype=np.float64) for code in range(3)])
    return PearsonModel(genes, np.maximum(genes.sum(axis=1), 1), np.array(clips), theta)


def same(got, expected):
    """Check for equal terms, whose sums are rounded only in the result."""
    for name in ("groups", "n_cells", "expressed"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name))
    assert isinstance(got.sums, np.ndarray)
    np.testing.assert_array_equal(got.sums[..., ::2], expected.sums[..., ::2])


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "uint16", "int64", "float32", "float64"]
)
@pytest.mark.parametrize("theta", [0.5, 100.0, np.inf])
def test_all_types(rng, gpu_block, dtype, theta):
    x = some_counts(rng, dtype=dtype)
    codes = rng.integers(-1, 3, len(x))
    model, totals = some_model(x, codes, theta), x.sum(axis=1, dtype=np.float64)
    expected = pearson_cpu.sums_of_nonzeros(sp.csr_matrix(x), totals, model, codes)
    for block in (gpu_block(sp.csr_matrix(x)), gpu_block(x)):
        before = [part.tobytes() for part in host_arrays(block)]
        for given in (codes, cp.asarray(codes)):
            same(pearson_gpu.sums_of_nonzeros(block, totals, model, given), expected)
        assert [part.tobytes() for part in host_arrays(block)] == before
        same(
            pearson_gpu.sums_of_nonzeros(block, totals, model),
            pearson_cpu.sums_of_nonzeros(x, totals, model),
        )


@pytest.mark.parametrize("indices", ["uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("indptr", ["int32", "int64"])
def test_all_index_types(rng, gpu_block, indices, indptr):
    x = some_counts(rng)
    model, totals = some_model(x, np.zeros(300)), x.sum(axis=1, dtype=np.float64)
    block = gpu_block(sp.csr_matrix(x), indices=indices, indptr=indptr)
    got = pearson_gpu.sums_of_nonzeros(block, totals, model)
    same(got, pearson_cpu.sums_of_nonzeros(x, totals, model))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (1, 70), (200, 1), (301, 97)])
def test_shapes(rng, gpu_block, shape):
    x = some_counts(rng, shape, "float32")
    codes = rng.integers(-1, 3, shape[0])
    model, totals = some_model(x, codes), x.sum(axis=1, dtype=np.float64)
    for given in ((), (codes,), (np.full(shape[0], -1),)):
        expected = pearson_cpu.sums_of_nonzeros(x, totals, model, *given)
        for block in (gpu_block(sp.csr_matrix(x)), gpu_block(x)):
            same(pearson_gpu.sums_of_nonzeros(block, totals, model, *given), expected)


def test_dense_of_any_layout(rng):
    x = some_counts(rng, dtype="float32")
    model, totals = some_model(x, np.zeros(300)), x.sum(axis=1, dtype=np.float64)
    wide = cp.zeros((600, 73), x.dtype)
    wide[::2, :70] = cp.asarray(x)
    for block in (cp.asfortranarray(cp.asarray(x)), wide[::2, :70]):
        got = pearson_gpu.sums_of_nonzeros(block, totals, model)
        same(got, pearson_cpu.sums_of_nonzeros(x, totals, model))


@pytest.mark.parametrize("n_genes, n_totals", [(0, 3), (1, 1), (700, 1000)])
def test_zeros(rng, n_genes, n_totals):
    genes = rng.integers(0, 10**6, (2, n_genes)).astype(np.float64)
    model = PearsonModel(genes, np.array([1e8, 2e8]), np.array([1.0, 30.0]), 100.0)
    totals = np.unique(rng.integers(0, 10**5, n_totals)).astype(np.float64)
    n_cells = rng.integers(1, 50, totals.size)
    for group in (0, 1):
        got = pearson_gpu.sums_of_zeros(model, group, totals, n_cells)
        expected = pearson_cpu.sums_of_zeros(model, group, totals, n_cells)
        np.testing.assert_array_equal(got, expected)


def test_one_result_whatever_the_schedule_and_the_blocks(rng, gpu_block):
    x = some_counts(rng, (3000, 60))
    codes, totals = rng.integers(-1, 3, 3000), x.sum(axis=1, dtype=np.float64)
    model, order = some_model(x, codes), rng.permutation(3000)
    block = gpu_block(sp.csr_matrix(x))
    expected = pearson_gpu.sums_of_nonzeros(block, totals, model, codes)
    for _ in range(3):
        same(pearson_gpu.sums_of_nonzeros(block, totals, model, codes), expected)
    folded = [
        pearson_gpu.sums_of_nonzeros(
            gpu_block(sp.csr_matrix(x[rows])), totals[rows], model, codes[rows]
        )
        for rows in np.split(order, [13, 777])
    ]
    same(moments_cpu.merge_in_place(folded), expected)


@pytest.mark.parametrize("kind", ["dense", "csr", "csc", "dask-dense", "dask-csr", "exact-csr"])
def test_public_function(rng, kind):
    counts = some_counts(rng, (700, 300), "float32")
    obs = pd.DataFrame({"batch": [f"b{i % 3}" for i in range(700)]}).set_axis(
        [f"cell{i}" for i in range(700)]
    )
    x = counts if "dense" in kind else sp.csr_matrix(counts)
    x = x.tocsc() if kind == "csc" else x.astype(np.uint16) if kind == "exact-csr" else x
    if "dask" in kind:
        x = da.from_array(x, chunks=(150, 300), asarray=False)
    x = sa.get.X_to_GPU(x, exact=kind != "csc")
    factors = np.where(np.arange(700) % 7 == 0, np.nan, 1.0)
    for batch_key in (None, "batch"):
        options = {"flavor": "pearson_residuals", "batch_key": batch_key, "n_top_genes": 50}
        for more in ({}, {"size_factors": factors, "min_cells": 20, "theta": 7, "clip": 3}):
            cpu, gpu = (
                sa.pp.highly_variable_genes(
                    ad.AnnData(each, obs=obs), inplace=False, **options, **more
                )
                for each in (sp.csr_matrix(counts), x)
            )
            # On the CPU the rounding errors of the sums are rounded themselves.
            pd.testing.assert_frame_equal(gpu, cpu, rtol=1e-14, atol=0)
