"""PCA of scaled genes from the sparse part alone, compared with explicit scaled values."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import blocks
from scatlas.kernels.linalg.project_cpu import project
from scatlas.matrix.components import components
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.gram import gram_stats
from scatlas.pp import scale

N_CELLS, N_GENES, N_COMPS = 300, 12, 5


@pytest.fixture
def x() -> sp.csr_matrix:
    """Log counts with a constant gene, an empty one, and one so high that zeros are clipped."""
    rng = np.random.default_rng(5)
    dense = np.log1p(rng.poisson(rng.gamma(0.5, 2, N_GENES), (N_CELLS, N_GENES)))
    dense[:, 3] = 1.5
    dense[:, 4] = 0
    dense[:, 5] = np.where(np.arange(N_CELLS) < 2, 0, 6)
    return sp.csr_matrix(dense.astype(np.float32))


def lazy_csr(x: sp.csr_matrix) -> da.Array:
    return da.from_array(x, chunks=(100, N_GENES), asarray=False)


@pytest.mark.parametrize("pca_zero_center", [True, False])
@pytest.mark.parametrize("max_value", [None, 2.0, 100.0])
@pytest.mark.parametrize("zero_center", [True, False])
def test_equals_pca_of_scaled_values(x, zero_center, max_value, pca_zero_center):
    wanted = scale(x.toarray().astype(np.float64), zero_center=zero_center, max_value=max_value)
    reference = components(gram_stats(wanted), N_COMPS, zero_center=pca_zero_center)

    unscaled = gram_stats(x)
    gene_scale = GeneScale.from_stats(unscaled, zero_center=zero_center, max_value=max_value)
    shifted = gene_scale.shift(lazy_csr(x))
    stats = gene_scale.stats(unscaled, shifted)
    found = components(stats, N_COMPS, zero_center=pca_zero_center)

    dense = shifted.compute().toarray() + gene_scale.zeros
    np.testing.assert_allclose(dense, wanted, rtol=1e-6, atol=1e-6)
    # Largest rounding error of the values of S, which are float32.
    rounding = 2.0**-24 * np.abs(wanted).max()
    np.testing.assert_allclose(stats.sums, wanted.sum(axis=0), atol=N_CELLS * rounding)
    products = N_CELLS * 2 * rounding * np.abs(wanted).max()
    np.testing.assert_allclose(stats.gram, wanted.T @ wanted, atol=products)
    np.testing.assert_allclose(found.variance, reference.variance, rtol=1e-6)
    offset = found.offset(zero_center=pca_zero_center, zeros=gene_scale.zeros)
    parts = list(blocks.stream(shifted, lambda b: project(b, found.PCs, offset)))
    mean = reference.mean if pca_zero_center else 0
    expected = (wanted - mean) @ reference.PCs
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-4 * np.abs(expected).max())


def test_without_clipping_no_cell_is_read(x):
    def refuse(block):
        raise AssertionError

    unscaled = gram_stats(x)
    gene_scale = GeneScale.from_stats(unscaled, zero_center=True, max_value=None)
    unreadable = lazy_csr(x).map_blocks(refuse, dtype=x.dtype, meta=sp.csr_matrix((0, 0)))
    assert gene_scale.stats(unscaled, unreadable).n_cells == N_CELLS
