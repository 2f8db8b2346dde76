"""Kernels of Harmony beside plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from scatlas.kernels.linalg import harmony_cpu as kernels


def drawn(n: int, n_clusters: int, n_columns: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    levels = np.array([[i % 3, 3 + i % 2][:n_columns] for i in range(6)])
    codes = rng.integers(0, 6, n).astype(np.uint16)
    blocks = rng.integers(0, 4, n).astype(np.uint16)
    x = rng.normal(0, 8, (n, n_clusters)).astype(np.float32)
    return rng, levels, codes, blocks, x


@pytest.mark.parametrize("n", [0, 1, 37])
@pytest.mark.parametrize(("n_clusters", "n_columns"), [(1, 1), (5, 2), (16, 2), (100, 1)])
def test_soft_clusters(n: int, n_clusters: int, n_columns: int):
    rng, levels, codes, blocks, x = drawn(n, n_clusters, n_columns)
    penalties = rng.normal(0, 3, (4, 5, n_clusters)).astype(np.float32)
    logits = x + penalties[blocks[:, None], levels[codes]].sum(axis=1)
    logs = log_softmax(logits.astype(np.float64), axis=1)
    total = kernels.soft_clusters(x, penalties, blocks, codes, levels)
    np.testing.assert_allclose(x, np.exp(logs), rtol=1e-5, atol=1e-37)
    assert total == pytest.approx((logits - logs)[:, 0].sum(), rel=1e-6)


def test_soft_clusters_far_apart():
    """No share is below the smallest that float32 holds without a loss of digits."""
    x = np.array([[0, -86, -200, -1e6], [-1e6, 0, -1e6, 1e6]], np.float32)
    zeros = np.zeros(2, np.uint16)
    kernels.soft_clusters(x, np.zeros((1, 1, 4), np.float32), zeros, zeros, np.zeros((1, 1), int))
    assert np.isfinite(x).all()
    np.testing.assert_allclose(x, [[1, np.exp(-86), 0, 0], [0, 0, 0, 1]], rtol=1e-5, atol=2e-38)


def test_sums_depend_on_no_order():
    n = 500
    rng, levels, codes, blocks, x = drawn(n, 9)
    shares = np.abs(x) / np.abs(x).sum(axis=1, keepdims=True)
    grid = kernels.grid_of(1.0, n)
    found = []
    for order in (np.arange(n), rng.permutation(n)):
        sums = np.zeros((4, 5, 9))
        for part in np.array_split(order, 7):
            kernels.add_shares(shares[part], codes[part], levels, blocks[part], grid, sums)
        found.append(sums)
    np.testing.assert_array_equal(*found)
    wanted = np.zeros_like(sums)
    for column in levels.T:
        np.add.at(wanted, (blocks, column[codes]), shares)
    np.testing.assert_allclose(sums, wanted, rtol=1e-12)


@pytest.mark.parametrize("ordered", [True, False])
def test_products_and_terms(ordered: bool):
    rng, _, codes, _, x = drawn(200, 9)
    codes = np.sort(codes) if ordered else codes
    shares, z = np.abs(x), rng.normal(size=(200, 4))
    sums = np.zeros((6, 9, 4))
    grids = np.full(4, kernels.grid_of(float(np.abs(z).max() * shares.max()), 200))
    kernels.add_products(shares, z, codes, grids, sums)
    wanted = np.stack([shares[codes == c].T.astype(np.float64) @ z[codes == c] for c in range(6)])
    np.testing.assert_allclose(sums, wanted, atol=1e-9)
    assert (sums == (sums + grids) - grids).all()
    terms = rng.normal(size=(6, 9, 4)).astype(np.float32)
    corrected = z.astype(np.float32)
    kernels.subtract_terms(corrected, shares, codes, terms)
    wanted = z - np.einsum("ik,ikj->ij", shares.astype(np.float64), terms[codes])
    np.testing.assert_allclose(corrected, wanted, rtol=1e-5, atol=1e-4)


def test_unit_rows():
    x = np.array([[3, 4], [0, 0], [1e-30, 0], [1e30, -1e30]], np.float32)
    kernels.unit_rows(x)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(x, [[0.6, 0.8], [0, 0], [1, 0], [half, -half]], rtol=1e-6)
