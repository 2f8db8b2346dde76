"""Counts come out the same from every layout, by every cut, as h5py and zarr read them whole."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import scatlas as sa
from scatlas.blocks import stream
from scatlas.errors import InputError
from scatlas.io import open_counts
from tests.helpers.layout_arrays import H5_CODECS, ZARR2, ZARR3
from tests.helpers.layouts import (
    INCOMPLETE,
    LAYOUTS,
    PARTS,
    Layout,
    Plain,
    assert_block,
    assert_rows,
    frames,
    native,
    plate,
    read_reference,
    read_rows,
    write,
)

# Of a plate of 31 cells with 7 values each: blocks of one cell, and all in one; ranges of several
# are drawn. The chunks of most layouts hold 50 and 35 values.
BUDGETS = (700, "256MB")
N_CELLS, N_GENES = 31, 40
# Zarr warns of codecs that are not in its specification and of chains that read more than needed;
# the counts must come out all the same.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec disables partial"),
]


def ways(caplog: pytest.LogCaptureFixture) -> str:
    """Libraries that took the place of scatlas's own decoding, as the log tells."""
    found = {name for name in ("h5py", "zarr") if f"read through {name}" in caplog.text}
    return ", ".join(sorted(found)) or "none"


@pytest.fixture
def stored(request, tmp_path) -> tuple[Path, Plain]:
    """A plate in the layout that the test names, and its arrays."""
    path = write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[request.param])
    return path, read_reference(path)


@pytest.mark.parametrize("stored", LAYOUTS, indirect=True)
def test_every_layout(stored, caplog, record_property):
    path, wanted = stored
    obs, var = frames(N_CELLS, N_GENES)
    with caplog.at_level(logging.INFO):
        for budget in BUDGETS:
            lazy = sa.read_lazy(path, block_budget=budget)
            assert lazy.X.dtype == native(wanted.data.dtype)
            assert_block(lazy.X.compute(scheduler="threads"), wanted)
        assert lazy.X.numblocks == (1, 1)
        with open_counts(path) as source:
            assert_rows(read_rows(source, 0, N_CELLS), wanted, 0, N_CELLS)
            rng = np.random.default_rng(0)
            for first, stop in np.sort(rng.integers(0, N_CELLS + 1, (12, 2))):
                assert_rows(read_rows(source, first, stop), wanted, first, stop)
            np.testing.assert_array_equal(source.matrix.indptr, wanted.indptr)
    pd.testing.assert_frame_equal(lazy.obs, obs)
    pd.testing.assert_frame_equal(lazy.var, var)
    record_property("read through", ways(caplog))


# One of each kind: filters of HDF5 and of plugins, indices of chunks, Zarr's codecs and shards.
SOME = [
    *("h5-shuffle+gzip", "h5-lzf", "h5-zstd", "h5-contiguous", "h5-backwards-latest"),
    *("h5-masked-gzip", "h5-small-chunks-latest", "h5-virtual"),
    *("z2-default", "z2-gzip", "z2-delta", "zarr2-holes-of-ones", "z3-default", "z3-big-none"),
    *("z3-sharded-blosc+crc32c", "z3-shard-index-first-gzip", "z3-small-shards"),
    *("z3-shard-in-shard", "z3-anndata-sharded"),
]


@pytest.mark.parametrize("stored", SOME, indirect=True)
def test_passes_at_the_same_time(stored):
    """Four threads over one lazy X, four over separate sources, in opposite directions."""
    path, wanted = stored
    x = sa.read_lazy(path, block_budget=BUDGETS[0]).X

    def lazy(_: int) -> None:
        # Options of the call: dask's settings are one process', and threads would mix them up.
        assert_block(x.compute(scheduler="threads", num_workers=3), wanted)

    def ranges(step: int) -> None:
        with open_counts(path) as source:
            for first in range(0, N_CELLS, 3)[::step]:
                stop = min(first + 4, N_CELLS)
                assert_rows(read_rows(source, first, stop), wanted, first, stop)

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(lazy, i) for i in range(4)]
        jobs += [pool.submit(ranges, step) for step in (1, -1, 1, -1)]
        for job in jobs:
            job.result()


