"""Scores of genes on the GPU: the CPU's control genes, and its scores up to rounding."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tests.gpu.shared import host_arrays

pytest.importorskip("cupy")

import scatlas as sa

GENES = ["gene7", "gene20", "gene33", "gene241"]


def annotated(x):
    return ad.AnnData(x, var=pd.DataFrame(index=[f"gene{i}" for i in range(x.shape[1])]))


@pytest.fixture
def values(rng):
    rates = rng.gamma(0.3, 2.0, 300) * rng.gamma(2.0, 0.5, (700, 1))
    x = rng.poisson(rates) * rng.gamma(9.0, 0.1, (700, 300))
    x[13] = 0
    return sp.csr_matrix(x)


def test_the_block_is_left_as_it_is(values):
    values.data[::5] = np.nan
    for x in (sa.get.X_to_GPU(values, exact=True), sa.get.X_to_GPU(values.toarray())):
        before = [part.tobytes() for part in host_arrays(x)]
        sa.tl.score_genes(annotated(x), GENES, n_bins=6)
        assert [part.tobytes() for part in host_arrays(x)] == before
