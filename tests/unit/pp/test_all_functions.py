"""What holds for each function of a matrix: the same bits whatever the blocks, threads and storage;
parents of views and originals of copies stay; passes are declared; blocks do not cut the genes.
"""

from __future__ import annotations

from contextlib import nullcontext

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas.compute.threads import use_threads
from scatlas.matrix import hvg_pearson, logistic
from tests.conftest import annotate, simulate, to_dense

pytestmark = pytest.mark.filterwarnings(
    "ignore:zero-centering a sparse",
    "ignore:Some cells have zero counts",
    "ignore:`flavor=.* expects raw count data",
)
GENES = ["gene7", "gene20", "gene33", "gene39"]
FUNCS = ("sum", "mean", "var", "count_nonzero", "median")
FACTORS = np.where(np.arange(300) % 9 == 0, np.nan, 1.0)


def changed(function, *args, **options):
    """The matrix after a call."""

    def call(adata):
        function(adata, *args, **options)
        return adata.X

    return call


def ranked(method, **options):
    def call(adata):
        sa.tl.rank_genes_groups(adata, "batch", method=method, **options)
        return adata.uns["rank_genes_groups"]

    return call


def aggregated(key):
    return lambda adata: dict(sa.get.aggregate(adata, key, FUNCS).layers)


def hvg(flavor, key):
    options = {"flavor": flavor, "batch_key": key, "n_top_genes": 20, "check_values": False}
    options["span"] = 1.0
    return lambda a: sa.pp.highly_variable_genes(a, size_factors=FACTORS, inplace=False, **options)


def components(adata):
    sa.pp.pca(adata, 5)
    return [adata.obsm["X_pca"], adata.varm["PCs"]]


def scored(adata):
    sa.tl.score_genes(adata, GENES, ctrl_size=2, n_bins=6)
    return adata.obs["score"]


def qc(adata):
    return list(sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=[5]))


# Name: call, data, whether all storages give the same bits (else sums follow the stored order).
ALIKE = {
    "calculate_qc_metrics": (qc, ("counts", "positive"), True),
    "normalize_total": (changed(sa.pp.normalize_total), ("counts", "positive"), True),
    "scale": (changed(sa.pp.scale, max_value=2), ("counts", "reals", "wide"), True),
    "regress_out": (changed(sa.pp.regress_out, ["number"]), ("reals", "wide"), True),
    "regress_out of groups": (changed(sa.pp.regress_out, "batch"), ("reals", "wide"), True),
    "pca": (components, ("reals", "wide"), False),
    "score_genes": (scored, ("counts", "reals", "gaps"), False),
    **{
        f"highly_variable_genes {flavor} {key}": (hvg(flavor, key), ("counts", "positive"), True)
        for flavor in ("seurat", "cell_ranger", "seurat_v3", "pearson_residuals")
        for key in (None, "batch")
    },
    # Few groups are summed per block first, many are not.
    "aggregate": (aggregated("pair"), ("counts", "reals", "wide"), True),
    "aggregate of many groups": (aggregated("many"), ("counts", "reals", "wide"), True),
    **{
        f"rank_genes_groups {method} {options}": (
            ranked(method, **options),
            ("counts", "reals", "wide"),
            True,
        )
        for method in ("t-test", "t-test_overestim_var", "wilcoxon", "logreg")
        for options in ({}, {"reference": "b0"}, {"groups": ["b2", "b1"]})
        if method != "logreg" or "reference" not in options
    },
}


def matrix(data):
    rng = np.random.default_rng(1)
    x = rng.poisson(0.5, (300, 40))
    if data == "counts":
        return x.astype(np.int32)
    x = x * rng.normal(size=x.shape) * 10.0 ** rng.integers(-1, 2, x.shape)
    if data == "gaps":
        x[x > 2] = np.nan
    return (
        np.abs(x).astype(np.float32)
        if data == "positive"
        else x.astype(np.float64 if data == "wide" else np.float32)
    )


