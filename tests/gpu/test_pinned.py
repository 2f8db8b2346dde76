"""Copies through pinned memory: every byte arrives, from many threads and streams at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

from scatlas.arrays import cupy_arrays, pinned_copies  # noqa: E402

SIZES = [
    0,
    1,
    pinned_copies._MIN_BYTES,
    pinned_copies.PIECE - 1,
    pinned_copies.PIECE,
    3 * pinned_copies.PIECE + 5,
]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["bool", "uint16", "float64"])
def test_there_and_back(rng, n, dtype):
    x = rng.integers(0, 2 if dtype == "bool" else 256, n // np.dtype(dtype).itemsize).astype(dtype)
    there = pinned_copies.to_gpu(x)
    assert isinstance(there, cp.ndarray)
    assert there.dtype == x.dtype
    np.testing.assert_array_equal(there.get(), x)
    back = pinned_copies.to_host(there)
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(back, x)


def test_any_layout(rng):
    x = rng.random((1500, 2000))
    for view in (x.T, x[::2], x[:, 3:]):
        there = cupy_arrays.on_gpu(view)
        np.testing.assert_array_equal(there.get(), view)
        np.testing.assert_array_equal(cupy_arrays.on_host(there.T), view.T)


def test_the_source_may_change_at_once():
    x = np.ones(5 * pinned_copies.PIECE, np.uint8)
    there = cupy_arrays.on_gpu(x)
    x[:] = 2
    assert int(there.min().get()) == int(there.max().get()) == 1


def test_what_is_copied_back_is_what_kernels_made():
    """The copy waits for the kernels of its stream, and only for them."""
    n = 3 * pinned_copies.PIECE

    def work(k: int) -> bool:
        x = cp.zeros(n, cp.uint8)
        for _ in range(k % 50):
            x += cp.uint8(1)
        return bool((pinned_copies.to_host(x) == k % 50).all())

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(cupy_arrays.on_own_stream(work), range(64)))


def test_many_threads(rng):
    blocks = [
        sp.random(3000, 2000 + 37 * k, 0.5, "csr", np.float32, random_state=k) for k in range(4)
    ]

    def work(k: int) -> bool:
        x = blocks[k % 4]
        back = cupy_arrays.on_host(cupy_arrays.on_gpu(x))
        parts = (x.data, back.data), (x.indices, back.indices), (x.indptr, back.indptr)
        return back.shape == x.shape and all(np.array_equal(a, b) for a, b in parts)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(cupy_arrays.on_own_stream(work), range(64)))
    assert len(pinned_copies._idle) <= pinned_copies._MAX_THREADS
