"""GPU kernels of normalisation and QC agree with the CPU kernels."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

from scatlas.kernels.counts import (  # noqa: E402
    normalize_cpu,
    normalize_gpu,
    qc_cpu,
    qc_gpu,
)


def counts(rng, shape, data, indices="int32", indptr="int32"):
    """Counts with explicit zeros in some cells."""
    x = sp.random(*shape, density=0.3, format="csr", rng=rng)
    x.data = np.minimum(rng.geometric(0.1, x.nnz) - 1, 255).astype(data)
    if shape[0] > 4:
        x.data[x.indptr[2] : x.indptr[4]] = 0
    x.indices = x.indices.astype(indices)
    x.indptr = x.indptr.astype(indptr)
    return x


def reals(rng, x, dtype="float32"):
    """The same sparsity pattern with values of both signs and many magnitudes."""
    y = x.copy()
    y.data = (rng.standard_normal(x.nnz) * 10.0 ** rng.integers(-3, 5, x.nnz)).astype(dtype)
    return y


def same(got, expected, rtol=0.0, scale=0.0):
    """Check arrays for equal type and values; reals within `rtol` of themselves or of `scale`."""
    assert type(got) is np.ndarray
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if rtol and got.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol * scale)
    else:
        np.testing.assert_array_equal(got, expected)


def test_scaled_csc(rng, gpu_block):
    from cupyx.scipy import sparse

    x = counts(rng, (30, 20), "uint16").tocsc()
    block = sparse.csc_matrix((30, 20), dtype=np.float32)
    block.data, block.indices, block.indptr = map(cp.asarray, (x.data, x.indices, x.indptr))
    factors = rng.random(30)
    got = normalize_gpu.scale_rows(block, factors)
    want = normalize_cpu.scale_rows(x, factors)
    assert got.format == "csc"
    same(got.data.get(), want.data)
    same(normalize_gpu.log1p(got).data.get(), normalize_cpu.log1p(want).data)
    same(block.data.get(), x.data)


def test_wrong_number_of_factors(rng, gpu_block):
    with pytest.raises(ValueError, match="3 factors for 2 cells"):
        normalize_gpu.scale_rows(cp.zeros((2, 2)), np.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("base", [None, 2, 0.5, 10.0])
def test_log1p_of_everything(rng, dtype, base):
    special = [0.0, -0.0, -1.0, -1.5, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 5e-324, 1.7e308]
    near_one = -1 + 10.0 ** -rng.uniform(0, 16, 1000)
    wide = 10.0 ** rng.uniform(-20, 30, 10_000)
    with np.errstate(over="ignore"):
        values = np.concatenate([special, near_one, wide, -(rng.random(1000))]).astype(dtype)
    same(normalize_gpu.log1p(cp.asarray(values), base).get(), normalize_cpu.log1p(values, base))


def check_qc(got, want, rtol=0.0, scale=0.0):
    for name in ("totals", "n_genes", "masked", "top", "gene_totals", "n_cells"):
        same(getattr(got, name), getattr(want, name), rtol, scale)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint64"])
@pytest.mark.parametrize("dense", [False, True])
def test_integers_of_other_types(rng, gpu_block, dtype, dense):
    x = counts(rng, (20, 40), "int64")
    x.data = (x.data - 30 if np.dtype(dtype).kind == "i" else x.data).astype(dtype)
    host = x.toarray() if dense else x
    masks = np.zeros((0, 40), bool)
    ns = [1, 3, 10, 20, 35, 39, 40]
    got = qc_gpu.qc_block(gpu_block(host), masks, ns)
    check_qc(got, qc_cpu.qc_block(host, masks, ns))


def test_gene_sums_match_exact_arithmetic(rng, gpu_block):
    from math import fsum

    x = reals(rng, counts(rng, (500, 10), "float32"), "float64")
    got = qc_cpu.round_gene_sums(qc_gpu.gene_totals(gpu_block(x)))
    columns = x.tocsc()
    exact = [fsum(columns.data[columns.indptr[g] : columns.indptr[g + 1]]) for g in range(10)]
    np.testing.assert_allclose(got, exact, rtol=0, atol=4e-16 * max(map(abs, exact)))


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e300])
def test_sums_of_any_magnitude(rng, gpu_block, scale):
    x = counts(rng, (30, 20), "float64")
    x.data *= scale
    want = qc_cpu.gene_totals(x)
    same(qc_gpu.gene_totals(gpu_block(x)), want, 1e-12, want.max())


def test_values_that_are_not_finite(gpu_block):
    x = np.array([[np.nan, np.inf, -np.inf, np.inf, 1.5], [1, 2, 3, -np.inf, 0]])
    for host in (x, sp.csr_matrix(x), x.astype(np.float32)):
        block = gpu_block(host)
        same(qc_gpu.gene_totals(block), qc_cpu.gene_totals(host))
        same(qc_gpu.row_sums(block), qc_cpu.row_sums(host))
        same(qc_gpu.row_totals(block), qc_cpu.row_totals(host))
        same(qc_gpu.top_totals(block, [1]), qc_cpu.top_totals(host, [1]))


def test_one_value_that_is_no_integer(rng, gpu_block):
    x = counts(rng, (40, 50), "float32")
    x.data[-1] = 0.5
    assert qc_gpu.row_totals(gpu_block(x)).dtype == np.float64
    same(qc_gpu.row_totals(gpu_block(x)), qc_cpu.row_totals(x))


def test_large_integers_as_reals(gpu_block):
    x = sp.csr_matrix(np.array([[2.0**51, 1, 0], [2.0**51, 1, 3], [2.0**51, 1, 0]]))
    masks = np.ones((1, 3), bool)
    check_qc(qc_gpu.qc_block(gpu_block(x), masks, [2]), qc_cpu.qc_block(x, masks, [2]))
    x.data[0] = 2.0**60
    check_qc(qc_gpu.qc_block(gpu_block(x), masks, [2]), qc_cpu.qc_block(x, masks, [2]), 1e-15)


def test_top_of_long_and_equal_rows(rng, gpu_block):
    x = sp.csr_matrix(np.vstack([rng.poisson(3, 20_000), np.full(20_000, 7), np.zeros(20_000)]))
    ns = [1, 49, 50, 100, 200, 500, 19_999, 20_000]
    for dtype in ("uint8", "float32"):
        same(qc_gpu.top_totals(gpu_block(x, dtype), ns), qc_cpu.top_totals(x.astype(dtype), ns))


@pytest.mark.parametrize("ns", [[], [0, 3], [2, 1], [6]])
def test_numbers_of_genes_are_checked(ns):
    with pytest.raises(ValueError, match="must ascend within 1 and 5"):
        qc_gpu.top_totals(cp.zeros((2, 5)), ns)