def annotated(x, make_adata):
    adata = make_adata(x)
    adata.obs["number"] = np.arange(300) * 7 % 11 / 3
    adata.obs["pair"] = pd.Categorical(np.where(np.arange(300) % 7 > 2, "p", "q"))
    adata.obs["many"] = np.arange(300) * 13 % 40
    return adata


def bits(result):
    """The bytes of arrays, tables and mappings of these."""
    if isinstance(result, dict | pd.DataFrame):
        return [(str(name), bits(result[name])) for name in result]
    if isinstance(result, list):
        return [bits(item) for item in result]
    array = to_dense(result) if hasattr(result, "shape") else np.asarray(result)
    if array.dtype.kind == "V":
        return [(name, bits(array[name])) for name in array.dtype.names]
    return array.tolist() if array.dtype == object else np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("name", ALIKE)
def test_neither_blocks_nor_threads_nor_the_storage_show(
    name, make_adata, block_loads, monkeypatch
):
    monkeypatch.setattr(hvg_pearson, "_GENES_AT_ONCE", 7)
    monkeypatch.setattr(logistic, "_WORK_OF_ONE_THREAD", 1)
    call, kinds, all_storages = ALIKE[name]
    for kind in kinds:
        x = matrix(kind)
        stored = sparse.csr_matrix(x)
        made = [stored, *(block_loads.dask(stored, rows) for rows in (11, 64, 299))]
        if all_storages:
            made += [x, np.asfortranarray(x), stored.tocsc(), sparse.csr_array(x)]
            made.append(block_loads.dask(x, 41))
        found = []
        for i, form in enumerate(made):
            with use_threads(1 + 2 * (i % 2)):
                adata = annotated(form if hasattr(form, "dask") else form.copy(), make_adata)
                found.append(bits(call(adata)))
        assert all(other == found[0] for other in found[1:]), kind
    block_loads.assert_unchanged()


