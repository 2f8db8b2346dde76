"""Variable genes from moments of counts, as shares of their cells or normalised, in one pass."""

from __future__ import annotations

import warnings

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.matrix.hvg_shares import hvg_of_share_moments, share_moments, totals_and_share_moments
from scatlas.matrix.size_factors import cell_totals, size_factors
from scatlas.pp import highly_variable_genes, log1p, normalize_total


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_genes_are_those_of_normalised_cells(block_loads, flavor):
    rng = np.random.default_rng(4)
    depth = rng.lognormal(0, 0.6, (900, 1))
    counts = sp.csr_matrix(rng.negative_binomial(0.7, 1 / (1 + rng.gamma(0.2, 2.0, 1500) * depth)))
    counts = counts[:, np.asarray((counts > 0).sum(axis=0)).ravel() > 0]
    expected = ad.AnnData(counts.astype(np.float32))
    normalize_total(expected)
    log1p(expected)
    totals = cell_totals(counts)
    factors, target = size_factors(totals)
    shares = share_moments(counts, np.arange(totals.size), totals, target)
    for n in (None, 500, 2000):
        options = {"flavor": flavor, "n_top_genes": n, "inplace": False}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`n_top_genes` > number")
            want = highly_variable_genes(expected, **options)["highly_variable"].tolist()
            assert any(want)
            for x in (block_loads.dask(counts.astype(np.uint16), 70), counts.astype(np.float32)):
                adata = ad.AnnData(x, var=expected.var)
                got = highly_variable_genes(adata, size_factors=factors, **options)
                assert got["highly_variable"].tolist() == want
            if flavor == "seurat":
                found = hvg_of_share_moments(shares, expected.var_names, target, n_top_genes=n)
                assert found["highly_variable"].tolist() == want
                for column in ("means", "dispersions"):
                    np.testing.assert_allclose(found[column], got[column], rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_totals_and_share_moments_take_one_pass(block_loads, dtype):
    """The same bits as two passes, for any blocks, with cells that are left out or empty."""
    rng = np.random.default_rng(5)
    dense = rng.negative_binomial(0.7, 1 / (1 + rng.gamma(0.2, 2.0, 300)), (400, 300))
    dense[[7, 200]] = 0
    keep = rng.random(400) < 0.6
    keep[[7, 399]] = True
    keep[100:150] = False  # whole blocks
    x = sp.csr_matrix(dense.astype(dtype))
    expected = cell_totals(x)
    rows = np.flatnonzero(keep)
    want = share_moments(x, rows, expected[rows], 1.0)
    for matrix in (x, x.toarray(), block_loads.dask(x, 23), block_loads.dask(x, 70)):
        totals, found = totals_and_share_moments(matrix, keep)
        assert totals.dtype == expected.dtype
        np.testing.assert_array_equal(totals, expected)
        for name, values in want._asdict().items():
            np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)
    assert block_loads.passes() == totals_and_share_moments.passes == 1
    with pytest.raises(InputError, match="none is left"):
        totals_and_share_moments(x, np.zeros(400, bool))
