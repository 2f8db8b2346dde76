"""Random layouts, matrices and cuts: counts come out as h5py and zarr read them whole."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import scatlas as sa
from scatlas.errors import InputError
from scatlas.io import open_counts
from tests.helpers.layout_arrays import H5_CODECS, ZARR2, ZARR3
from tests.helpers.layouts import (
    PARTS,
    Layout,
    assert_block,
    assert_rows,
    read_reference,
    read_rows,
    write,
)

pytestmark = pytest.mark.slow

H5_STORAGES = ["chunked", "resizable", "grown", "early", "backwards", "holes"]
UNFILTERED = ["contiguous", "compact"]
ZARR_STORAGES = ["chunked", "holes", "sharded", "one-shard", "shard-index-first"]
sizes = st.sampled_from([1, 2, 3, 7, 16, 50, 10**4])
types = st.tuples(
    st.sampled_from(["<f4", "<f8", "<i4", "<i8", "|u1", "<u2", "<f2", ">f4", ">i4"]),
    st.sampled_from(["<i4", "<i8", "<u2", "<u4", ">i4", "|u1"]),
    st.sampled_from(["<i4", "<i8", ">i8"]),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any chain of codecs with any sizes of chunks, types and places of the chunks."""
    kind = draw(st.sampled_from(["h5ad", "zarr2", "zarr3"]))
    chunks = draw(st.tuples(sizes, sizes, sizes))
    dtypes, fill = draw(types), draw(st.sampled_from([0, 1]))
    if kind != "h5ad":
        codec = draw(st.sampled_from(sorted(ZARR2 if kind == "zarr2" else ZARR3)))
        storage = draw(st.sampled_from(ZARR_STORAGES if kind == "zarr3" else ZARR_STORAGES[:2]))
        return Layout("random", kind, codec, chunks, storage, dtypes, fill)
    codec = draw(st.sampled_from(["none", *H5_CODECS]))
    storage = draw(st.sampled_from(H5_STORAGES + UNFILTERED))
    if storage in UNFILTERED:
        codec = "none"
    file = draw(st.sampled_from([{}, {"libver": "latest"}, {"userblock_size": 512}]))
    return Layout("random", kind, codec, chunks, storage, dtypes, fill, file)


@st.composite
def matrices(draw: st.DrawFn) -> sp.csr_matrix:
    """From nothing at all to rows larger than a block; stored zeros among the values."""
    n_cells, n_genes = draw(st.sampled_from([(0, 3), (1, 1), (1, 60), (25, 1), (12, 9), (30, 60)]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = rng.integers(0, n_genes + 1, n_cells) * (rng.random(n_cells) < rng.random())
    indices = [np.sort(rng.choice(n_genes, n, replace=False)) for n in lengths]
    indptr = np.r_[0, np.cumsum(lengths)]
    data = rng.integers(0, 3, indptr[-1])
    indices = np.concatenate([np.empty(0, np.int64), *indices])
    return sp.csr_matrix((data, indices, indptr), (n_cells, n_genes))


def refuses_holes(path: Path) -> bool:
    """Whether reading ends with words on chunks that were never written."""
    try:
        sa.read_lazy(path).X.compute()
    except InputError as error:
        return "was never written" in str(error)
    return False


def holes(path: Path) -> bool:
    """Whether chunks of an HDF5 file were never written."""
    if path.suffix != ".h5ad":
        return False
    with h5py.File(path) as file:
        arrays = [file["X"][part] for part in PARTS]
        return any(a.chunks and a.id.get_num_chunks() < -(-a.size // a.chunks[0]) for a in arrays)


examples = given(
    layout=layouts(),
    x=matrices(),
    budget=st.sampled_from([1, 300, 1_500, 10_000, "1MB"]),
    data=st.data(),
)


@settings(max_examples=20)
@examples
def test_any_layout_matrix_and_budget(tmp_path_factory, layout, x, budget, data):
    check(tmp_path_factory, layout, x, budget, data)


@pytest.mark.weekly
@settings(max_examples=300)
@examples
def test_layouts_of_the_week(tmp_path_factory, layout, x, budget, data):
    check(tmp_path_factory, layout, x, budget, data)


def check(tmp_path_factory, layout, x, budget, data) -> None:
    path = write(x, tmp_path_factory.mktemp("plate"), layout)
    wanted = read_reference(path)
    for part, array in zip(PARTS, wanted, strict=True):
        # The file holds what was meant to be in it; scaleoffset and types round alike.
        np.testing.assert_array_equal(array.astype(np.float64), getattr(x, part))
    if holes(path) and refuses_holes(path):
        return
    lazy = sa.read_lazy(path, block_budget=budget)
    assert_block(lazy.X.compute(), wanted)
    with open_counts(path) as source:
        for _ in range(3):
            first = data.draw(st.integers(0, x.shape[0]))
            stop = data.draw(st.integers(first, x.shape[0]))
            assert_rows(read_rows(source, first, stop), wanted, first, stop)