@pytest.mark.parametrize("stored", SOME, indirect=True)
def test_one_source_for_several_threads(stored):
    path, wanted = stored
    with open_counts(path) as source, ThreadPoolExecutor(4) as pool:
        spans = [(first, min(first + 5, N_CELLS)) for first in range(N_CELLS)]
        for span, rows in zip(spans, pool.map(lambda s: read_rows(source, *s), spans), strict=True):
            assert_rows(rows, wanted, *span)


@pytest.mark.parametrize("stored", SOME, indirect=True)
def test_after_a_pass_was_abandoned(stored):
    path, wanted = stored
    x = sa.read_lazy(path, block_budget=BUDGETS[0]).X
    assert x.numblocks[0] > 5
    blocks = stream(x)
    for _ in range(3):
        next(blocks)
    blocks.close()
    again = list(stream(x))
    assert_block(sp.vstack(again, format="csr", dtype=x.dtype), wanted)
    assert_block(x.compute(), wanted)
    middle = x.blocks[2].compute()
    np.testing.assert_array_equal(middle.toarray(), again[2].toarray())


CHUNKS = (300_000, 40_000, 1000)
LARGE = [
    Layout("large-gzip", "h5ad", "shuffle+gzip", CHUNKS),
    Layout("large-flat", "h5ad", storage="contiguous"),
    Layout("large-chunked", "h5ad", chunks=CHUNKS, dtypes=("<f4", "<i8", "<i8")),
    Layout("large-blosc", "zarr3", "blosc-lz4-shuffle", CHUNKS, "sharded"),
    Layout("large-none", "zarr2", "none", CHUNKS, dtypes=("|u1", "<u2", "<i8")),
]


