"""Gram and projection kernels: bits, the ways of the Gram matrix, what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import blocks
from scatlas.compute.threads import blas_on_one_thread
from scatlas.kernels.linalg import gram_cpu, project_cpu, scale_cpu


def gram_of(x):
    """Sums per gene and both triangles of the products of a block."""
    sums, products = np.zeros(x.shape[1]), np.zeros((x.shape[1], x.shape[1]))
    gram_cpu.add_block(x, sums, products)
    gram_cpu.mirror(products)
    return sums, products


def check_gram(sums, gram, x):
    wide = x.astype(float)
    np.testing.assert_array_equal(gram, gram.T)
    # Sums of integers are exact.
    whole = (wide == np.round(wide)).all()
    atol = 0 if whole else 1e-15 * (np.abs(wide).max() ** 2) * len(x)
    np.testing.assert_allclose(sums, wide.sum(axis=0), rtol=0 if whole else 1e-14, atol=atol)
    np.testing.assert_allclose(gram, wide.T @ wide, rtol=0 if whole else 1e-14, atol=atol)


def test_gram_of_unsorted_and_duplicated_indices():
    data = np.array([1, 2, 3, 4, 5], dtype=np.float32)
    x = blocks.csr(data, np.array([2, 0, 1, 1, 3]), np.array([0, 2, 5]), 60)
    dense = np.zeros((2, 60))
    np.add.at(dense, ([0, 0, 1, 1, 1], [2, 0, 1, 1, 3]), data)
    check_gram(*gram_of(x), dense)


def test_gram_in_several_dense_steps_and_tiles(monkeypatch):
    monkeypatch.setattr(gram_cpu, "_DENSE_BYTES", 8 * 210)
    x = np.random.default_rng(0).poisson(1.0, (200, 210)).astype(np.uint8)
    for block in (sp.csr_matrix(x), x, np.asfortranarray(x)):
        check_gram(*gram_of(block), x)


def test_gram_chooses_by_density(monkeypatch):
    used = set()
    monkeypatch.setattr(gram_cpu, "_add_pairs", lambda *_: used.add("pairs"))
    monkeypatch.setattr(gram_cpu, "_add_dense", lambda *_: used.add("blas"))
    rng = np.random.default_rng(0)
    for density, way in ((0.01, "pairs"), (0.5, "blas")):
        used.clear()
        gram_of(sp.csr_matrix((rng.random((20, 300)) < density).astype(np.float32)))
        assert used == {way}


@pytest.mark.parametrize("density", [0.02, 0.6], ids=["pairs", "blas"])
def test_gram_has_the_same_bits_for_any_number_of_threads(monkeypatch, density):
    """Blocks, parts within them and genes within these are many, and all are summed in order."""
    monkeypatch.setattr(gram_cpu, "_PART_VALUES", 100)
    monkeypatch.setattr(gram_cpu, "_GENES_SQUARED_PER_VALUE", 10**9)
    monkeypatch.setattr(gram_cpu, "_DENSE_BYTES", 8 * 410 * 70)
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(500, 410)).astype(np.float32)
    x[rng.random(x.shape) > density] = 0
    found = []
    for threads in (1, 2, 7):
        sums, upper = np.zeros(410), np.zeros((410, 410))
        with blas_on_one_thread(), ThreadPoolExecutor(threads) as pool:
            for block in (x[:200], x[200:201], x[201:]):
                options = {"threads": threads, "run": pool.map}
                gram_cpu.add_block(sp.csr_matrix(block), sums, upper, **options)
        gram_cpu.mirror(upper)
        found.append((sums.tobytes(), upper.tobytes()))
    assert found[2] == found[1] == found[0]
    check_gram(sums, upper, x)
    if density < 0.1:  # every entry is one sum, row after row
        total = np.zeros((410, 410))
        for row in x.astype(float):
            total += np.outer(row, row)
        np.testing.assert_array_equal(upper, total)


def test_gram_refuses_genes_that_it_cannot_number():
    with pytest.raises(ValueError, match="65537 genes"):
        gram_cpu.add_block(sp.csr_matrix((2, 65537)), np.zeros(0), np.zeros((0, 0)))


@pytest.mark.parametrize("k", [1, 64, 130])
def test_project_sums_in_the_order_of_the_genes(monkeypatch, k):
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=(40, 30)).astype(np.float32)
    x[rng.random(x.shape) < 0.6] = 0
    components, offset = rng.normal(size=(30, k)), rng.normal(size=k)
    total = np.zeros((40, k))
    for gene in range(30):
        total += x[:, gene : gene + 1].astype(float) * components[gene]
    monkeypatch.setattr(project_cpu, "_DENSE_VALUES", 30 * 7)
    for block in (sp.csr_matrix(x), x):
        got = project_cpu.project(block, components, offset, dtype=np.float64)
        np.testing.assert_array_equal(got, total - offset)
        got = project_cpu.project(block, components, offset)
        np.testing.assert_array_equal(got, (total - offset).astype(np.float32))


def test_scaled_blocks_share_no_memory_with_their_source():
    block = sp.random(9, 7, 0.5, "csr", np.float32, np.random.default_rng(0))
    ones = np.ones(7)
    for got in (
        scale_cpu.scale(block, None, ones, None, dtype=np.float32),
        scale_cpu.scale_stored_values(block, ones, ones, ones, (-1.0, 1.0)),
    ):
        for name in ("data", "indices", "indptr"):
            assert not np.shares_memory(getattr(got, name), getattr(block, name))
