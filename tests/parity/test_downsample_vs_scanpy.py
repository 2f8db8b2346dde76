"""sa.pp.downsample_counts has scanpy's arguments and totals, and intentionally other counts."""

from __future__ import annotations

import inspect

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

import scatlas as sa
from tests.helpers.marked import marked_counts

sc = pytest.importorskip("scanpy")


def test_signature():
    theirs = inspect.signature(inspect.unwrap(sc.pp.downsample_counts)).parameters
    ours = inspect.signature(sa.pp.downsample_counts).parameters
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix, sp.csc_matrix])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
@pytest.mark.parametrize("replace", [False, True])
def test_totals_and_kinds(make, dtype, replace):
    counts = marked_counts(np.random.default_rng(0)).astype(dtype)
    each = np.random.default_rng(1).integers(0, 2 * int(counts.sum(axis=1).mean()), 400)
    for how in ({"counts_per_cell": 500}, {"counts_per_cell": each}, {"total_counts": 100_000}):
        ours, theirs = ad.AnnData(make(counts.copy())), ad.AnnData(make(counts.copy()))
        sa.pp.downsample_counts(ours, **how, replace=replace)
        sc.pp.downsample_counts(theirs, **how, replace=replace)
        assert type(ours.X) is type(theirs.X)
        assert ours.X.dtype == theirs.X.dtype
        mine, other = (np.asarray(x.X.sum(axis=1)).ravel() for x in (ours, theirs))
        if "total_counts" in how:
            assert mine.sum() == other.sum() == 100_000
        else:
            np.testing.assert_array_equal(mine, other)
            # Neither changes cells with fewer counts.
            same = counts.sum(axis=1) <= how["counts_per_cell"]
            assert same.any()
            assert (ours[same].X != theirs[same].X).sum() == 0
        assert (ours.X != theirs.X).sum() > 0, "other random numbers"


def test_cells_of_scanpy_share_their_random_numbers():
    """Cells with equal counts get equal results in scanpy, different ones in scatlas."""
    counts = np.tile(np.array([[30, 20, 50, 100]]), (50, 1)).astype(np.float32)
    ours, theirs = ad.AnnData(sp.csr_matrix(counts)), ad.AnnData(sp.csr_matrix(counts))
    sa.pp.downsample_counts(ours, 60)
    sc.pp.downsample_counts(theirs, 60)
    assert (theirs.X.toarray() == theirs.X.toarray()[0]).all()
    assert len(np.unique(ours.X.toarray(), axis=0)) > 40
