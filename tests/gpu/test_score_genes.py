"""Scores of genes on the GPU: the CPU's control genes, and its scores up to rounding."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from tests.gpu.shared import host_arrays

pytest.importorskip("cupy")

import scatlas as sa
from scatlas.tl import _score

GENES = ["gene7", "gene20", "gene33", "gene241"]


def annotated(x):
    return ad.AnnData(x, var=pd.DataFrame(index=[f"gene{i}" for i in range(x.shape[1])]))


@pytest.fixture
def values(rng):
    rates = rng.gamma(0.3, 2.0, 300) * rng.gamma(2.0, 0.5, (700, 1))
    x = rng.poisson(rates) * rng.gamma(9.0, 0.1, (700, 300))
    x[13] = 0
    return sp.csr_matrix(x)


@pytest.fixture
def controls(monkeypatch):
    found = []
    original = _score._control_genes

    def noted(*args):
        found.append(original(*args).tolist())
        return np.array(found[-1])

    monkeypatch.setattr(_score, "_control_genes", noted)
    return found


@pytest.mark.parametrize("kind", ["dense", "csr", "csc", "dask-dense", "dask-csr"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int32"])
@pytest.mark.parametrize("missing", [False, True])
def test_scores_are_those_of_the_cpu(values, controls, kind, dtype, missing):
    if dtype in ("uint8", "int32"):
        if missing or kind == "csc":
            pytest.skip("integers have no NaN, CuPyX's CSC no integers")
        values = values.ceil()
    x = values.astype(dtype)
    if missing:
        x.data[::7] = np.nan
    cpu = annotated(x)
    sa.tl.score_genes_cell_cycle(cpu, s_genes=GENES, g2m_genes=GENES[2:], n_bins=6)
    given = x.toarray() if "dense" in kind else x.tocsc() if kind == "csc" else x
    if "dask" in kind:
        given = da.from_array(given, chunks=(150, 300), asarray=False)
    gpu = annotated(sa.get.X_to_GPU(given, exact=kind != "csc"))
    for _ in range(2):
        sa.tl.score_genes_cell_cycle(gpu, s_genes=GENES, g2m_genes=GENES[2:], n_bins=6)
        assert controls[:2] == controls[2:4]
        del controls[2:]
        pd.testing.assert_frame_equal(gpu.obs, cpu.obs, rtol=1e-12, atol=1e-14)


def test_the_block_is_left_as_it_is(values):
    values.data[::5] = np.nan
    for x in (sa.get.X_to_GPU(values, exact=True), sa.get.X_to_GPU(values.toarray())):
        before = [part.tobytes() for part in host_arrays(x)]
        sa.tl.score_genes(annotated(x), GENES, n_bins=6)
        assert [part.tobytes() for part in host_arrays(x)] == before
