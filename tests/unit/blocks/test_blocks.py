"""Map, reduce and stream over row blocks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import blocks
from scatlas.arrays.kinds import is_dask
from scatlas.errors import InputError

M = sp.random(103, 17, 0.3, "csr", np.float32, np.random.default_rng(0))


def _dask(x: sp.csr_matrix, rows: tuple[int, ...]) -> da.Array:
    bounds = np.cumsum([0, *rows])
    parts = [da.from_array(x[a:b], (b - a, 17), asarray=False) for a, b in pairwise(bounds)]
    return da.concatenate(parts)


CUT = (10, 1, 40, 2, 50)


def _sums(x) -> np.ndarray:
    return np.asarray(x.astype(np.float64).sum(axis=0)).ravel()


@pytest.fixture(params=["numpy", "csr", "csc", "dask"])
def x(request: pytest.FixtureRequest):
    return {"numpy": M.toarray(), "csr": M, "csc": M.tocsc(), "dask": _dask(M, CUT)}[request.param]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_stream_yields_every_row_once_and_in_order(x, workers, monkeypatch):
    monkeypatch.setattr("scatlas.arrays.numpy_arrays.VALUES_PER_BLOCK", 100)
    rows = np.arange(103)
    with dask.config.set(num_workers=workers):
        seen = list(blocks.stream(x, lambda b, r: (b.sum(), r), rows))
    assert len(seen) > 3
    np.testing.assert_array_equal(np.concatenate([r for _, r in seen]), rows)
    np.testing.assert_allclose(sum(s for s, _ in seen), M.sum(), rtol=1e-5)


def test_reduce_gives_the_same_bits_for_any_number_of_threads(x, monkeypatch):
    monkeypatch.setattr("scatlas.arrays.numpy_arrays.VALUES_PER_BLOCK", 60)
    results = []
    for workers in (1, 2, 5):
        with dask.config.set(num_workers=workers):
            results.append(blocks.reduce(_sums, lambda parts: parts[0] + parts[1], x))
    np.testing.assert_array_equal(results[1:], results[:1] * 2)
    np.testing.assert_allclose(results[0], _sums(M), rtol=1e-12)


def test_reduce_folds_by_groups_in_row_order():
    n = 50
    x = da.from_array(np.arange(n)[:, None], chunks=(1, 1))
    tree = blocks.reduce(lambda b: str(b[0, 0]), lambda p: f"({p[0]} {p[1]})", x)
    assert tree.replace("(", "").replace(")", "").split() == [str(i) for i in range(n)]
    group = "0"
    for i in range(1, 16):
        group = f"({group} {i})"
    assert group in tree


def test_stream_keeps_few_blocks_in_memory():
    n_blocks, max_blocks, lock = 0, 0, threading.Lock()

    def load(i):
        nonlocal n_blocks, max_blocks
        with lock:
            n_blocks += 1
            max_blocks = max(max_blocks, n_blocks)
        return np.full((1, 3), i)

    x = da.map_blocks(
        lambda block_info=None: load(block_info[None]["chunk-location"][0]),
        chunks=((1,) * 60, (3,)),
        dtype=int,
        meta=np.empty((0, 0), int),
    )
    with dask.config.set(num_workers=2):
        for i, block in enumerate(blocks.stream(x)):
            assert block[0, 0] == i
            with lock:
                n_blocks -= 1
    assert max_blocks <= 4


def test_an_error_in_a_block_reaches_the_caller_and_stops_the_pass():
    calls = []

    def fail(block):
        calls.append(1)
        msg = "bad block"
        raise InputError(msg)

    x = da.zeros((100, 2), chunks=(1, 2))
    with pytest.raises(InputError, match="bad block"):
        list(blocks.stream(x, fail))
    assert len(calls) < 20


@pytest.mark.parametrize("as_mask", [True, False])
def test_select_rows_keeps_the_blocks(x, as_mask):
    mask = np.zeros(103, bool)
    mask[[0, 3, 12, 13, 49, 100, 102]] = True
    got = blocks.select_rows(x, mask if as_mask else np.flatnonzero(mask))
    if is_dask(got):
        assert got.chunks[0] == (2, 3, 2), "blocks without a selected cell are dropped"
        got = got.compute()
    got = got.toarray() if sp.issparse(got) else got
    np.testing.assert_array_equal(got, M[mask].toarray())


def test_select_rows_of_dask():
    x = _dask(M, CUT)
    assert blocks.select_rows(x, np.zeros(103, bool)).shape == (0, 17)
    with pytest.raises(InputError, match="sort"):
        blocks.select_rows(x, np.array([3, 1]))


def test_select_genes(x):
    index = np.array([5, 0, 16])
    got = blocks.select_genes(x, index)
    got = got.compute() if is_dask(got) else got
    got = got.toarray() if sp.issparse(got) else got
    np.testing.assert_array_equal(got, M.toarray()[:, index])


def test_blocks_hold_whole_cells():
    with pytest.raises(InputError, match=r"rechunk\(\{1: -1\}\)"):
        blocks.row_slices(da.zeros((4, 4), chunks=(2, 2)))


def test_map_blocks_passes_each_block_its_rows():
    x = _dask(M, CUT)
    factors = np.arange(103, dtype=np.float32)
    got = blocks.map_blocks(
        lambda b, f: sp.csr_matrix(b.multiply(f[:, None])), x, factors, dtype=np.float32
    )
    assert got.chunks == x.chunks
    np.testing.assert_allclose(got.compute().toarray(), M.toarray() * factors[:, None], rtol=1e-6)


def test_a_pool_of_the_consumer_computes_the_blocks():
    def work(i: int) -> str:
        if i == 9:
            raise ValueError("block 9")
        return threading.current_thread().name.partition("_")[0]

    with ThreadPoolExecutor(2, "own") as pool:
        assert list(blocks.map_in_order(work, 9, pool=pool)) == ["own"] * 9
        with pytest.raises(ValueError, match="block 9"):
            list(blocks.map_in_order(work, 12, pool=pool))
        assert pool.submit(int).result() == 0  # it goes on
