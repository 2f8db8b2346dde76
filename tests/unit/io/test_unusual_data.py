"""Data that a function does not expect: it works, or one sentence says what to do."""

from __future__ import annotations

import warnings
from contextlib import suppress

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
from scatlas.errors import InputError, ScatlasError
from scatlas.matrix.hvg import hvg_of_counts
from scatlas.matrix.size_factors import cell_totals

# Functions that compute with X of an AnnData; those that take float16 and longdouble apart.
CALLS = {
    "qc": lambda a: sa.pp.calculate_qc_metrics(a, percent_top=None, qc_vars=["mt"], inplace=True),
    "filter_cells": lambda a: sa.pp.filter_cells(a, min_counts=1),
    "filter_cells by genes": lambda a: sa.pp.filter_cells(a, min_genes=1),
    "filter_genes": lambda a: sa.pp.filter_genes(a, min_counts=1),
    "filter_genes by cells": lambda a: sa.pp.filter_genes(a, min_cells=1),
    "normalize_total": sa.pp.normalize_total,
    "normalize_total lazily": lambda a: sa.pp.normalize_total(a, target_sum=1e4),
    "normalize_total, some genes": lambda a: sa.pp.normalize_total(
        a, exclude_highly_expressed=True, max_fraction=0.9
    ),
    "log1p": sa.pp.log1p,
    "hvg": lambda a: sa.pp.highly_variable_genes(a, n_top_genes=5),
    "hvg cell_ranger": lambda a: sa.pp.highly_variable_genes(a, flavor="cell_ranger"),
    "hvg v3": lambda a: sa.pp.highly_variable_genes(a, n_top_genes=5, flavor="seurat_v3"),
    "hvg pearson": lambda a: sa.pp.highly_variable_genes(
        a, n_top_genes=5, flavor="pearson_residuals"
    ),
    "scale": sa.pp.scale,
    "pca": lambda a: sa.pp.pca(a, n_comps=3),
    "regress_out": lambda a: sa.pp.regress_out(a, "size"),
    "downsample_counts": lambda a: sa.pp.downsample_counts(a, 10),
    "downsample_counts of all": lambda a: sa.pp.downsample_counts(a, total_counts=100),
    "scrublet": sa.pp.scrublet,
    "score_genes": lambda a: sa.tl.score_genes(a, ["g1", "g2"]),
}
OTHERS = {
    "sample": lambda a: sa.pp.sample(a, 0.5),
    "sample genes": lambda a: sa.pp.sample(a, 0.5, axis="var"),
    "neighbors": lambda a: sa.pp.neighbors(a, n_neighbors=5),
    "rank_genes_groups": lambda a: sa.tl.rank_genes_groups(a, "group"),
    "rank_genes_groups wilcoxon": lambda a: sa.tl.rank_genes_groups(a, "group", method="wilcoxon"),
    "rank_genes_groups logreg": lambda a: sa.tl.rank_genes_groups(a, "group", method="logreg"),
    "aggregate": lambda a: sa.get.aggregate(a, "group", ["sum", "mean", "var", "count_nonzero"]),
    "aggregate median": lambda a: sa.get.aggregate(a, "group", "median"),
}


def annotated(x) -> ad.AnnData:
    n_cells, n_genes = x.shape
    rng = np.random.default_rng(1)
    obs = pd.DataFrame(
        {"group": pd.Categorical(rng.choice(["a", "b"], n_cells)), "size": rng.random(n_cells)},
        index=[f"c{i}" for i in range(n_cells)],
    )
    var = pd.DataFrame({"mt": np.arange(n_genes) < 3}, index=[f"g{i}" for i in range(n_genes)])
    return ad.AnnData(x, obs=obs, var=var)


