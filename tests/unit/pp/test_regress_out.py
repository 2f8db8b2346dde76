"""regress_out: exact sums, passes, blocks, errors. Values: tests/adversarial and tests/parity."""

from __future__ import annotations

import logging
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from scatlas import blocks
from scatlas.errors import InputError
from scatlas.kernels.linalg import regress_cpu
from scatlas.pp import regress_out
from scatlas.pp._regress import _orthonormal

few = settings(max_examples=25, deadline=None, derandomize=True)
PAIRS = [("uint8", "uint16"), ("int32", "int32"), ("float32", "int64"), ("float64", "int32")]


def csr(x, index="int32", indptr="int64"):
    m = sp.csr_matrix(x)
    return blocks.csr(m.data, m.indices.astype(index), m.indptr.astype(indptr), x.shape[1])


@st.composite
def cases(draw):
    """A dense matrix, the same as CSR, and weights of its rows."""
    dtype, index = draw(st.sampled_from(PAIRS))
    n, g, p = draw(st.integers(0, 12)), draw(st.integers(0, 9)), draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = rng.poisson(1.0, (n, g)) * rng.gamma(1.0, 20.0, (n, g)) * rng.choice([1, -1], (n, g))
    if dtype.startswith("u"):
        x = np.abs(x).clip(0, 255)
    x = x.astype(dtype)
    x[rng.random(n) < 0.3] = 0
    return x, csr(x, index, draw(st.sampled_from(["int32", "int64"]))), rng.normal(size=(n, p))


# --- kernels ----------------------------------------------------------------------------------


@given(case=cases())
@few
def test_weighted_sums(case):
    x, block, weights = case
    before = block.data.copy()
    got = regress_cpu.weighted_sums(block, weights)
    np.testing.assert_array_equal(block.data, before)
    assert got.shape == (2, weights.shape[1], x.shape[1])
    np.testing.assert_array_equal(regress_cpu.weighted_sums(x, weights), got)
    for k in range(weights.shape[1]):
        for gene in range(x.shape[1]):
            products = x[:, gene].astype(np.float64) * weights[:, k]
            assert got[0, k, gene] == float(sum(map(Fraction, products), Fraction(0)))


def test_orthonormal(caplog):
    rng = np.random.default_rng(0)
    a, b = rng.random(200), 100 + rng.random(200)
    with caplog.at_level(logging.WARNING, "scatlas"):
        basis = _orthonormal([a, b, np.full(200, 3.0), 2 * a - b / 7, np.zeros(200), b**2])
    assert caplog.text.count("constant, or a combination") == 3
    assert len(basis) == 3
    basis = np.array([np.full(200, 200**-0.5), *basis])
    np.testing.assert_allclose(basis @ basis.T, np.eye(4), atol=4e-16)


# --- public function --------------------------------------------------------------------------


@pytest.fixture
def adata(make_counts, make_adata):
    """61 cells x 50 genes of reals; numbers, categories and texts in obs."""
    x = make_counts(61, 50).astype(np.float64)
    x.data = np.log1p(x.data)
    adata = make_adata(x)
    rng = np.random.default_rng(0)
    adata.obs["total"] = np.asarray(x.sum(axis=1)).ravel()
    adata.obs["fraction"] = rng.random(61).astype(np.float32)
    adata.obs["treated"] = rng.random(61) < 0.5
    adata.obs["text"] = rng.choice(["p", "q"], 61)
    return adata


KEYS = [["total"], ["total", "fraction", "treated"], "batch", "text"]


@pytest.mark.parametrize(
    "dtype, result", [("int32", "float32"), ("uint8", "float32"), ("int64", "float64")]
)
def test_types_of_counts(adata, dtype, result):
    adata.X = np.rint(adata.X.toarray()).astype(dtype)
    assert regress_out(adata, ["total"], copy=True).X.dtype == result


def test_layers_and_one_cell(adata):
    adata.layers["log"] = adata.X.copy()
    regress_out(adata, "total", layer="log")
    assert sp.issparse(adata.X)
    one = adata[:1].copy()
    for keys in KEYS:
        assert not regress_out(one, keys, copy=True).X.any()


def test_errors(adata):
    x = adata.X

    def refused(message, keys, adata=adata, **options):
        with pytest.raises(InputError, match=message):
            regress_out(adata, keys, **options)
        assert adata.X is None or sp.issparse(adata.X)

    refused("no column 'lane'", ["total", "lane"])
    refused("needs a column", [])
    refused("'batch'. is of categories", ["batch", "total"])
    refused("'text'. is of categories", ["total", "text"])
    refused("no layers.'raw'", "total", layer="raw")
    refused("at least one cell", "total", adata[:0].copy())
    for key in ("total", "batch"):
        odd = adata.copy()
        odd.obs[key] = odd.obs[key].where(np.arange(61) != 3)
        refused(rf"obs\['{key}'\] \(keys\) has no value for 1 cells", key, odd)
    odd = adata.copy()
    odd.obs.loc[odd.obs_names[3], "total"] = np.inf
    refused("infinite", "total", odd)
    assert adata.X is x
