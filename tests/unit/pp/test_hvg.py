"""highly_variable_genes by every flavor: passes, blocks, batches, left-out cells, keys, errors.

Values are compared in tests/adversarial and tests/parity, kernels in test_hvg_kernels.py.
"""

from __future__ import annotations

import sys
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.matrix.size_factors import cell_totals, size_factors
from scatlas.pp import highly_variable_genes, log1p, normalize_total

V3 = ("seurat_v3", "seurat_v3_paper")
OF_COUNTS = (*V3, "pearson_residuals")
FLAVORS = ("seurat", "cell_ranger", *OF_COUNTS)
RANKED_BY = {"pearson_residuals": "residual_variances"} | dict.fromkeys(V3, "variances_norm")
of_each_flavor = pytest.mark.parametrize("flavor", FLAVORS)


@pytest.fixture
def counts(make_counts):
    """200 cells x 90 genes: two of one count in all cells, an outlier, an empty gene, two alike."""
    x = make_counts(200, 90).toarray()
    x[:, 10], x[7, 20] = 3, 4000  # no variance; above every bound
    x[:, 11] = x[:, 12]
    return sp.csr_matrix(x)


def values_of(counts, flavor):
    """What a flavor expects: counts, or their logarithms."""
    return counts if flavor in OF_COUNTS else counts.astype(np.float32).log1p()


def ranked_by(flavor):
    return RANKED_BY.get(flavor, "dispersions_norm")


# --- passes and blocks ------------------------------------------------------------------------


# --- which cells and genes --------------------------------------------------------------------


@of_each_flavor
def test_cells_left_out_are_not_there(counts, make_adata, block_loads, flavor):
    factors = np.where(np.arange(200) % 5 == 0, np.nan, 2.5)
    kept = ~np.isnan(factors)
    adata = make_adata(counts)
    # The flavors of counts read from size factors which cells are left out, and no more.
    known = {} if flavor in OF_COUNTS else {"size_factors": factors[kept]}
    for key in (None, "batch"):
        options = {"flavor": flavor, "n_top_genes": 20, "min_cells": 30}
        more = {"batch_key": key, "inplace": False}
        expected = highly_variable_genes(adata[kept].copy(), **known, **more, **options)
        for x in (counts, block_loads.dask(counts, 3)):
            got = highly_variable_genes(make_adata(x), size_factors=factors, **more, **options)
            pd.testing.assert_frame_equal(got, expected, check_exact=True)
            if key is None:
                bare = hvg_of_counts(x, adata.var_names, factors, **options)
                pd.testing.assert_frame_equal(bare, expected, check_exact=True)
    # A batch that loses all of its cells is no batch.
    gone = np.where(adata.obs["batch"] == "b1", np.nan, 1.0)
    options = {"flavor": flavor, "batch_key": "batch", "inplace": False, "n_top_genes": 20}
    rest = adata[~np.isnan(gone)].copy()
    pd.testing.assert_frame_equal(
        highly_variable_genes(adata, size_factors=gone, **options),
        highly_variable_genes(rest, size_factors=np.ones(rest.n_obs), **options),
        check_exact=True,
    )


@pytest.mark.filterwarnings("ignore:`n_top_genes` > number")
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger", *V3])
def test_min_cells_is_filter_genes_first(counts, make_adata, flavor):
    n_cells = np.asarray((counts > 0).sum(axis=0)).ravel()
    at_least = int(np.median(n_cells))
    keep = n_cells >= at_least
    adata = make_adata(values_of(counts, flavor))
    for key in (None, "batch"):
        for n_top_genes in (10, 1000):
            options = {"flavor": flavor, "batch_key": key, "n_top_genes": n_top_genes}
            got = highly_variable_genes(adata, min_cells=at_least, inplace=False, **options)
            expected = highly_variable_genes(adata[:, keep].copy(), inplace=False, **options)
            pd.testing.assert_frame_equal(got[keep], expected, check_exact=True)
            assert got.loc[~keep, ranked_by(flavor)].isna().all()
            assert not got.loc[~keep, "highly_variable"].any()
            assert (got.loc[~keep, "means"] >= 0).all()


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger", "seurat_v3"])
def test_hvg_among_some_genes_is_that_of_a_plate_without_the_others(
    array_type, counts, make_adata, flavor
):
    names = make_adata(counts).var_names
    genes = np.random.default_rng(1).random(counts.shape[1]) < 0.7
    factors, _ = size_factors(cell_totals(array_type(counts), genes), target_sum=100)
    options = {"flavor": flavor, "n_top_genes": 8, "min_cells": 1}
    table = hvg_of_counts(array_type(counts), names, factors, genes=genes, **options)
    without = hvg_of_counts(counts[:, genes], names[genes], factors, **options)
    pd.testing.assert_frame_equal(table[genes], without, check_exact=True)
    assert table.loc[~genes, ranked_by(flavor)].isna().all()
    assert not table.loc[~genes, "highly_variable"].any()


