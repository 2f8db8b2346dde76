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

import scatlas as sa
from scatlas.blocks import stream
from scatlas.errors import InputError
from scatlas.io import open_counts
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

# Of a plate of 31 cells with 7 values each: blocks of one cell, of several, and all in one; the
# chunks of most layouts hold 50 and 35 values.
BUDGETS = (700, 4_000, "256MB")
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


# -- the layouts are what they say ---------------------------------------------------------------


@pytest.mark.parametrize(
    "name, there, absent",
    [
        ("h5-chunked", b"TREE", b"FAHD"),
        ("h5-chunked-latest", b"FAHD", b"TREE"),
        ("h5-resizable-latest", b"EAHD", b"TREE"),
        ("h5-early-latest", b"OHDR", b"FAHD"),
        ("h5-one-chunk-latest", b"OHDR", b"FAHD"),
    ],
)
def test_index_of_the_chunks(tmp_path, name, there, absent):
    """B-tree, fixed array, extensible array; the last two have no index at all."""
    content = write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[name]).read_bytes()
    # obs and var have resizable arrays of no chunk or one.
    assert there in content
    assert absent not in content


def test_places_of_the_chunks(tmp_path):
    paths = {
        name: write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[name])
        for name in ("h5-backwards-gzip", "h5-masked-gzip")
    }
    with h5py.File(paths["h5-backwards-gzip"]) as file:
        stored = file["X/data"].id
        offsets = [stored.get_chunk_info(i).byte_offset for i in range(stored.get_num_chunks())]
        assert len(offsets) == 5
        assert offsets[0] > offsets[-1]  # the last ones may lie in gaps between the others
        assert sum(a > b for a, b in pairwise(offsets)) >= 3
    with h5py.File(paths["h5-masked-gzip"]) as file:
        stored = file["X/data"].id
        masks = {stored.get_chunk_info(i).filter_mask for i in range(stored.get_num_chunks())}
        assert masks == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["contiguous", "compact", "external", "virtual", "one-chunk"])
def test_arrays_in_one_piece(tmp_path, name):
    path = write(plate(N_CELLS, N_GENES), tmp_path, LAYOUTS[f"h5-{name}"])
    kind = {"external": "contiguous", "one-chunk": "chunked"}.get(name, name)
    with h5py.File(path) as file:
        for part in PARTS:
            stored = file["X"][part]
            layout = stored.id.get_create_plist().get_layout()
            assert layout == getattr(h5py.h5d, kind.upper())
            assert bool(stored.external) == (name == "external")
            assert stored.chunks == ((stored.size,) if name == "one-chunk" else None)
