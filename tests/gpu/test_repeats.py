"""Values that a matrix on the GPU stores in parts, and components of data with large means."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")
cupy_sparse = pytest.importorskip("cupyx.scipy.sparse")

import anndata as ad  # noqa: E402

import scatlas as sa  # noqa: E402

CLASSES = {"csr": cupy_sparse.csr_matrix, "csc": cupy_sparse.csc_matrix}


@pytest.mark.parametrize("kind", CLASSES)
def test_values_in_parts_are_summed(kind: str):
    dense = np.random.default_rng(0).poisson(1.5, (60, 40)).astype(np.float32)
    whole = sp.csr_matrix(dense) if kind == "csr" else sp.csc_matrix(dense)
    arrays = (np.repeat(whole.data / 2, 2), np.repeat(whole.indices, 2), 2 * whole.indptr)
    halves = CLASSES[kind](tuple(map(cp.asarray, arrays)), shape=dense.shape)
    adata = ad.AnnData(dense.copy())
    adata.X = halves
    obs, var = sa.pp.calculate_qc_metrics(adata, percent_top=None, inplace=False)
    np.testing.assert_array_equal(obs["n_genes_by_counts"], (dense > 0).sum(1))
    np.testing.assert_array_equal(var["total_counts"], dense.sum(0))
    sa.pp.log1p(adata)
    np.testing.assert_allclose(adata.X.toarray().get(), np.log1p(dense), rtol=1e-6)
    assert halves.nnz == 2 * whole.nnz, "the user's matrix was changed"


@pytest.mark.parametrize("mean", [0, 1e4, 1e7])
def test_means_far_above_the_spread_cost_no_digits(mean: float):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 40)) + 0.3 * rng.normal(size=(200, 40))
    x += mean
    expected = np.linalg.svd(x - x.mean(0), compute_uv=False)[:3] ** 2 / 199
    adata = ad.AnnData(x.copy())
    adata.X = cp.asarray(x)
    sa.pp.pca(adata, n_comps=3, mask_var=None)
    np.testing.assert_allclose(adata.uns["pca"]["variance"], expected, rtol=1e-12)
