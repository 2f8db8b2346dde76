"""GPU kernels of selection and scaling have the bits of the CPU kernels."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

from scatlas.kernels.counts import (  # noqa: E402
    normalize_cpu,
    normalize_gpu,
    select_cpu,
    select_gpu,
)
from scatlas.kernels.linalg import scale_cpu, scale_gpu  # noqa: E402
from tests.gpu.shared import host_arrays  # noqa: E402

SHAPES = [(37, 300), (1, 1), (0, 5), (3, 0), (300, 3), (2, 4000)]


def counts(rng, shape, data, indices="int32", indptr="int32"):
    """Counts with cells that have no values."""
    x = sp.random(*shape, density=0.3, format="csr", rng=rng)
    x.data = rng.integers(1, 100, x.nnz).astype(data)
    if shape[0] > 9:
        x.data[x.indptr[5] : x.indptr[8]] = 0
        x.eliminate_zeros()
    x.data = x.data.astype(data)
    x.indices = x.indices.astype(indices)
    x.indptr = x.indptr.astype(indptr)
    return x


def same(got, expected):
    """Check blocks for equal shape, types and bits."""
    assert got.shape == expected.shape
    assert isinstance(got, cp.ndarray) == isinstance(expected, np.ndarray)
    for mine, other in zip(host_arrays(got), host_arrays(expected), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@pytest.fixture(params=SHAPES, ids=str)
def shape(request):
    return request.param


def test_device_vectors(rng, gpu_block):
    x = counts(rng, (20, 30), "float32")
    index, mask = rng.permutation(30)[:9], rng.random(20) < 0.5
    got = select_gpu.select_genes(gpu_block(x), cp.asarray(index))
    same(got, select_cpu.select_genes(x, index))
    got = select_gpu.select_rows(gpu_block(x), cp.asarray(mask))
    same(got, select_cpu.select_rows(x, mask))


def test_rows_that_are_not_sorted_or_name_a_gene_twice(rng, gpu_block, monkeypatch):
    indices = rng.integers(0, 40, 600).astype(np.int32)
    indptr = np.array([0, 100, 100, 370, 380, 600], np.int32)
    x = sp.csr_matrix((np.arange(600, dtype=np.float32), indices, indptr), shape=(5, 40))
    block = gpu_block(x)
    scales = np.array([0.5, 1, 2, np.nan, 0.1])
    for at_once in (1 << 26, 300, 1):
        monkeypatch.setattr(select_gpu, "SORTED_AT_ONCE", at_once)
        for index in (np.arange(5, 35), rng.permutation(40)[:25]):
            same(select_gpu.select_genes(block, index), select_cpu.select_genes(x, index))
            place = select_cpu.new_column_of_gene(index, 40)
            got = normalize_gpu.select_and_log_normalize(block, scales, place)
            same(got, normalize_cpu.select_and_log_normalize(x, scales, place))


def test_bad_positions(gpu_block):
    block = cp.zeros((3, 5))
    with pytest.raises(ValueError, match="the block has 5 genes, not 4"):
        select_gpu.select_genes(block, [1], 4)
    with pytest.raises(ValueError, match="within 0 and 4"):
        select_gpu.select_genes(block, [5])
    with pytest.raises(ValueError, match="wanted twice"):
        select_gpu.select_genes(block, [1, 1])
    with pytest.raises(ValueError, match="a mask of 2 for 3 cells"):
        select_gpu.select_rows(block, [True, False])
    with pytest.raises(ValueError, match="within 0 and 2"):
        select_gpu.select_rows(block, [-1])
    with pytest.raises(ValueError, match="2 scales and 5 genes"):
        normalize_gpu.select_and_log_normalize(block, np.ones(2), np.arange(5))


def test_scaled_csr_shares_no_index(rng, gpu_block):
    block = gpu_block(counts(rng, (20, 30), "float32"))
    got = scale_gpu.scale(block, None, np.ones(30), None, dtype=np.float32)
    assert got.indices is not block.indices
    assert got.indptr is not block.indptr


def test_scale_lets_nan_pass(gpu_block):
    host = np.array([[np.nan, np.inf], [-np.inf, 1.0]])
    mean, sd = np.ones(2), np.array([2.0, 3.0])
    for x in (host, sp.csr_matrix(host)):
        got = scale_gpu.scale(gpu_block(x), mean, sd, 3, dtype=np.float64)
        same(got, scale_cpu.scale(x, mean, sd, 3, dtype=np.float64))


def test_genes_among_more_genes(rng, gpu_block, shape):
    x = counts(rng, shape, "float32")
    n_genes = 2 * shape[1] + 70_000
    columns = np.sort(rng.choice(n_genes, shape[1], replace=False))
    got = select_gpu.spread_genes(gpu_block(x), columns, n_genes)
    same(got, select_cpu.spread_genes(x, columns, n_genes))
