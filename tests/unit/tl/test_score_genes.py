"""Scores of genes: passes, blocks, NaN, random numbers, errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
from scatlas.errors import InputError
from scatlas.tl import _score

NAMES = [f"{'MT-' if i < 4 else ''}gene{i}" for i in range(50)]  # as make_adata has them
GENES = ["gene7", "gene20", "gene33", "gene41"]


@pytest.fixture
def values(make_counts):
    """64 cells x 50 genes of reals, CSR float64; an empty gene, empty cells."""
    x = make_counts(64, 50).astype(np.float64)
    x.data = np.log1p(x.data) * np.random.default_rng(0).gamma(9.0, 0.1, x.nnz)
    return x


@pytest.fixture
def control(monkeypatch):
    """Names of the control genes of the last score."""
    found = []
    original = _score._control_genes

    def noted(*args):
        positions = original(*args)
        found[:] = [NAMES[i] for i in positions]
        return positions

    monkeypatch.setattr(_score, "_control_genes", noted)
    return found


def test_both_phases_share_the_passes(dask_type, block_loads, values, make_adata):
    adata = make_adata(dask_type(values))
    sa.tl.score_genes_cell_cycle(adata, s_genes=GENES[:3], g2m_genes=GENES[2:], n_bins=5)
    for name, genes in (("S_score", GENES[:3]), ("G2M_score", GENES[2:])):
        sa.tl.score_genes(adata, genes, ctrl_size=2, n_bins=5)
        np.testing.assert_array_equal(adata.obs[name], adata.obs["score"])
    s, g2m = adata.obs["S_score"], adata.obs["G2M_score"]
    expected = np.where((s < 0) & (g2m < 0), "G1", np.where(g2m > s, "G2M", "S"))
    assert adata.obs["phase"].tolist() == expected.tolist()
    assert set(expected) == {"G1", "S", "G2M"}


def test_nan_counts_in_no_mean(array_type, make_adata, control):
    rng = np.random.default_rng(1)
    x = rng.gamma(1.0, size=(64, 50))
    x[rng.random(x.shape) < 0.15] = np.nan
    x[5, [7, 20, 33, 41]] = np.nan
    x[:, 11] = np.nan
    x[3, 12] = np.inf
    stored = sp.csr_matrix(x)
    adata = make_adata(array_type(stored))
    sa.tl.score_genes(adata, GENES, n_bins=3)
    assert not {"gene11", "gene12"} & set(control)
    score = adata.obs["score"].to_numpy()
    assert np.flatnonzero(np.isnan(score)).tolist() == [5]
    own, other = (np.array([NAMES.index(name) for name in names]) for names in (GENES, control))
    x = np.delete(x, 5, axis=0).astype(np.longdouble)
    expected = np.nanmean(x[:, own], axis=1) - np.nanmean(x[:, other], axis=1)
    np.testing.assert_allclose(np.delete(score, 5), expected.astype(float), rtol=1e-13)


def test_means_of_genes_are_exact():
    """A float32 sum of these would lose the small ones."""
    x = np.zeros((4, 2), np.float32)
    x[:, 0] = 2**25, 1, 1, 1
    for kind in (np.asarray, sp.csr_matrix):
        assert _score._means_of_genes(kind(x)).tolist() == [(2**25 + 3) / 4, 0]


def test_global_random_numbers_are_left_alone(values, make_adata):
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    adata = make_adata(values)
    sa.tl.score_genes(adata, GENES, ctrl_size=2, n_bins=5, random_state=3)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002
    first = adata.obs["score"].copy()
    own = np.random.RandomState(3)
    sa.tl.score_genes(adata, GENES, ctrl_size=2, n_bins=5, random_state=own)
    np.testing.assert_array_equal(adata.obs["score"], first)
    sa.tl.score_genes(adata, GENES, ctrl_size=2, n_bins=5, random_state=own)
    assert (adata.obs["score"] != first).any()
    sa.tl.score_genes(adata, GENES, ctrl_size=2, n_bins=5, random_state=None)


def test_errors(values, make_adata):
    adata = make_adata(values)

    def refused(message, adata=adata, genes=GENES, **options):
        before = adata.obs.copy()
        with pytest.raises(InputError, match=message):
            sa.tl.score_genes(adata, genes, **options)
        pd.testing.assert_frame_equal(adata.obs, before)

    refused("none of the genes to score by exists", genes=["nobody"])
    refused("none of the genes to score by exists", genes=[])
    refused("none of the genes of gene_pool", gene_pool=["nobody"])
    refused(r"not in gene_pool.*\['gene41'\]", gene_pool=[f"gene{i}" for i in range(40)])
    refused("n_bins=1 is not possible: give a whole number from 2 on", n_bins=1)
    refused("no control genes .*: try ctrl_as_ref=False, or a larger gene_pool", ctrl_size=0)
    refused(
        "of the 50 to score by: try a larger gene_pool",
        genes=list(adata.var_names),
        ctrl_as_ref=False,
    )
    refused("no 'raw'", layer="raw")
    refused("adata.raw is empty", use_raw=True)
    refused("at least one cell", adata[:0].copy())
    odd = make_adata(values.toarray())
    odd.X[:, 20] = np.nan
    refused(r"no finite mean: \['gene20'\]", odd)
    odd.var_names = ["gene7"] * 2 + list(odd.var_names[2:])
    refused("occur twice: call adata.var_names_make_unique", odd)
    with pytest.raises(InputError, match="none of the genes"):
        sa.tl.score_genes_cell_cycle(adata, s_genes=GENES, g2m_genes=["nobody"])
    assert list(adata.obs) == ["batch"]
