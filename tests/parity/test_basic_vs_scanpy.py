"""QC metrics, filters, normalisation and logarithm agree with scanpy's on the same input.

Tests of scanpy's errors (sums of counts in float32, in 1.11 empty cells in the median of CSR) show
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from tests.helpers.scanpy_version import SCANPY_112

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

sc = pytest.importorskip("scanpy")

PLATES = [f"mix_plate{i}" for i in range(1, 6)]
# scanpy sums and divides float32 data in float32: three roundings of 6e-8.
FLOAT32 = 3e-7


def assert_tables_equal(ours: pd.DataFrame, theirs: pd.DataFrame, *, rtol: float) -> None:
    """Check columns and order, equal integers, reals to `rtol`, and the documented dtypes."""
    assert list(ours.columns) == list(theirs.columns)
    assert ours.index.equals(theirs.index)
    for name in ours.columns:
        a, b = ours[name].to_numpy(), theirs[name].to_numpy()
        assert a.dtype in (np.int64, np.float64), name
        if b.dtype.kind == "i":
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, atol=0, err_msg=name)


def simulated(make_counts: Callable[..., Any], make_adata: Callable[..., Any]) -> ad.AnnData:
    return make_adata(make_counts(300, 600, seed=1), mt=13)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [{}, {"log1p": False, "percent_top": None}, {"percent_top": (600, 2), "expr_type": "umis"}],
)
def test_qc_metrics(
    dtype: str, options: dict, array_type: Any, make_counts: Any, make_adata: Any
) -> None:
    reference = simulated(make_counts, make_adata)
    reference.X = reference.X.astype(dtype)
    adata = make_adata(array_type(reference.X, rows=70), mt=13)
    ours = sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], **options)
    if options.get("percent_top", ()) is not None:
        # scanpy compiles the shares of the top genes for each type, 20 s each; the same counts in
        # float64 give the same result.
        dtype, reference.X = "float64", reference.X.astype(np.float64)
    with np.errstate(invalid="ignore"):
        theirs = sc.pp.calculate_qc_metrics(reference, qc_vars=["mt"], **options)
    for a, b in zip(ours, theirs, strict=True):
        assert_tables_equal(a, b, rtol=FLOAT32 if dtype == "float32" else 1e-14)


def test_qc_metrics_in_place_write_the_same_columns(make_counts: Any, make_adata: Any) -> None:
    ours, theirs = simulated(make_counts, make_adata), simulated(make_counts, make_adata)
    sa.pp.calculate_qc_metrics(ours, qc_vars=["mt"], inplace=True)
    theirs.X = theirs.X.astype(np.float64)
    with np.errstate(invalid="ignore"):
        sc.pp.calculate_qc_metrics(theirs, qc_vars=["mt"], inplace=True)
    assert list(ours.obs) == list(theirs.obs)
    assert list(ours.var) == list(theirs.var)


def test_scanpy_loses_counts_above_2_24_in_float32() -> None:
    x = sparse.csr_matrix(np.array([[2**24, 1, 1, 1]], np.float32))
    with np.errstate(invalid="ignore"):
        theirs = sc.pp.calculate_qc_metrics(ad.AnnData(x), percent_top=None)[0]
    ours = sa.pp.calculate_qc_metrics(ad.AnnData(x), percent_top=None)[0]
    assert int(theirs["total_counts"].iloc[0]) == 2**24 + 4
    assert int(ours["total_counts"].iloc[0]) == 2**24 + 3


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize(
    "name, bound",
    [
        ("filter_cells", {"min_counts": 300}),
        ("filter_cells", {"max_counts": 400}),
        ("filter_cells", {"min_genes": 120}),
        ("filter_cells", {"max_genes": 140}),
        ("filter_genes", {"min_counts": 200}),
        ("filter_genes", {"max_counts": 500}),
        ("filter_genes", {"min_cells": 60}),
        ("filter_genes", {"max_cells": 80}),
    ],
)
def test_filters(
    name: str,
    bound: dict,
    dtype: str,
    array_type: Any,
    make_counts: Any,
    make_adata: Any,
    dense: Any,
) -> None:
    reference = simulated(make_counts, make_adata)
    reference.X = reference.X.astype(dtype)
    adata = make_adata(array_type(reference.X, rows=70), mt=13)
    keep, number = getattr(sa.pp, name)(adata, **bound, inplace=False)
    want_keep, want_number = getattr(sc.pp, name)(reference, **bound, inplace=False)
    np.testing.assert_array_equal(keep, want_keep)
    np.testing.assert_array_equal(number, want_number)
    assert 0 < keep.sum() < keep.size
    getattr(sa.pp, name)(adata, **bound)
    getattr(sc.pp, name)(reference, **bound)
    pd.testing.assert_frame_equal(adata.obs, reference.obs, check_dtype=False)
    pd.testing.assert_frame_equal(adata.var, reference.var, check_dtype=False)
    np.testing.assert_array_equal(dense(adata.X), dense(reference.X))


@pytest.mark.filterwarnings("ignore:Some cells have zero counts:UserWarning")
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {"target_sum": 1e4},
        {"target_sum": 1e4, "key_added": "size"},
        {"target_sum": 1e4, "exclude_highly_expressed": True, "max_fraction": 0.02},
    ],
)
def test_normalize_total_and_log1p(
    options: dict, dtype: str, array_type: Any, make_counts: Any, make_adata: Any, dense: Any
) -> None:
    reference = simulated(make_counts, make_adata)
    reference.X = reference.X.astype(dtype)
    adata = make_adata(array_type(reference.X, rows=70), mt=13)
    rtol = 1e-14 if dtype == "float64" else FLOAT32
    sa.pp.normalize_total(adata, **options)
    sc.pp.normalize_total(reference, **options)
    assert adata.X.dtype == reference.X.dtype
    np.testing.assert_allclose(dense(adata.X), dense(reference.X), rtol=rtol, atol=0)
    if "key_added" in options:
        np.testing.assert_allclose(adata.obs["size"], reference.obs["size"], rtol=rtol)
    sa.pp.log1p(adata, base=2)
    sc.pp.log1p(reference, base=2)
    assert adata.X.dtype == reference.X.dtype
    assert adata.uns["log1p"] == reference.uns["log1p"]
    np.testing.assert_allclose(dense(adata.X), dense(reference.X), rtol=rtol, atol=0)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_log1p_of_counts(dtype: str, make_counts: Any, make_adata: Any, dense: Any) -> None:
    for kind in (sparse.csr_matrix, sparse.csc_matrix, lambda x: x.toarray()):
        ours, theirs = (make_adata(kind(make_counts().astype(dtype))) for _ in range(2))
        sa.pp.log1p(ours)
        sc.pp.log1p(theirs)
        assert type(ours.X) is type(theirs.X)
        assert ours.X.dtype == theirs.X.dtype
        np.testing.assert_allclose(dense(ours.X), dense(theirs.X), rtol=2e-7)


@pytest.mark.filterwarnings("ignore:Some cells have zero counts:UserWarning")
def test_the_median_leaves_empty_cells_out_on_every_path(
    array_type: Any, make_counts: Any, make_adata: Any, dense: Any
) -> None:
    counts = make_counts(60, 50).astype("f4")
    totals = np.asarray(counts.sum(axis=1)).ravel()
    median = np.median(totals[totals > 0])
    assert median != np.median(totals)
    ours = make_adata(array_type(counts))
    sa.pp.normalize_total(ours)
    sums = dense(ours.X).sum(axis=1, dtype="f8")
    np.testing.assert_allclose(sums[totals > 0], median, rtol=1e-6)
    # scanpy does the same for a dense X, but up to 1.12.3 uses all cells for CSR.
    of_csr = median if SCANPY_112 else np.median(totals)
    for x, target in ((counts.toarray(), median), (counts.copy(), of_csr)):
        theirs = make_adata(x)
        sc.pp.normalize_total(theirs)
        got = dense(theirs.X).sum(axis=1, dtype="f8")
        np.testing.assert_allclose(got[totals > 0], target, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Received a view of an AnnData:UserWarning")
def test_views_become_copies_as_in_scanpy(make_counts: Any, make_adata: Any, dense: Any) -> None:
    for pp in (sa.pp, sc.pp):
        parent = make_adata(make_counts().astype("f4"))
        before = dense(parent.X).copy()
        view = parent[10:20]
        pp.normalize_total(view, target_sum=1)
        pp.log1p(view)
        assert not view.is_view
        np.testing.assert_array_equal(dense(parent.X), before)


@pytest.mark.real
@pytest.mark.parametrize("plate", PLATES)
def test_real_plates(plate: str, plates_dir: Path, block_loads: Any, dense: Any) -> None:
    reference = ad.read_h5ad(plates_dir / f"{plate}.h5ad")
    reference.var["mt"] = reference.var_names.str.upper().str.startswith("MT-")
    if reference.X.dtype.kind != "f":
        reference.X = reference.X.astype("f4")
    in_memory = reference.copy()
    lazy = reference.copy()
    lazy.X = block_loads.dask(reference.X, rows=97)
    exact = reference.copy()
    exact.X = reference.X.astype(np.float64)
    theirs = sc.pp.calculate_qc_metrics(exact, qc_vars=["mt"])
    for adata in (in_memory, lazy):
        for a, b in zip(sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"]), theirs, strict=True):
            assert_tables_equal(a, b, rtol=1e-14)
    for adata, pp in ((in_memory, sa.pp), (lazy, sa.pp), (reference, sc.pp)):
        pp.filter_cells(adata, min_genes=200)
        pp.filter_genes(adata, min_cells=3)
        pp.normalize_total(adata)
        pp.log1p(adata)
    for adata in (in_memory, lazy):
        pd.testing.assert_frame_equal(adata.obs, reference.obs, check_dtype=False)
        pd.testing.assert_frame_equal(adata.var, reference.var, check_dtype=False)
        x = adata.X if adata is in_memory else adata.X.compute()
        assert x.dtype == reference.X.dtype
        np.testing.assert_array_equal(x.indptr, reference.X.indptr)
        np.testing.assert_array_equal(x.indices, reference.X.indices)
        np.testing.assert_allclose(x.data, reference.X.data, rtol=FLOAT32, atol=0)
    np.testing.assert_array_equal(dense(in_memory.X), dense(lazy.X))