def some_counts(n_cells: int = 60, n_genes: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    mean = rng.gamma(0.6, 4.0, size=n_genes)
    return rng.poisson(mean, (n_cells, n_genes)).astype(np.float32)


def kinds(x: np.ndarray) -> dict:
    """The matrix as NumPy, SciPy and Dask array; a kind that cannot hold the type is left out."""
    found = {"numpy": x, "dask": da.from_array(x, chunks=(20, -1))}
    if x.dtype in (np.float32, np.float64, np.int64, np.complex64):
        found["csr"] = sp.csr_matrix(x)
    return found


def computed(result, adata: ad.AnnData) -> None:
    """Compute what a function has left lazy."""
    for made in (adata, result):
        if isinstance(made, ad.AnnData):
            for x in (made.X, *made.layers.values(), *made.obsm.values()):
                if hasattr(x, "compute"):
                    x.compute()


def works_or_says_so(call, adata: ad.AnnData) -> None:
    with warnings.catch_warnings(action="ignore"), suppress(ScatlasError):
        computed(call(adata), adata)


@pytest.mark.parametrize("dtype", ["float16", "longdouble", ">f4", "complex64", "object"])
@pytest.mark.parametrize("name", CALLS)
def test_types_that_kernels_do_not_take(name: str, dtype: str) -> None:
    for x in kinds(some_counts().astype(dtype)).values():
        adata = annotated(x)
        with pytest.raises(InputError, match=r"X holds values of type .*: convert it first"):
            CALLS[name](adata)


@pytest.mark.parametrize("dtype", ["float16", "longdouble", ">f4", "complex64", "object"])
@pytest.mark.parametrize("name", OTHERS)
def test_types_that_some_functions_take(name: str, dtype: str) -> None:
    for x in kinds(some_counts().astype(dtype)).values():
        works_or_says_so(OTHERS[name], annotated(x))


OF_ARRAYS = (
    lambda x: sa.pp.filter_cells(x, min_counts=1),
    sa.pp.log1p,
    lambda x: sa.pp.pca(x, n_comps=2),
    sa.pp.scale,
    cell_totals,
    lambda x: hvg_of_counts(x, pd.RangeIndex(40).astype(str), np.ones(60)),
)


def test_types_of_a_matrix_without_an_anndata() -> None:
    for x in kinds(some_counts().astype("float16")).values():
        for call in OF_ARRAYS:
            with pytest.raises(InputError, match="holds values of type float16"):
                call(x)


@pytest.mark.parametrize("shape", [(60, 0), (0, 40), (0, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_no_cells_or_genes(name: str, shape: tuple[int, int]) -> None:
    for x in kinds(some_counts(*shape)).values():
        works_or_says_so((CALLS | OTHERS)[name], annotated(x))


def test_qc_without_genes() -> None:
    for x in kinds(some_counts(60, 0)).values():
        obs, var = sa.pp.calculate_qc_metrics(annotated(x), percent_top=None, qc_vars=["mt"])
        assert (obs[["n_genes_by_counts", "total_counts", "total_counts_mt"]] == 0).all(axis=None)
        assert obs["pct_counts_mt"].isna().all()
        assert len(var) == 0


def test_blocks_of_unknown_size() -> None:
    whole = da.from_array(some_counts(), chunks=(20, -1))
    rows, genes = whole[whole[:, 0] >= 0], whole[:, whole[0] >= 0]
    for x in (rows, genes):
        for call in (
            *OF_ARRAYS,
            lambda x: sa.pp.filter_genes(x, min_counts=1),
            lambda x: sa.pp.sample(x, 0.5),
        ):
            with pytest.raises(InputError, match=r"unknown size.*compute_chunk_sizes\(\)"):
                call(x)
    rows.compute_chunk_sizes()
    keep, _ = sa.pp.filter_cells(rows, min_counts=1)
    assert keep.all()


@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_obs_that_was_left_on_disk(name: str, tmp_path) -> None:
    annotated(some_counts()).write_h5ad(tmp_path / "a.h5ad")
    adata = ad.experimental.read_lazy(tmp_path / "a.h5ad")
    works_or_says_so((CALLS | OTHERS)[name], adata)
    if name in {"qc", "filter_cells", "sample", "regress_out", "rank_genes_groups", "aggregate"}:
        with pytest.raises(InputError, match=r"are on disk: open the file with scatlas\.read_lazy"):
            (CALLS | OTHERS)[name](ad.experimental.read_lazy(tmp_path / "a.h5ad"))


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_totals_that_do_not_fit_64_bits(dtype: str) -> None:
    def refused(x: np.ndarray, call) -> None:
        for kind in (x, sp.csr_matrix(x), da.from_array(x, chunks=(1, -1))):
            with pytest.raises(InputError, match=r"do not fit 64 bits: convert X to float64"):
                computed(call(adata := ad.AnnData(kind)), adata)

    large = 2**62 + 5
    in_a_row = np.array([[large, large, 1], [1, 2, 3]], dtype)
    in_a_gene = in_a_row.T.copy()
    qc = lambda a: sa.pp.calculate_qc_metrics(a, percent_top=None)  # noqa: E731
    for x in (in_a_row, in_a_gene):
        refused(x, qc)
    for call in (
        lambda a: sa.pp.filter_cells(a, min_counts=1),
        sa.pp.normalize_total,
        lambda a: sa.pp.normalize_total(a, target_sum=1.0),
        lambda a: sa.pp.downsample_counts(a, 1),
    ):
        refused(in_a_row, call)
    refused(in_a_gene, lambda a: sa.pp.filter_genes(a, min_counts=1))
    if dtype == "uint64":
        refused(np.array([[2**63]], dtype), qc)
    # What fits is summed to the last digit.
    obs, var = sa.pp.calculate_qc_metrics(ad.AnnData(in_a_row // 4), percent_top=None)
    assert obs["total_counts"].tolist() == [2 * (large // 4), 0]
    assert var["total_counts"].tolist() == [large // 4, large // 4, 0]
    # As float64, totals are rounded and of the right size.
    obs, _ = sa.pp.calculate_qc_metrics(ad.AnnData(in_a_row.astype(float)), percent_top=None)
    assert obs["total_counts"].iloc[0] == 2.0**63


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("chunks", [(20, 3), (7, 3, 2), (60, 1, 1)], ids=str)
def test_side_arrays_cut_along_any_axis(chunks: tuple[int, ...], copy: bool) -> None:
    x = some_counts()
    side = np.random.default_rng(0).random((60, 8, 5)[: len(chunks)])
    ways = [
        lambda a: sa.pp.filter_cells(a, min_counts=float(np.median(x.sum(axis=1))), copy=copy),
        lambda a: sa.pp.sample(a, 0.4, copy=copy),
        lambda a: sa.pp.sample(a, n=0, copy=copy),
        lambda a: sa.pp.sample(a, n=60, copy=copy),
    ]
    for call in ways:
        memory, lazy = annotated(x), annotated(da.from_array(x, chunks=(20, -1)))
        memory.obsm["side"], memory.varm["side"] = side, side[:40]
        lazy.obsm["side"] = da.from_array(side, chunks=chunks)
        lazy.varm["side"] = da.from_array(side[:40], chunks=chunks)
        expected, found = call(memory) or memory, call(lazy) or lazy
        assert isinstance(found.obsm["side"], da.Array)
        assert list(found.obs_names) == list(expected.obs_names)
        np.testing.assert_array_equal(found.obsm["side"].compute(), expected.obsm["side"])
        np.testing.assert_array_equal(found.varm["side"].compute(), side[:40])
    genes = annotated(da.from_array(x, chunks=(20, -1)))
    genes.varm["side"] = da.from_array(side[:40], chunks=chunks)
    sa.pp.filter_genes(genes, min_counts=float(np.median(x.sum(axis=0))))
    kept = x.sum(axis=0) >= np.median(x.sum(axis=0))
    np.testing.assert_array_equal(genes.varm["side"].compute(), side[:40][kept])


def test_advice_names_the_element_that_is_cut() -> None:
    adata = annotated(some_counts())
    adata.layers["counts"] = da.from_array(some_counts(), chunks=(20, 10))
    adata.obsm["X_pca"] = da.from_array(some_counts(), chunks=(20, 10))
    with pytest.raises(InputError, match=r"adata.layers\['counts'\].rechunk\(\{1: -1\}\)"):
        sa.pp.normalize_total(adata, layer="counts")
    with pytest.raises(InputError, match=r"adata.obsm\['X_pca'\].rechunk\(\{1: -1\}\)"):
        sa.pp.neighbors(adata, use_rep="X_pca")


@pytest.mark.parametrize(
    "metric, kwds, transformer",
    [
        ("nonsense", {}, "sklearn"),
        ("nonsense", {}, "pynndescent"),
        ("haversine", {}, "sklearn"),
        ("mahalanobis", {"V": np.eye(40)}, "sklearn"),
    ],
    ids=["name", "name for NN-descent", "dimensions", "arguments"],
)
def test_metrics_that_cannot_be(metric: str, kwds: dict, transformer: str) -> None:
    adata = annotated(some_counts())
    with pytest.raises(InputError, match=f"metric='{metric}' .*choose another metric") as error:
        sa.pp.neighbors(adata, metric=metric, metric_kwds=kwds, transformer=transformer)
    assert "\n" not in str(error.value)


def test_mahalanobis_of_dimensions_that_depend_on_each_other() -> None:
    x = some_counts()
    x[:, 7] = x[:, 3]
    with pytest.raises(InputError, match="needs an invertible covariance"):
        sa.pp.neighbors(annotated(x), metric="mahalanobis")