@pytest.mark.filterwarnings("ignore:Some cells have zero counts")
@pytest.mark.parametrize("batch_key", [None, "batch"])
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_hvg_of_counts_is_that_of_normalised_ones(
    array_type, counts, make_adata, block_loads, flavor, batch_key
):
    factors, _ = size_factors(np.asarray(counts.sum(axis=1)).ravel())
    factors[[0, *range(7, 14), 30]] = np.nan
    kept = ~np.isnan(factors)
    options = {"flavor": flavor, "batch_key": batch_key, "n_top_genes": 10, "min_cells": 1}
    made = make_adata(counts)[kept].copy()
    normalize_total(made, target_sum=1, counts_per_cell=factors[kept])
    log1p(made)
    expected = highly_variable_genes(made, inplace=False, **options)
    adata = make_adata(array_type(counts))
    adata.uns["log1p"] = {"base": 2}  # of a layer, say
    adata.obs["size"] = factors
    table = highly_variable_genes(adata, inplace=False, size_factors="size", **options)
    if flavor == "cell_ranger":  # moments of the very same values
        pd.testing.assert_frame_equal(table, expected, check_exact=True)
    else:  # of values that float32 logarithms did not round
        assert table["highly_variable"].tolist() == expected["highly_variable"].tolist()
        for column in ("means", "dispersions"):
            np.testing.assert_allclose(table[column], expected[column], rtol=3e-7, atol=3e-7)
    if array_type.is_dask:
        assert block_loads.passes() == highly_variable_genes.passes == 1
    block_loads.assert_unchanged()


# --- batches ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
@of_each_flavor
def test_batches_are_ranked_one_by_one(counts, make_adata, flavor):
    adata = make_adata(values_of(counts, flavor))
    adata.obs["batch"] = adata.obs["batch"].cat.add_categories(["unused"])
    adata.obs.loc[adata.obs_names[-11:], "batch"] = np.nan
    options = {"flavor": flavor, "n_top_genes": 15, "inplace": False}
    got = highly_variable_genes(adata, batch_key="batch", **options)
    alone = []
    for batch in ("b0", "b1", "b2"):
        part = adata[adata.obs["batch"] == batch].copy()
        only_seen = {} if flavor in OF_COUNTS else {"min_cells": 1}
        alone.append(highly_variable_genes(part, **only_seen, **options))
        if flavor not in OF_COUNTS:
            unseen = np.asarray((part.X > 0).sum(axis=0)).ravel() == 0
            alone[-1].loc[unseen, ["means", "dispersions", "dispersions_norm"]] = 0.0
    n = sum(part["highly_variable"].astype(int) for part in alone)
    assert got["highly_variable_nbatches"].tolist() == n.tolist()
    norm = np.nanmean([part[ranked_by(flavor)] for part in alone], axis=0)
    np.testing.assert_allclose(got[ranked_by(flavor)], norm, rtol=1e-12)
    assert got["highly_variable"].sum() == 15
    if flavor not in V3:
        assert got["highly_variable_intersection"].tolist() == (n == 3).tolist()
        assert n[got["highly_variable"]].min() >= n[~got["highly_variable"]].max()
    if flavor not in OF_COUNTS:
        return
    ranks = pd.DataFrame([part["highly_variable_rank"] for part in alone])
    np.testing.assert_array_equal(got["highly_variable_rank"], ranks.median())
    # Cells of no batch count for the moments of all cells.
    columns = ["means", "variances"]
    whole = highly_variable_genes(adata, **options)
    pd.testing.assert_frame_equal(got[columns], whole[columns], check_exact=True)
    by = ["highly_variable_rank", "highly_variable_nbatches"]
    key = (by, [True, False]) if flavor == "seurat_v3" else (by[::-1], [False, True])
    order = got.sort_values(key[0], ascending=key[1], kind="stable")
    assert set(got.index[got["highly_variable"]]) == set(order.index[:15])


