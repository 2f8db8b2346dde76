"""Pearson residuals on the GPU have the sums of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip("cupy")

from scatlas.kernels.moments import (
    moments_cpu,
    pearson_cpu,
    pearson_gpu,
)
from scatlas.kernels.moments.pearson_cpu import PearsonModel


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
