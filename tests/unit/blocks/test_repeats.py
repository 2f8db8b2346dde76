"""A gene that a cell stores in parts has their sum, in every storage; the input stays as it was."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse as sp

import scatlas as sa
from scatlas import blocks
from scatlas.kernels.counts.select_cpu import has_repeats
from tests.conftest import to_dense

COUNTS = np.random.default_rng(0).integers(0, 4, (40, 12)) * 2.0


def in_parts(dense: np.ndarray, storage: str = "csr", index: type = np.int32) -> sp.csr_matrix:
    """Values at even indices in two parts, one after all others of its line."""
    x = getattr(sp, f"{storage}_matrix")(dense)
    line, even = np.repeat(np.arange(x.indptr.size - 1), np.diff(x.indptr)), x.indices % 2 == 0
    lines = np.r_[line, line[even]]
    order = np.argsort(lines, kind="stable")
    x.indptr = np.searchsorted(lines[order], np.arange(x.indptr.size)).astype(index)
    x.data = np.r_[x.data / (1 + even), x.data[even] / 2][order]
    x.indices = np.r_[x.indices, x.indices[even]][order].astype(index)
    x.has_canonical_format = True  # a flag that is wrong
    return x


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("storage", ["csr", "csc", "dask"])
def test_parts_are_summed_in_a_copy(storage: str, index: type) -> None:
    x = in_parts(COUNTS, "csr" if storage == "dask" else storage, index)
    assert has_repeats(x)
    before = [part.copy() for part in (x.data, x.indices, x.indptr)]
    given = x
    if storage == "dask":
        given = da.from_array(np.arange(2)[:, None], chunks=1).map_blocks(
            lambda block: x[:15] if block[0, 0] == 0 else x[15:],
            chunks=((15, 25), (12,)), meta=x[:0], dtype=x.dtype,
        )  # fmt: skip
    found = blocks.to_memory(blocks.sum_repeats(given))
    np.testing.assert_array_equal(found.toarray(), COUNTS)
    assert found.nnz == (COUNTS != 0).sum()
    for part, old in zip((x.data, x.indices, x.indptr), before, strict=True):
        np.testing.assert_array_equal(part, old)


def test_unsorted_rows_and_shared_genes_are_no_repeats() -> None:
    x = sp.csr_matrix((np.ones(5), [3, 0, 2, 2, 1], [0, 0, 3, 5, 5]), shape=(4, 4))
    assert not has_repeats(x)
    assert blocks.sum_repeats(x) is x
    # The same indices, two rows in one.
    merged = blocks.csr(x.data, x.indices, x.indptr[[0, 1, 3, 4]], 4)
    assert blocks.sum_repeats(merged).nnz == 4


CALLS = {
    "log1p": lambda adata, x: sa.pp.log1p(x),
    "filter_cells": lambda adata, x: sa.pp.filter_cells(x, min_genes=4)[1],
    "pca": lambda adata, x: np.abs(sa.pp.pca(x, n_comps=2)),
    "layer": lambda adata, x: sa.get.aggregate(adata, "g", "var", layer="m").layers["var"],
    "raw": lambda adata, x: sa.pp.calculate_qc_metrics(adata, use_raw=True, percent_top=None)[0],
    "obsm": lambda adata, x: sa.get.aggregate(adata, "g", "median", obsm="m").layers["median"],
}


@pytest.mark.parametrize("name", CALLS)
def test_every_way_into_a_function_sums(name: str) -> None:
    results = []
    for x in (in_parts(COUNTS), sp.csr_matrix(COUNTS)):
        adata = ad.AnnData(sp.csr_matrix(COUNTS.shape), layers={"m": x}, obsm={"m": x})
        adata.raw = ad.AnnData(x, var=adata.var)
        adata.obs["g"] = pd.Categorical(np.arange(40) % 2)
        results.append(to_dense(CALLS[name](adata, x)))
    np.testing.assert_allclose(*results, rtol=1e-12)


def test_an_edge_in_parts_is_one_edge() -> None:
    weights = np.random.default_rng(1).random((30, 30)) * (np.arange(30) % 3 > 0)
    adata = ad.AnnData(np.zeros((30, 1)), obs={"b": np.arange(30) % 4})
    for key, of in (("parts", in_parts), ("whole", sp.csr_matrix)):
        adata.obsp[key] = of(weights + weights.T)
        adata.uns[key] = {"distances_key": key, "connectivities_key": key}
        sa.tl.lisi(adata, "b", neighbors_key=key, key_added=f"lisi {key}")
        for name, graph in (("key", {"neighbors_key": key}), ("obsp", {"obsp": key})):
            options = {"flavor": "rounds", "directed": False, "use_weights": False, **graph}
            sa.tl.leiden(adata, key_added=f"{name} {key}", **options)
    for name in ("lisi", "key", "obsp"):
        assert (adata.obs[f"{name} parts"] == adata.obs[f"{name} whole"]).all()