@of_each_flavor
@pytest.mark.parametrize("masked", [False, True])
def test_hvg_leaves_out_batches_of_one_cell(counts_of_batches, flavor, masked):
    """Also those of which the size factors leave one cell."""
    adata = counts_of_batches
    options = {"flavor": flavor, "n_top_genes": 30, "inplace": False, "batch_key": "donor"}
    if masked:
        adata.obs["factor"] = np.where(adata.obs["donor"].isin(["pair"]), np.nan, 1.0)
        adata.obs.loc[adata.obs_names[1], ["donor", "factor"]] = ["lonely", np.nan]
        options["size_factors"] = "factor"
    else:
        adata.obs.loc[adata.obs_names[1:3], "donor"] = "x"
    with pytest.warns(
        UserWarning, match="batches of one cell rank no genes, 1 are left out: lonely"
    ):
        found = highly_variable_genes(adata, **options)
    adata.obs["donor"] = adata.obs["donor"].cat.remove_categories("lonely")
    pd.testing.assert_frame_equal(found, highly_variable_genes(adata, **options))
    adata.obs["donor"] = [f"d{i}" for i in range(90)]
    with pytest.raises(InputError, match=r"each batch in obs.'donor'.*: leave out batch_key"):
        highly_variable_genes(adata, **options)


@pytest.mark.parametrize(
    ("flavor", "message"),
    [
        ("seurat", "batch 'pair': no gene has a normalised dispersion"),
        ("cell_ranger", "batch 'pair': .*same mean: choose flavor='seurat'"),
        ("seurat_v3", "0 genes vary in batch 'pair'.*: give cells that differ"),
    ],
)
def test_hvg_names_the_batch_that_cannot_be_ranked(counts_of_batches, flavor, message):
    adata = counts_of_batches[1:].copy()
    adata.X = sp.vstack([adata.X[[0, 0]], adata.X[2:]], "csr")
    with pytest.raises(InputError, match=message):
        highly_variable_genes(adata, flavor=flavor, n_top_genes=30, batch_key="donor")


@pytest.fixture
def counts_of_batches() -> ad.AnnData:
    """A batch of one cell, one of two, and two of many."""
    rng = np.random.default_rng(3)
    x = rng.poisson(rng.gamma(1.0, 4.0, 300), (90, 300)).astype(np.float32)
    donors = ["lonely", "pair", "pair", *["x"] * 43, *["y"] * 44]
    return ad.AnnData(
        sp.csr_matrix(x),
        obs=pd.DataFrame({"donor": pd.Categorical(donors)}, [f"c{i}" for i in range(90)]),
    )


# --- what is written --------------------------------------------------------------------------


@of_each_flavor
@pytest.mark.parametrize("batch_key", [None, "batch"])
def test_in_place_subset_and_layer(counts, make_adata, flavor, batch_key):
    adata = make_adata(values_of(counts, flavor))
    # Tables of batches have another order than that of names.
    adata.var_names = [f"g{i}" for i in np.random.default_rng(0).permutation(adata.n_vars)]
    options = {"flavor": flavor, "n_top_genes": 20, "batch_key": batch_key}
    table = highly_variable_genes(adata, inplace=False, **options)
    assert table.index.equals(adata.var_names)
    assert "hvg" not in adata.uns
    assert "means" not in adata.var
    assert highly_variable_genes(adata, **options) is None
    assert adata.uns["hvg"]["flavor"] == flavor
    written = [name for name in table if name in adata.var]
    assert {"means", "highly_variable", ranked_by(flavor)} <= set(written)
    pd.testing.assert_frame_equal(
        adata.var[written], table[written], check_exact=flavor in OF_COUNTS, check_dtype=False
    )
    some = highly_variable_genes(adata, inplace=False, subset=True, **options)
    pd.testing.assert_frame_equal(some, table[table["highly_variable"]], check_exact=True)
    adata.layers["values"], adata.X = adata.X, None
    highly_variable_genes(adata, layer="values", subset=True, **options)
    assert adata.var_names.equals(some.index)
    if flavor == "pearson_residuals":
        assert adata.uns["hvg"]["computed_on"] == "values"