IN_PLACE = {
    "downsample_counts": lambda a, **o: sa.pp.downsample_counts(a, 5, **o),
    "filter_cells": lambda a, **o: sa.pp.filter_cells(a, min_genes=9, **o),
    "filter_genes": lambda a, **o: sa.pp.filter_genes(a, min_cells=9, **o),
    "normalize_total": lambda a, **o: sa.pp.normalize_total(a, target_sum=100, **o),
    "log1p": lambda a, **o: sa.pp.log1p(a, **o),
    "scale": lambda a, **o: sa.pp.scale(a, **o),
    "regress_out": lambda a, **o: sa.pp.regress_out(a, "batch", **o),
    "sample": lambda a, **o: sa.pp.sample(a, n=20, **o),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_views_are_copied_first_and_copies_leave_the_original(name, array_type, counts, make_adata):
    call, x = IN_PLACE[name], counts.astype(np.float32)
    parent = make_adata(array_type(x))
    before = parent.obs.copy(), parent.var.copy()
    view = parent[10:]
    with nullcontext() if name == "scale" else pytest.warns(UserWarning, match="view"):
        assert call(view) is None
    assert not view.is_view
    assert parent.shape == x.shape
    copied = call(parent[10:].copy(), copy=True)
    whole = call(parent, copy=True)
    assert whole is not parent
    np.testing.assert_array_equal(to_dense(view.X), to_dense(copied.X))
    np.testing.assert_array_equal(to_dense(parent.X), x.toarray())
    for table, old in zip((parent.obs, parent.var), before, strict=True):
        pd.testing.assert_frame_equal(table, old)


CUT = {
    "calculate_qc_metrics": lambda a: sa.pp.calculate_qc_metrics(a, percent_top=None),
    "highly_variable_genes": sa.pp.highly_variable_genes,
    "pca": sa.pp.pca,
    **{name: IN_PLACE[name] for name in ("normalize_total", "log1p", "scale", "filter_cells")},
}


@pytest.mark.parametrize("name", CUT)
def test_blocks_that_cut_the_genes_are_refused_with_the_remedy(name, counts):
    cut = ad.AnnData(da.from_array(counts.toarray(), chunks=(10, 25)))
    with pytest.raises(sa.errors.InputError, match=r"rechunk\(\{1: -1\}\)"):
        CUT[name](cut)


PASSES = {
    "calculate_qc_metrics": lambda a: sa.pp.calculate_qc_metrics(a, percent_top=[5, 50]),
    "filter_cells": IN_PLACE["filter_cells"],
    "filter_genes": IN_PLACE["filter_genes"],
    "normalize_total": sa.pp.normalize_total,
    "log1p": sa.pp.log1p,
    "sample": IN_PLACE["sample"],
    "scale": lambda a: sa.pp.scale(a),
    "pca": lambda a: sa.pp.pca(a, 8),
    "regress_out": lambda a: sa.pp.regress_out(a, ["n", "half"]),
    "regress_out of groups": IN_PLACE["regress_out"],
    "downsample_counts": IN_PLACE["downsample_counts"],
    "score_genes": lambda a: sa.tl.score_genes(a, GENES, ctrl_size=3, n_bins=5),
    "score_genes_cell_cycle": lambda a: sa.tl.score_genes_cell_cycle(
        a, s_genes=GENES[:3], g2m_genes=GENES[2:], n_bins=5
    ),
    "train_annotator": lambda a: sa.tl.train_annotator(a, "batch"),
    "annotate": lambda a: sa.tl.annotate(a, sa.tl.train_annotator(annotate(simulate()), "batch")),
    "rank_genes_groups": lambda a: sa.tl.rank_genes_groups(a, "batch", pts=True),
    "rank_genes_groups wilcoxon": lambda a: sa.tl.rank_genes_groups(a, "batch", method="wilcoxon"),
    **{
        f"aggregate {name}": lambda a, name=name: sa.get.aggregate(a, "batch", name)
        for name in (*FUNCS[:4], FUNCS[:4])
    },
    "aggregate of genes": lambda a: sa.get.aggregate(a, "mt", FUNCS, axis="var"),
    **{
        f"highly_variable_genes {flavor} {key}": lambda a, f=flavor, k=key: (
            sa.pp.highly_variable_genes(a, flavor=f, batch_key=k, n_top_genes=9, span=1.0)
        )
        for flavor in ("seurat", "seurat_v3", "seurat_v3_paper", "pearson_residuals")
        for key in (None, "batch")
    },
}
# One more than the function declares, as its note says.
MORE = ("wilcoxon", "seurat_v3", "pearson_residuals")


@pytest.mark.parametrize("name", PASSES)
def test_passes_are_declared_and_results_keep_the_blocks(
    name, dask_type, counts, make_adata, block_loads
):
    adata = make_adata(dask_type(counts.astype(np.float32)))
    adata.obs["n"], adata.obs["half"] = np.arange(60) % 7, np.arange(60) % 2
    chunks = adata.X.chunks[0]
    PASSES[name](adata)
    function, _, option = name.partition(" ")
    (declared,) = (
        getattr(part, function).passes for part in (sa.pp, sa.tl, sa.get) if hasattr(part, function)
    )
    more = option.partition(" ")[0].removesuffix("_paper") in MORE
    assert block_loads.passes() == declared + more
    if more and function == "highly_variable_genes":
        assert option.partition(" ")[0] in sa.pp.highly_variable_genes.passes_note
    block_loads.reset()
    lazy = adata.obsm.get("X_pca", adata.X)
    assert function in ("filter_cells", "sample") or lazy.chunks[0] == chunks
    to_dense(lazy)  # the result takes each block once more, and none twice
    assert max(block_loads.per_block()) == 1
    block_loads.assert_unchanged()