@pytest.fixture(scope="module")
def large() -> sp.csr_matrix:
    """Two million values: blocks whose memory is worth keeping for the next block."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 2000, 2000)
    indptr = np.r_[0, np.cumsum(lengths)]
    indices = np.arange(indptr[-1]) - np.repeat(indptr[:-1], lengths)
    return sp.csr_matrix((rng.integers(1, 200, indptr[-1]), indices, indptr), (2000, 3000))


@pytest.mark.parametrize("layout", LARGE, ids=lambda layout: layout.name)
def test_large_blocks_share_no_memory(large, tmp_path, layout):
    """Values stay as they are while other blocks are read, also where only a view is left."""
    path = write(large, tmp_path, layout)
    wanted = read_reference(path)
    np.testing.assert_array_equal(wanted.data, large.data)
    x = sa.read_lazy(path, block_budget="16MB").X
    assert x.numblocks[0] > 6
    for budget in ("16MB", "5MB", "256MB"):
        assert_block(sa.read_lazy(path, block_budget=budget).X.compute(), wanted)
    views = [(block.data[5:].view(), block.indices[:-5].view()) for block in stream(x)]
    again = list(stream(x))
    assert_block(sp.vstack(again, format="csr", dtype=x.dtype), wanted)
    for (data, indices), block in zip(views, again, strict=True):
        np.testing.assert_array_equal(data, block.data[5:])
        np.testing.assert_array_equal(indices, block.indices[:-5])
    with open_counts(path) as source:
        rows = [read_rows(source, first, first + 500) for first in range(0, 2000, 500)]
        for first, block in zip(range(0, 2000, 500), rows, strict=True):
            assert_rows(block, wanted, first, first + 500)


def test_incomplete_file(tmp_path):
    """No writer leaves out a chunk that holds one value only, as Zarr does: it was interrupted."""
    path = write(plate(N_CELLS, N_GENES), tmp_path, INCOMPLETE)
    with h5py.File(path) as file:
        assert file["X/data"].id.get_num_chunks() < -(-file["X/data"].size // 7)
    x = sa.read_lazy(path, block_budget=BUDGETS[0]).X
    with pytest.raises(InputError, match=r"X/data of cells .* was never written"):
        x.compute()
    with open_counts(path) as source, pytest.raises(InputError, match="was never written"):
        read_rows(source, 0, N_CELLS)


@pytest.mark.parametrize("name", ["h5-chunked", "z3-none"])
def test_offsets_whose_differences_overflow(tmp_path, name):
    """Differences of int64 wrap around: these offsets seem to rise, and end where they should."""
    path = write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[name])
    with h5py.File(path, "r+") if path.is_file() else nullcontext(zarr.open(path)) as root:
        root["X/indptr"][7:9] = np.array([2**63 - 1, -2])
    wanted = "X/indptr falls from 9223372036854775807 to -2 at cell 7"
    with pytest.raises(InputError, match=wanted):
        open_counts(path)
    with pytest.raises(InputError, match=wanted):
        sa.read_lazy(path)


# -- any layout ----------------------------------------------------------------------------------

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
    """Whether chunks of an HDF5 file were never written, and reading it ends with these words."""
    if path.suffix != ".h5ad":
        return False
    with h5py.File(path) as file:
        arrays = [file["X"][part] for part in PARTS]
        if not any(a.chunks and a.id.get_num_chunks() < -(-a.size // a.chunks[0]) for a in arrays):
            return False
    try:
        sa.read_lazy(path).X.compute()
    except InputError as error:
        return "was never written" in str(error)
    return False


examples = given(
    layout=layouts(),
    x=matrices(),
    budget=st.sampled_from([1, 300, 1_500, 10_000, "1MB"]),
    data=st.data(),
)


@pytest.mark.slow
@settings(max_examples=20)
@examples
def test_any_layout_matrix_and_budget(tmp_path_factory, layout, x, budget, data):
    """Random layouts, matrices and cuts."""
    check(tmp_path_factory, layout, x, budget, data)


@pytest.mark.slow
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
    if refuses_holes(path):
        return
    lazy = sa.read_lazy(path, block_budget=budget)
    assert_block(lazy.X.compute(), wanted)
    with open_counts(path) as source:
        for _ in range(3):
            first = data.draw(st.integers(0, x.shape[0]))
            stop = data.draw(st.integers(first, x.shape[0]))
            assert_rows(read_rows(source, first, stop), wanted, first, stop)


# -- the layouts are what they say ---------------------------------------------------------------

# How HDF5 stores the arrays, signatures of its indices of chunks (B-tree, fixed and extensible
# array; the last two have none), and those that are absent.
SIGNS = {
    "h5-chunked": ("CHUNKED", b"TREE", b"FAHD"),
    "h5-chunked-latest": ("CHUNKED", b"FAHD", b"TREE"),
    "h5-resizable-latest": ("CHUNKED", b"EAHD", b"TREE"),
    "h5-early-latest": ("CHUNKED", b"OHDR", b"FAHD"),
    "h5-one-chunk-latest": ("CHUNKED", b"OHDR", b"FAHD"),
    **{f"h5-{name}": (name.upper(), b"", None) for name in ("contiguous", "compact", "virtual")},
    "h5-external": ("CONTIGUOUS", b"", None),
}


@pytest.mark.parametrize("name", SIGNS)
def test_storage_of_the_arrays(tmp_path, name):
    kind, there, absent = SIGNS[name]
    path = write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[name])
    # obs and var have resizable arrays of no chunk or one.
    assert there in path.read_bytes()
    assert absent is None or absent not in path.read_bytes()
    with h5py.File(path) as file:
        for part in PARTS:
            layout = file["X"][part].id.get_create_plist().get_layout()
            assert layout == getattr(h5py.h5d, kind)
            assert bool(file["X"][part].external) == (name == "h5-external")


def test_places_of_the_chunks(tmp_path):
    for name in ("h5-backwards-gzip", "h5-masked-gzip"):
        with h5py.File(write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[name])) as file:
            stored = file["X/data"].id
            chunks = [stored.get_chunk_info(i) for i in range(stored.get_num_chunks())]
        if name == "h5-masked-gzip":
            assert {chunk.filter_mask for chunk in chunks} == {0, 1, 2, 3}
        else:  # the last ones may lie in gaps between the others
            offsets = [chunk.byte_offset for chunk in chunks]
            assert offsets[0] > offsets[-1]
            assert sum(a > b for a, b in pairwise(offsets)) >= 3