def test_equal_genes_are_ranked_in_the_order_of_var(counts, make_adata):
    x = counts.toarray()
    rng = np.random.default_rng(0)
    x = np.hstack([x, *(np.array([rng.permutation(column) for column in x.T]).T for _ in "ab")])
    adata = make_adata(sp.csr_matrix(x))
    adata.var_names = [f"g{i}" for i in rng.permutation(x.shape[1])]
    for n_top_genes in (10, 11, 12):
        got = highly_variable_genes(
            adata, flavor="seurat_v3", n_top_genes=n_top_genes, inplace=False
        )
        norm = got["variances_norm"].to_numpy()
        assert (norm[:90] == norm[90:180]).all()
        order = np.argsort(-norm, kind="stable")[:n_top_genes]
        assert np.flatnonzero(got["highly_variable"]).tolist() == sorted(order)
        assert got["highly_variable_rank"].iloc[order].tolist() == list(range(n_top_genes))


def test_default_number_of_genes_and_duplicated_names(counts, make_adata):
    adata = make_adata(counts)
    assert highly_variable_genes(adata, flavor="seurat_v3", inplace=False)["highly_variable"].all()
    adata.var_names = ["same", "same", *adata.var_names[2:]]
    table = highly_variable_genes(adata, flavor="seurat_v3", n_top_genes=3, inplace=False)
    assert table["highly_variable"].sum() == 3


def test_empty_cells_have_residuals_of_zero(counts, make_adata):
    """scanpy divides by their totals."""
    more = sp.vstack([counts, sp.csr_matrix((300, 90), dtype=counts.dtype)]).tocsr()
    table = highly_variable_genes(make_adata(more), inplace=False, clip=10, **PEARSON)
    x = more.toarray().astype(np.longdouble)
    mu = np.outer(x.sum(axis=1), x.sum(axis=0)) / x.sum()
    residuals = (x - mu) / np.sqrt(np.where(mu == 0, 1, mu + mu**2 / 100))
    expected = residuals.clip(-10, 10).var(axis=0).astype(np.float64)
    np.testing.assert_allclose(table["residual_variances"], expected, rtol=1e-13)


@pytest.mark.parametrize("flavor", OF_COUNTS)
def test_values_that_are_no_counts(array_type, counts, make_adata, flavor):
    x = counts.astype(np.float32)
    x.data[17] += 0.5
    adata = make_adata(array_type(x))
    options = {"flavor": flavor, "n_top_genes": 20, "inplace": False}
    message = f"^`flavor='{flavor}'` expects raw count data, but non-integers were found.$"
    with pytest.warns(UserWarning, match=message) as caught:
        warned = highly_variable_genes(adata, **options)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silent = highly_variable_genes(adata, check_values=False, **options)
    pd.testing.assert_frame_equal(warned, silent, check_exact=True)
    if not array_type.is_dask and array_type.is_sparse and flavor in V3:
        adata.X.data[17] = -1  # whole, but below 0
        with pytest.warns(UserWarning, match="expects raw count data"):
            highly_variable_genes(adata, flavor=flavor)


# --- errors -----------------------------------------------------------------------------------


def changed(counts, **places):
    """Counts as float64 with other values, and gene3 or gene8 of cell 4 among them."""
    x = counts.toarray().astype(np.float64)
    for gene, value in places.items():
        x[4, int(gene.removeprefix("gene"))] = value
    return x


