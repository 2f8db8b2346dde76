"""Moments above bounds, and the flavours seurat_v3, on the GPU have the bits of the CPU."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tests.gpu.shared import needs

pytest.importorskip("cupy")

import scatlas as sa
from scatlas.kernels.counts import qc_gpu
from scatlas.kernels.moments import (
    count_moments_cpu,
    count_moments_gpu,
    moments_cpu,
    moments_gpu,
)

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def some_counts(rng, n=300, genes=70, dtype="uint16"):
    """Dense counts with empty rows and genes, some far above the others."""
    x = rng.poisson(1.5, (n, genes)) + rng.poisson(0.02, (n, genes)) * 1000
    x[::9], x[:, ::11] = 0, 0
    top = {"bool": 1, "int8": 127, "uint8": 255, "int16": 32767}.get(dtype)
    return x.clip(None, top).astype(dtype)


def some_bounds(rng, x, n_groups=3):
    """Bounds, some equal to values of the block, some above all values."""
    bounds = rng.gamma(2.0, 3.0, (n_groups, x.shape[1]))
    bounds[:, 1::3] = np.floor(bounds[:, 1::3])
    bounds[:, 2::7] = np.inf
    bounds[0, 5], bounds[-1, 6] = np.nan, 0
    return bounds


def csr(x):
    return sp.csr_matrix(x)


def bits(moments):
    arrays = moments.groups, moments.n_cells, moments.sums, moments.expressed
    assert all(isinstance(array, np.ndarray) for array in arrays)
    return [array.tobytes() for array in arrays]


def test_no_value_and_all_values_above(gpu_block, rng):
    x = some_counts(rng, dtype="int32")
    for bound in (1e9, 0.0):
        bounds = np.full((1, x.shape[1]), bound)
        expected = bits(moments_cpu.moments_above(x, bounds))
        for block in (gpu_block(csr(x)), gpu_block(x)):
            assert bits(moments_gpu.moments_above(block, bounds)) == expected


def test_one_result_whatever_the_schedule_and_the_blocks(gpu_block, rng):
    x = some_counts(rng, 3000, 60)
    bounds, codes = some_bounds(rng, x), rng.integers(-1, 3, 3000)
    order = rng.permutation(3000)
    expected = bits(moments_gpu.moments_above(gpu_block(csr(x)), bounds, codes))
    for _ in range(3):
        got = moments_gpu.moments_above(gpu_block(csr(x)), bounds, codes)
        assert bits(got) == expected
    got = moments_gpu.moments_above(gpu_block(csr(x[order])), bounds, codes[order])
    assert bits(got) == expected
    pieces = zip(np.split(x, [13, 777]), np.split(codes, [13, 777]), strict=True)
    folded = moments_cpu.merge_in_place(
        [moments_gpu.moments_above(gpu_block(csr(a)), bounds, b) for a, b in pieces]
    )
    assert bits(folded) == expected


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_moments_of_counts(gpu_block, rng, dtype):
    x, codes = some_counts(rng, dtype=dtype), rng.integers(-1, 3, 300)
    for given in (None, codes):
        expected = bits(count_moments_cpu.moments_of_counts(csr(x), given))
        for block in (gpu_block(csr(x)), gpu_block(x)):
            assert bits(count_moments_gpu.moments_of_counts(block, given)) == expected


@pytest.mark.parametrize("kind", [np.asarray, csr])
def test_what_counts_are(gpu_block, kind):
    x = np.array([[0, 3, 0], [1, 0, 100]])
    for dtype in (*INTEGERS, "float32", "float64"):
        assert qc_gpu.holds_counts(gpu_block(kind(x.astype(dtype))))
        assert qc_gpu.holds_counts(gpu_block(kind(x[:0].astype(dtype))))
    for bad in (0.5, -1.0, np.nan, 1e-30):
        odd = x.astype(np.float64)
        odd[1, 0] = bad
        assert not qc_gpu.holds_counts(gpu_block(kind(odd)))
    assert not qc_gpu.holds_counts(gpu_block(kind(-x)))


# --- public function --------------------------------------------------------------------------


def annotated(x):
    adata = ad.AnnData(x, var=pd.DataFrame(index=[f"gene{i}" for i in range(x.shape[1])]))
    adata.obs["batch"] = pd.Categorical([f"b{i % 3}" for i in range(x.shape[0])])
    return adata


@pytest.fixture
def counts(rng):
    rates = rng.gamma(0.3, 2.0, 300) * rng.gamma(2.0, 0.5, (700, 1))
    x = rng.poisson(rates).astype(np.float32)
    x[13], x[5, 20] = 0, 5000
    return sp.csr_matrix(x)


@needs("skmisc")
def test_public_function_of_values_that_are_no_counts(counts, rng):
    counts.data *= rng.gamma(2.0, 0.5, counts.nnz).astype(np.float32)
    options = {"flavor": "seurat_v3", "n_top_genes": 50, "inplace": False, "batch_key": "batch"}
    tables = []
    for x in (counts, sa.get.X_to_GPU(counts)):
        with pytest.warns(UserWarning, match="expects raw count data"):
            tables.append(sa.pp.highly_variable_genes(annotated(x), **options))
    pd.testing.assert_frame_equal(*tables, rtol=1e-14)
