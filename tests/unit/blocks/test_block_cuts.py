"""Block bounds and the number of threads change no bit of a result.

Sums of floats round: each public function that sums over cells runs on one matrix in memory, and on
the same matrix in random blocks.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import scatlas as sa
from scatlas import blocks
from scatlas.compute.threads import use_threads
from scatlas.matrix import gram
from scatlas.matrix.gram import GramAccumulator, GramStats, gram_stats
from tests.conftest import to_dense

N_CELLS, N_GENES = 400, 40
GROUPS = np.array(["a", "b", "c"])[np.arange(N_CELLS) % 3]


def matrix(seed: int, dtype: str, kind: str, n_cells: int = N_CELLS, n_genes: int = N_GENES):
    """Values of many magnitudes, whose sums round at each addition."""
    rng = np.random.default_rng(seed)
    x = rng.lognormal(0, 4, (n_cells, n_genes)) * (rng.random((n_cells, n_genes)) < 0.3)
    return sp.csr_matrix(x.astype(dtype)) if kind == "csr" else x.astype(dtype)


def dask_blocks(x, bounds: list[int]) -> da.Array:
    bounds = np.unique([0, *bounds, x.shape[0]]).tolist()
    parts = [x[a:b] for a, b in pairwise(bounds)]
    return da.concatenate([da.from_array(part, part.shape, asarray=False) for part in parts])


def annotated(x) -> ad.AnnData:
    obs = {"group": pd.Categorical(GROUPS), "covariate": np.linspace(0, 1, N_CELLS)}
    return ad.AnnData(x, obs=obs)


def numeric_columns(frame) -> dict[str, np.ndarray]:
    return {name: frame[name].to_numpy() for name in frame if frame[name].dtype.kind in "biuf"}


def qc(adata):
    cells, genes = sa.pp.calculate_qc_metrics(adata, percent_top=[5])
    of_genes = numeric_columns(genes)
    return numeric_columns(cells) | {f"gene {name}": x for name, x in of_genes.items()}


def normalize(adata):
    sa.pp.normalize_total(adata)
    return {"X": to_dense(adata.X)}


def hvg(adata):
    sa.pp.log1p(adata)
    return numeric_columns(sa.pp.highly_variable_genes(adata, n_top_genes=10, inplace=False))


def hvg_by_batch(adata):
    options = {"batch_key": "group", "flavor": "cell_ranger", "n_top_genes": 10}
    return numeric_columns(sa.pp.highly_variable_genes(adata, inplace=False, **options))


def filter_genes(adata):
    sa.pp.filter_genes(adata, min_counts=10)
    return numeric_columns(adata.var)


def scale(adata):
    sa.pp.scale(adata, max_value=3, zero_center=not blocks.is_sparse(adata.X))
    return {**numeric_columns(adata.var), "X": to_dense(adata.X)}


def pca(adata, **options):
    sa.pp.pca(adata, n_comps=5, **options)
    found = {name: np.asarray(adata.uns["pca"][name]) for name in ("variance", "variance_ratio")}
    return {"X_pca": to_dense(adata.obsm["X_pca"]), "PCs": adata.varm["PCs"], **found}


def score_genes(adata):
    sa.tl.score_genes(adata, [*adata.var_names[:5]], ctrl_size=5, n_bins=5)
    return {"score": adata.obs["score"].to_numpy()}


def rank(adata, **options):
    sa.tl.rank_genes_groups(adata, "group", **options)
    found = adata.uns["rank_genes_groups"]
    return {name: np.array(found[name].tolist()) for name in ("scores", "pvals", "logfoldchanges")}


def aggregate(adata):
    layers = sa.get.aggregate(adata, "group", ["sum", "mean", "var"]).layers
    return {name: to_dense(layers[name]) for name in layers}


def regress_out(adata):
    sa.pp.regress_out(adata, "covariate")
    return {"X": to_dense(adata.X)}


FUNCTIONS = {
    f.__name__: f
    for f in (
        *(qc, normalize, hvg, hvg_by_batch, filter_genes, scale, pca, score_genes),
        *(rank, aggregate, regress_out),
    )
} | {
    "pca_uncentred": partial(pca, zero_center=False),
    "rank_wilcoxon": partial(rank, method="wilcoxon"),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["csr", "dense"])
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=3)
@given(
    seed=st.integers(0, 10),
    bounds=st.lists(st.integers(1, N_CELLS - 1), max_size=30),
    threads=st.integers(1, 3),
)
def test_no_bit_depends_on_where_blocks_begin(name, kind, dtype, seed, bounds, threads):
    x = matrix(seed, dtype, kind)
    with np.errstate(all="ignore"):
        with use_threads(1):
            wanted = FUNCTIONS[name](annotated(x.copy()))
        with use_threads(threads):
            found = FUNCTIONS[name](annotated(dask_blocks(x, bounds)))
    assert wanted.keys() == found.keys()
    for key in wanted:
        np.testing.assert_array_equal(found[key], wanted[key], err_msg=key, strict=True)


@pytest.mark.parametrize("density", [0.02, 0.3, "dense"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@settings(max_examples=5)
@given(bounds=st.lists(st.integers(1, 2999), max_size=40), threads=st.integers(1, 3))
def test_gram_sums_do_not_depend_on_the_blocks(density, dtype, bounds, threads):
    """With many panels and groups; each panel is summed by pairs or by BLAS, by its density."""
    rng = np.random.default_rng(0)
    x = rng.lognormal(0, 3, (3000, 30)).astype(dtype)
    if density != "dense":
        # Panels with few and with many values.
        share = np.where(np.arange(3000) % 700 < 350, density, 2 * density)
        x = sp.csr_matrix(x * (rng.random(x.shape) < share[:, None]))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram, "panel_rows", lambda *_, **__: 64)
        patch.setattr(gram, "_GROUP", 4)
        for n_threads, ends in ((1, []), (threads, bounds)):
            with use_threads(n_threads), GramAccumulator(30) as total:
                for a, b in pairwise(np.unique([0, *ends, 3000]).tolist()):
                    total.add(x[a:b])
            found.append(total.result())
    assert found[0].n_cells == found[1].n_cells == 3000
    np.testing.assert_array_equal(found[1].sums, found[0].sums)
    np.testing.assert_array_equal(found[1].gram, found[0].gram)
    dense = x.toarray() if sp.issparse(x) else x
    wanted = dense.astype(np.float64).T @ dense.astype(np.float64)
    np.testing.assert_allclose(found[0].gram, wanted, rtol=1e-12)


def test_groups_of_panels_made_elsewhere_give_the_same_bits(monkeypatch):
    monkeypatch.setattr(gram, "panel_rows", lambda *_, **__: 64)
    monkeypatch.setattr(gram, "_GROUP", 4)
    x = matrix(0, "float64", "dense", 1000, 20)
    whole = gram_stats(x)
    parts = [gram_stats(x[a : a + 256]) for a in range(0, 1000, 256)]
    np.testing.assert_array_equal(GramStats.merge(parts).gram, whole.gram)