PEARSON = {"flavor": "pearson_residuals", "n_top_genes": 9}
LOGGED = {"flavor": "seurat"}
ERRORS = [
    # flavor and options, the matrix made of the counts, message
    ({"flavor": "mvp"}, None, r"mvp.*seurat, cell_ranger, seurat_v3.*pearson_residuals"),
    ({"layer": "raw"}, None, r"no layers.'raw'"),
    ({"batch_key": "lane"}, None, "no column 'lane'"),
    ({"batch_key": "none"}, None, "empty for every cell"),
    ({"n_top_genes": 0}, None, "n_top_genes=0"),
    ({"min_cells": 201}, None, "no gene is expressed in min_cells=201"),
    ({}, lambda x: x[:0], "at least one cell"),
    (LOGGED | {"n_top_genes": 3}, lambda x: x[:1], "two cells that differ"),
    (
        {"flavor": "cell_ranger"},
        lambda x: np.hstack([x.toarray(), np.zeros((200, 120))]),
        "min_cells=1",
    ),
    (
        LOGGED | {"batch_key": "odd"},
        lambda x: sp.diags((np.arange(200) > 1) * 1.0) @ x.log1p(),
        "batch 'small': no gene is expressed",
    ),
    (LOGGED, lambda x: changed(x, gene3=np.nan), "gene.*gene3.*log-normalised"),
    (LOGGED, lambda x: changed(x.log1p(), gene8=800.0), "gene.*gene8.*log-normalised"),
    *(({"span": bad}, None, "must be above 0 and at most 1") for bad in (0, -0.1, 1.5, np.nan)),
    ({"span": 0.02}, None, "85 genes vary, too few .* with span=0.02"),
    ({}, lambda x: x[:1], "0 genes vary, too few"),
    (
        {},
        lambda x: sp.csr_matrix(np.tile([[1], [3]], (20, 50))),
        r"loess cannot fit the variances of 50 genes on their means \(.*\): raise",
    ),
    (
        {"check_values": False},
        lambda x: changed(x, gene3=np.nan),
        "NaN or infinite values.*expects counts for flavor='seurat_v3'",
    ),
    ({"check_values": False}, lambda x: -x, "mean below 0: flavor='seurat_v3' expects counts"),
    (PEARSON | {"n_top_genes": None}, None, "give n_top_genes"),
    *((PEARSON | {"theta": bad}, None, "theta=.* must be above 0") for bad in (0, -1, np.nan)),
    *((PEARSON | {"clip": bad}, None, "clip=.* must not be negative") for bad in (-1, np.nan)),
    (PEARSON, lambda x: x[:3] * 0, "all cells are empty"),
    (
        PEARSON | {"batch_key": "odd"},
        lambda x: sp.csr_matrix(x.multiply((np.arange(200) > 1)[:, None])),
        "all cells of batch 'small' are empty",
    ),
    (PEARSON | {"check_values": False}, lambda x: -x, "total below 0"),
    (
        PEARSON | {"check_values": False},
        lambda x: changed(x, gene3=np.nan),
        "NaN or infinite values",
    ),
    ({"size_factors": np.full(200, np.nan)}, None, "NaN for every cell"),
    (LOGGED | {"size_factors": np.full(200, np.nan)}, None, "NaN for every cell"),
    (LOGGED | {"size_factors": np.ones(199)}, None, r"shape \(199,\), but there are 200 cells"),
    (LOGGED | {"size_factors": np.r_[-1, np.ones(199)]}, None, "not negative"),
    (LOGGED | {"size_factors": np.r_[np.inf, np.ones(199)]}, None, "finite"),
    (LOGGED | {"size_factors": "size"}, None, "no column 'size'"),
    (
        LOGGED | {"size_factors": np.r_[[np.nan] * 2, np.ones(198)], "batch_key": "few"},
        None,
        "no cell that belongs to a batch",
    ),
    (
        LOGGED | {"size_factors": np.ones(200)},
        lambda x: changed(x, gene3=np.nan),
        "expects counts where size_factors",
    ),
]


@pytest.mark.parametrize(("options", "make", "message"), ERRORS)
def test_errors(counts, make_adata, options, make, message):
    adata = make_adata(counts if make is None else make(counts))
    if adata.n_obs == 200:
        adata.obs["none"] = pd.Categorical([None] * 200, categories=["a"])
        adata.obs["odd"] = ["small"] * 2 + ["many"] * 198
        adata.obs["few"] = ["a"] * 2 + [None] * 198
    before = adata.var.copy()
    with pytest.raises(InputError, match=message):
        highly_variable_genes(adata, **({"flavor": "seurat_v3"} | options))
    assert "hvg" not in adata.uns
    pd.testing.assert_frame_equal(adata.var, before)


def test_options_and_packages_that_are_not_used(counts, make_adata, monkeypatch):
    adata = make_adata(values_of(counts, "seurat"))
    with pytest.warns(UserWarning, match="all cutoffs are ignored"):
        highly_variable_genes(adata, n_top_genes=3, min_disp=1.0)
    with pytest.warns(UserWarning, match="number of normalized dispersions"):
        highly_variable_genes(adata, n_top_genes=90)
    known = adata.var["dispersions_norm"].notna()
    assert adata.var["highly_variable"].tolist() == known.tolist()
    monkeypatch.setitem(sys.modules, "skmisc.loess", None)
    with pytest.raises(InputError, match=r"is not installed: pip install 'scatlas\[skmisc\]'"):
        highly_variable_genes(make_adata(counts), flavor="seurat_v3")
    # The other flavors do without it.
    highly_variable_genes(adata, flavor="seurat")
