"""QC metrics, filters, normalisation, logarithm and sampling: passes, keys, owners, errors.

Values are compared in tests/adversarial and tests/parity.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas import elements
from scatlas.errors import InputError
from tests.conftest import to_dense

empty_cells = pytest.mark.filterwarnings("ignore:Some cells have zero counts:UserWarning")


@pytest.fixture
def adata(array_type, counts, make_adata):
    """AnnData of 60 x 50 counts, X of every kind, with a layer of the same kind."""
    adata = make_adata(array_type(counts.astype(np.float32)))
    adata.layers["counts"] = array_type(counts)
    adata.var["other"] = np.arange(50) % 7 == 0
    return adata


# --- passes -----------------------------------------------------------------------------------


@empty_cells
@pytest.mark.parametrize(
    "options, passes",
    [
        ({}, 1),
        ({"target_sum": 1e4}, 0),
        ({"target_sum": 1e4, "inplace": False}, 0),
        ({"target_sum": 1e4, "key_added": "size"}, 1),
        ({"key_added": "size"}, 1),
        ({"counts_per_cell": "totals"}, 0),
        ({"counts_per_cell": "totals", "target_sum": 1e4, "key_added": "size"}, 0),
        ({"exclude_highly_expressed": True}, 2),
        ({"exclude_highly_expressed": True, "target_sum": 1e4}, 1),
    ],
)
def test_passes_of_normalize_total(options, passes, dask_type, counts, make_adata, block_loads):
    adata = make_adata(dask_type(counts))
    adata.obs["totals"] = np.asarray(counts.sum(axis=1)).ravel()
    sa.pp.normalize_total(adata, **options)
    assert block_loads.passes() == passes


@empty_cells
def test_a_chain_of_steps_takes_each_block_once(dask_type, counts, make_adata, block_loads, dense):
    adata = make_adata(dask_type(counts))
    totals = np.asarray(counts.sum(axis=1)).ravel()
    keep = totals > 0
    sa.pp.normalize_total(adata, target_sum=100, counts_per_cell=totals)
    sa.pp.log1p(adata)
    sa.pp.sample(adata, p=keep, n=int(keep.sum()))
    assert block_loads.passes() == 0
    dense(adata.X)
    assert block_loads.passes() == 1
    block_loads.assert_unchanged()


# --- calculate_qc_metrics ---------------------------------------------------------------------


def test_qc_metrics_in_place_of_a_layer(adata, counts):
    adata.X = None
    assert sa.pp.calculate_qc_metrics(
        adata, layer="counts", expr_type="umis", var_type="features", inplace=True, log1p=False,
        percent_top=(),
    ) is None  # fmt: skip
    assert list(adata.obs) == ["batch", "n_features_by_umis", "total_umis"]
    assert list(adata.var)[2:] == [
        "n_cells_by_umis", "mean_umis", "pct_dropout_by_umis", "total_umis"
    ]  # fmt: skip
    np.testing.assert_array_equal(adata.obs["total_umis"], np.asarray(counts.sum(1)).ravel())


def test_qc_metrics_of_raw(counts, make_adata):
    adata = make_adata(counts.astype("f4"))
    adata.raw = adata
    few = adata[:, 8::-1].copy()  # fewer than raw, in another order: written by their names
    obs, var = sa.pp.calculate_qc_metrics(few, use_raw=True, percent_top=None, qc_vars=["mt"])
    assert list(var.index) == list(adata.var_names)
    wanted = counts[:, adata.var["mt"].to_numpy(bool)].sum(1)  # few.var lacks genes of raw
    np.testing.assert_array_equal(obs["total_counts_mt"], np.asarray(wanted).ravel())
    sa.pp.calculate_qc_metrics(few, use_raw=True, percent_top=None, inplace=True)
    of_genes = np.asarray(counts.sum(0)).ravel()
    np.testing.assert_array_equal(few.var["total_counts"], of_genes[8::-1])
    few.var["new"] = True
    with pytest.raises(InputError, match=r"raw.var \(adata.var has 9 of its genes\) has no column"):
        sa.pp.calculate_qc_metrics(few, use_raw=True, percent_top=None, qc_vars=["new"])
    few.var_names = [f"other {i}" for i in range(9)]
    with pytest.raises(InputError, match="inplace=False, or those"):
        sa.pp.calculate_qc_metrics(few, use_raw=True, percent_top=None, inplace=True)


@pytest.mark.parametrize("dtype", [bool, object, "boolean", "category", float])
def test_qc_vars_are_true_or_false_in_any_type(dtype, counts, make_adata):
    adata, mask = make_adata(counts), np.arange(50) < 5
    adata.var["set"] = pd.Series(mask, adata.var_names).astype(dtype)
    obs, _ = sa.pp.calculate_qc_metrics(adata, qc_vars="set", percent_top=None)
    wanted = np.asarray(counts[:, mask].sum(1)).ravel()
    np.testing.assert_array_equal(obs["total_counts_set"], wanted)


NAMED = {
    "counts_per_cell": ("n", lambda a, of: sa.pp.downsample_counts(a, of, copy=True).X),
    "mask_obs": ("half", lambda a, of: sa.pp.scale(a, zero_center=False, mask_obs=of, copy=True).X),
    "p": ("p", lambda a, of: sa.pp.sample(a, n=5, p=of, copy=True).X),
    "mask": ("half", lambda a, of: sa.get.aggregate(a, "n", "sum", mask=of).layers["sum"]),
    "counts_per_cell ": (
        "n",
        lambda a, of: sa.pp.normalize_total(a, counts_per_cell=of, inplace=False)["X"],
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_values_with_names_are_matched_by_them(name, counts, make_adata):
    adata = make_adata(counts.astype("f4"))
    adata.obs["n"] = np.random.default_rng(0).integers(1, 9, adata.n_obs)
    adata.obs["half"] = np.arange(adata.n_obs) % 2 == 0
    adata.obs["p"] = adata.obs["half"] / adata.obs["half"].sum()
    column, call = NAMED[name]
    values = adata.obs[column]
    np.testing.assert_array_equal(
        to_dense(call(adata, values[::-1])), to_dense(call(adata, values))
    )
    with pytest.raises(InputError, match=f"^{name.strip()} has no value for '"):
        call(adata, values[1:])


# --- filters ----------------------------------------------------------------------------------


FILTERS = [
    *(("cells", {name: n}) for name, n in {"min_counts": 40, "max_genes": 12}.items()),
    *(("genes", {name: n}) for name, n in {"max_counts": 60, "min_cells": 9}.items()),
]


@pytest.mark.parametrize(("of", "bound"), FILTERS)
@pytest.mark.parametrize("copy", [False, True])
def test_filters_take_all_parts_along(of, bound, copy, adata, counts, dense):
    function = getattr(sa.pp, f"filter_{of}")
    keep, number = function(adata, **bound, inplace=False)
    for same, other in zip(function(adata.X, **bound), (keep, number), strict=True):
        np.testing.assert_array_equal(same, other)
    assert adata.shape == (60, 50)
    assert 0 < keep.sum() < keep.size
    rows, columns = (keep, slice(None)) if of == "cells" else (slice(None), keep)
    matrix = counts.toarray()
    adata.obsm["rep"], adata.varm["loadings"] = matrix[:, :3].copy(), matrix[:3].T.copy()
    adata.obsp["graph"] = sparse.eye(60, format="csr")
    result = function(adata, **bound, copy=copy)
    assert (result is None) is not copy
    assert (adata.shape == (60, 50)) == copy
    kept = result if copy else adata
    for part in (kept.X, kept.layers["counts"]):
        np.testing.assert_array_equal(dense(part), matrix[rows][:, columns])
    np.testing.assert_array_equal(kept.obsm["rep"], matrix[rows][:, :3])
    np.testing.assert_array_equal(kept.varm["loadings"], matrix[:3].T[columns])
    assert kept.obsp["graph"].shape == (kept.n_obs, kept.n_obs)
    ((name, _),) = bound.items()
    table = kept.obs if of == "cells" else kept.var
    np.testing.assert_array_equal(table["n_" + name.split("_")[1]], number[keep])
    assert type(kept.X) is type(adata.X)


def test_filters_of_a_dask_x_stay_lazy_and_keep_the_blocks(
    dask_type, counts, make_adata, block_loads, dense
):
    adata = make_adata(dask_type(counts, rows=10))
    adata.obsm["lazy"] = dask_type(counts[:, :2], rows=10)
    keep, _ = sa.pp.filter_cells(adata, min_genes=13, inplace=False)
    sa.pp.filter_cells(adata, min_genes=13)
    per_block = keep.reshape(6, 10).sum(axis=1)
    assert adata.X.chunks[0] == tuple(per_block[per_block > 0])
    sa.pp.filter_genes(adata, min_cells=1)
    assert adata.X.chunks[0] == tuple(per_block[per_block > 0])
    np.testing.assert_array_equal(dense(adata.obsm["lazy"]), counts.toarray()[keep][:, :2])


def test_a_filter_may_keep_nothing(adata, dense):
    sa.pp.filter_cells(adata, min_counts=10**6)
    assert adata.shape == (0, 50)
    assert dense(adata.X).shape == (0, 50)
    assert dense(adata.layers["counts"]).shape == (0, 50)


# --- normalize_total --------------------------------------------------------------------------


@empty_cells
@pytest.mark.parametrize("as_column", [False, True])
def test_normalize_total_with_known_totals(as_column, adata, counts, dense):
    totals = np.asarray(counts.sum(axis=1)).ravel()
    want = sa.pp.normalize_total(adata, inplace=False)["X"]
    adata.obs["total_counts"] = totals
    sa.pp.filter_genes(adata, min_cells=10)  # totals are those of all genes, as the pipeline wants
    genes = [int(name.split("gene")[1]) for name in adata.var_names]
    sa.pp.normalize_total(adata, counts_per_cell="total_counts" if as_column else totals)
    np.testing.assert_array_equal(dense(adata.X), dense(want)[:, genes])


def test_normalize_total_of_a_layer(adata, counts, dense):
    with pytest.warns(UserWarning, match="Some cells have zero counts"):
        sa.pp.normalize_total(adata, layer="counts", target_sum=10, key_added="size")
    np.testing.assert_array_equal(dense(adata.X), counts.toarray())
    totals = dense(adata.layers["counts"]).sum(axis=1)
    np.testing.assert_allclose(totals[totals > 0], 10, rtol=1e-6)


# --- log1p ------------------------------------------------------------------------------------


def test_log1p_of_a_layer_and_obsm(adata, counts, dense):
    matrix = counts.toarray().astype("f4")
    want = dense(sa.pp.log1p(adata.X))
    sa.pp.log1p(adata, copy=True)
    assert "log1p" not in adata.uns
    sa.pp.log1p(adata, layer="counts")
    np.testing.assert_allclose(dense(adata.layers["counts"]), want, rtol=6e-8)
    np.testing.assert_array_equal(dense(adata.X), matrix)
    del adata.uns["log1p"]
    adata.obsm["rep"] = matrix[:, :3].copy()
    sa.pp.log1p(adata, obsm="rep")
    np.testing.assert_array_equal(adata.obsm["rep"], want[:, :3])


def test_log1p_twice_warns(counts, make_adata):
    adata = make_adata(counts)
    sa.pp.log1p(adata)
    with pytest.warns(UserWarning, match="already log-transformed"):
        sa.pp.log1p(adata)


# --- sample -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("axis", "same"), [("obs", 0), ("var", 1)])
def test_sample_is_seeded_and_in_storage_order(axis, same, array_type, counts, dense):
    subset, index = sa.pp.sample(array_type(counts), n=17, rng=3, axis=axis)
    assert index.dtype == np.int64
    assert (np.diff(index) > 0).all()
    np.testing.assert_array_equal(dense(subset), counts.toarray().take(index, same))
    again = sa.pp.sample(array_type(counts), n=17, rng=np.random.default_rng(3), axis=same)[1]
    np.testing.assert_array_equal(index, again)
    assert (index != sa.pp.sample(array_type(counts), n=17, rng=4, axis=axis)[1]).any()


def test_sample_by_default_is_the_same_every_time(counts):
    one, two = (sa.pp.sample(counts, 0.5)[1] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert one.size == 30


def test_sample_keeps_the_blocks_of_a_dask_x(dask_type, counts, block_loads):
    subset, index = sa.pp.sample(dask_type(counts, rows=20), n=30)
    assert subset.chunks[0] == tuple(np.bincount(index // 20))
    assert block_loads.passes() == 0


def test_sample_draws_each_as_often_as_it_should():
    x = np.zeros((20, 1))
    rng = np.random.default_rng(0)
    drawn = np.concatenate([sa.pp.sample(x, n=5, rng=rng)[1] for _ in range(2000)])
    # 2000 draws with probability 1/4: standard deviation 19.
    assert np.abs(np.bincount(drawn, minlength=20) - 500).max() < 5 * 19
    p = np.r_[np.zeros(15), np.full(5, 0.2)]
    assert set(sa.pp.sample(x, n=5, p=p)[1]) == set(range(15, 20))


def test_sample_by_mask_column_and_with_replacement(counts, make_adata):
    adata = make_adata(counts)
    adata.obs["pick"] = np.arange(60) < 10
    assert set(sa.pp.sample(adata, n=10, p="pick", copy=True).obs["pick"]) == {True}
    twice = sa.pp.sample(adata, 2.0, replace=True, copy=True)
    assert twice.n_obs == 120
    assert twice.obs_names.is_unique
    assert set(twice.obs_names) > set(twice.obs_names.str.removesuffix("-1"))


@pytest.mark.parametrize("axis", ["obs", "var"])
def test_sample_with_replacement_is_for_memory(axis, dask_type, counts, make_adata):
    for data in (dask_type(counts), make_adata(dask_type(counts))):
        with pytest.raises(InputError, match="to_memory"):
            sa.pp.sample(data, 2.0, replace=True, axis=axis)


# --- errors -----------------------------------------------------------------------------------

QC, NORMALIZE, SAMPLE = sa.pp.calculate_qc_metrics, sa.pp.normalize_total, sa.pp.sample
ERRORS = [
    (QC, {}, r"top 500 genes, but there are 50"),
    (QC, {"percent_top": [0]}, r"top 0 genes"),
    (QC, {"percent_top": None, "qc_vars": ["ribo"]}, r"no column 'ribo' \(qc_vars\); it has mt"),
    (
        QC,
        {"percent_top": None, "qc_vars": ["score"]},
        r"'score'\] \(qc_vars\) must be True",
    ),
    (QC, {"percent_top": None, "layer": "spliced"}, r"layers has no 'spliced'; it has \[\]"),
    (QC, {"percent_top": None, "use_raw": True}, r"adata.raw is empty"),
    (QC, {"percent_top": None, "use_raw": True, "layer": "x"}, r"choose one of"),
    *(
        (function, bounds, f"exactly one of .* max_{item}")
        for function, item in ((sa.pp.filter_cells, "genes"), (sa.pp.filter_genes, "cells"))
        for bounds in ({}, {"min_counts": 1, "max_counts": 2})
    ),
    (NORMALIZE, {"copy": True, "inplace": False}, "copy=True"),
    (NORMALIZE, {"max_fraction": 1.1}, "max_fraction"),
    (NORMALIZE, {"target_sum": 0}, "target_sum must be a positive number, not 0"),
    (NORMALIZE, {"counts_per_cell": "nowhere"}, "no column 'nowhere'"),
    (NORMALIZE, {"counts_per_cell": np.ones(3)}, r"shape \(3,\), but there are 60 cells"),
    (NORMALIZE, {"counts_per_cell": -np.ones(60)}, "non-negative"),
    (NORMALIZE, {"counts_per_cell": np.full(60, np.nan)}, "finite"),
    (NORMALIZE, {"counts_per_cell": np.zeros(60)}, "no cell has counts"),
    (
        NORMALIZE,
        {"counts_per_cell": np.ones(60), "exclude_highly_expressed": True},
        "cannot change",
    ),
    (NORMALIZE, {"layer": "nowhere"}, "layers has no 'nowhere'"),
    *((sa.pp.log1p, {"base": base}, "base must be") for base in (0, -2, 1, np.nan, np.inf)),
    (SAMPLE, {}, "either fraction or n"),
    (SAMPLE, {"fraction": 0.5, "n": 3}, "either fraction or n"),
    (SAMPLE, {"fraction": 1.5}, "within 0 and 1"),
    (SAMPLE, {"fraction": -0.5, "replace": True}, "within 0 and 1"),
    (SAMPLE, {"n": 61}, "cannot draw 61 of 60"),
    (SAMPLE, {"n": -1}, "n=-1 is not possible"),
    (SAMPLE, {"n": 3, "axis": "cells"}, "axis must be"),
    (SAMPLE, {"n": 3, "p": "nowhere"}, "obs has no column 'nowhere'"),
    (SAMPLE, {"n": 3, "p": np.ones(4)}, r"shape \(4,\)"),
    (SAMPLE, {"n": 3, "p": np.ones(60)}, "sum to 1"),
    (SAMPLE, {"n": 3, "p": np.zeros(60, bool)}, "nothing to draw from"),
    (SAMPLE, {"n": 3, "p": np.arange(60) < 2}, "cannot draw 3 of 2"),
]


@pytest.mark.parametrize("function, options, message", ERRORS)
def test_what_is_refused_changes_nothing(function, options, message, counts, make_adata, dense):
    adata = make_adata(counts)
    adata.var["score"] = np.linspace(0, 1, 50)
    before = adata.obs.copy(), adata.var.copy()
    with pytest.raises(InputError, match=message):
        function(adata, **options)
    np.testing.assert_array_equal(dense(adata.X), counts.toarray())
    for table, old in zip((adata.obs, adata.var), before, strict=True):
        pd.testing.assert_frame_equal(table, old)


def test_negative_counts_and_elements_of_an_array_are_refused(counts, make_adata):
    with pytest.raises(InputError, match="are these counts"):
        sa.pp.normalize_total(make_adata(counts * -1))
    with pytest.raises(InputError, match="need an AnnData"):
        sa.pp.log1p(counts, layer="x")


# --- all --------------------------------------------------------------------------------------


def test_backed_files_are_refused_with_the_mend(tmp_path, counts, make_adata):
    make_adata(counts).write_h5ad(tmp_path / "a.h5ad")
    adata = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    for call in (
        lambda a: sa.pp.calculate_qc_metrics(a, percent_top=None),
        lambda a: sa.pp.filter_genes(a, min_counts=3),
        sa.pp.normalize_total,
        sa.pp.log1p,
        lambda a: sa.pp.sample(a, n=20),
    ):
        with pytest.raises(InputError, match="read_lazy"):
            call(adata)
    adata.file.close()


def test_a_matrix_in_place_of_an_anndata_is_refused(counts):
    for call in (
        sa.pp.calculate_qc_metrics,
        sa.pp.normalize_total,
        lambda x: sa.get.aggregate(x, "batch", "sum"),
    ):
        with pytest.raises(InputError, match="an AnnData is needed, not a csr_matrix"):
            call(counts)


def test_importing_the_functions_loads_nothing_slow():
    code = (
        "import sys; from scatlas.pp import calculate_qc_metrics, filter_cells, normalize_total, "
        "log1p, sample; print([m for m in ('numba', 'scanpy', 'anndata') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


SCALE = partial(sa.pp.scale, zero_center=False, max_value=1.5, mask_obs=np.arange(60) % 3 > 0)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, sparse.csc_matrix])
@pytest.mark.parametrize("change", [sa.pp.normalize_total, sa.pp.log1p, SCALE])
@pytest.mark.parametrize("held", ["nothing", "matrix", "values", "layer", "read-only"])
def test_only_a_matrix_without_other_owners_is_overwritten(counts, kind, change, held):
    x = counts.toarray().astype(np.float32)
    x[:, 0] += 1
    adata = ad.AnnData(kind(x.copy()))
    if kind is np.asarray:
        adata.X = adata.X.copy()
    if held == "read-only":
        (adata.X if kind is np.asarray else adata.X.data).flags.writeable = False
    owner = {
        "nothing": lambda: None,
        "matrix": lambda: adata.X,
        "values": lambda: adata.X[:] if kind is np.asarray else adata.X.data,
        "layer": lambda: adata.layers.__setitem__("same", adata.X),
        "read-only": lambda: None,
    }[held]()
    assert elements.owns_matrix(adata) == (held == "nothing")
    change(adata)
    expected = change(ad.AnnData(kind(x)), copy=True).X
    np.testing.assert_array_equal(to_dense(adata.X), to_dense(expected))
    before = adata.layers["same"] if held == "layer" else owner
    if held == "values" and kind is not np.asarray:
        np.testing.assert_array_equal(before, kind(x).data)
    elif held not in ("nothing", "read-only"):
        np.testing.assert_array_equal(to_dense(before), x)
        assert not np.shares_memory(getattr(before, "indptr", 0), getattr(adata.X, "indptr", 0))
