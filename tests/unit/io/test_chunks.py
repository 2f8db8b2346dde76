"""Each pass decodes each chunk once, in any thread, and refuses damaged chunks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import scatlas as sa
from scatlas import blocks
from scatlas.arrays import buffer_pool
from scatlas.compute.memory import csr_blocks
from scatlas.errors import InputError
from scatlas.io import load_plate, open_counts
from scatlas.io.chunks import chunk_reader
from scatlas.io.chunks.chunked_array import SharedChunkCache
from scatlas.io.chunks.native_codecs import run_decoder
from scatlas.io.files.chunk_locations import hdf5_chunked_array
from scatlas.io.files.local_zarr import open_store
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.products.load_statistics import LoadStatistics

N_CELLS, N_GENES = 300, 90


@pytest.fixture(scope="module")
def counts() -> sp.csr_matrix:
    rng = np.random.default_rng(5)
    return sp.random(N_CELLS, N_GENES, 0.3, "csr", np.float32, rng, lambda n: rng.integers(1, 9, n))


def write(counts: sp.csr_matrix, path: Path, chunk: int, **options: object) -> Path:
    """Write a plate with values in chunks of this size, and indices in smaller ones."""
    ad.AnnData(counts).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        for part, size in (("data", chunk), ("indices", max(1, chunk - 3))):
            values = file["X"][part][:]
            del file["X"][part]
            size = min(size, values.size)
            file["X"].create_dataset(part, data=values, chunks=(size,), **options)
    return path


@pytest.fixture
def decodes(monkeypatch) -> Counter:
    """Count how often each chunk is decoded."""
    seen: Counter = Counter()
    lock = threading.Lock()
    decode_chunk, read_runs = chunk_reader._decode_chunk, chunk_reader._read_runs
    # The decoder of a run gets offsets; the numbers of the chunks follow from the run.
    runs = threading.local()

    def count_chunk(array, chunk, *rest):
        with lock:
            seen[array.key, chunk] += 1
        return decode_chunk(array, chunk, *rest)

    def note_run(array, first, stop):
        for run in read_runs(array, first, stop):
            runs.last = array.key, run
            yield run

    def count_runs(pipeline):
        decode = run_decoder(pipeline)
        if decode is None:
            return None

        def decode_run(raw, starts, *rest):
            n_decoded = decode(raw, starts, *rest)
            key, run = runs.last
            with lock:
                for start in starts[:n_decoded]:
                    seen[key, run.first + int(np.searchsorted(run.starts, start))] += 1
            return n_decoded

        return decode_run

    monkeypatch.setattr(chunk_reader, "_decode_chunk", count_chunk)
    monkeypatch.setattr(chunk_reader, "_read_runs", note_run)
    monkeypatch.setattr(chunk_reader, "run_decoder", count_runs)
    return seen


def all_decoded_once(path: Path, seen: Counter) -> bool:
    with h5py.File(path) as file:
        expected = {
            (f"X/{part}", i)
            for part in ("data", "indices")
            for i in range(file["X"][part].id.get_num_chunks())
        }
    return seen == Counter(expected)


# Chunks smaller than a block, about as large, and of several blocks.
@pytest.mark.parametrize("chunk", [50, 700, 100_000])
@pytest.mark.parametrize("threads", [1, 5])
def test_load_decodes_each_chunk_of_the_source_once(counts, tmp_path, decodes, chunk, threads):
    path = write(counts, tmp_path / "p.h5ad", chunk, compression="gzip")
    with sa_threads(threads):
        load_plate(path, tmp_path / "counts.zarr", plate="p", mt_prefix=None, block_budget="50kB")
    assert all_decoded_once(path, decodes)
    np.testing.assert_array_equal(
        ad.read_zarr(tmp_path / "counts.zarr").X.toarray(), counts.toarray()
    )


@pytest.mark.parametrize("chunk", [50, 700, 100_000])
def test_a_pass_over_lazy_blocks_decodes_each_chunk_once(counts, tmp_path, decodes, chunk):
    path = write(counts, tmp_path / "p.h5ad", chunk, compression="gzip")
    x, _ = read_matrix(path, block_budget="50kB")
    assert x.numblocks[0] > 10
    with sa_threads(4):
        found = sp.vstack(list(blocks.stream(x)))
    np.testing.assert_array_equal(found.toarray(), counts.toarray())
    assert all_decoded_once(path, decodes)
    # Passes of other tests that stopped early may have left entries.
    assert not [key for key in chunk_reader._shared_chunks._entries if key[0].path == str(path)]


def sa_threads(n: int):
    import dask

    return dask.config.set(num_workers=n)


def test_rows_of_a_block_too_large_for_int32_indices_stay_exact(counts, tmp_path):
    """An index beyond 2^32 must not wrap to a gene."""
    path = write(counts, tmp_path / "p.h5ad", 100)
    with h5py.File(path, "r+") as file:
        indices = file["X/indices"][:].astype(np.int64)
        indices[500] += 2**32
        del file["X/indices"]
        file["X"].create_dataset("indices", data=indices, chunks=(64,), compression="gzip")
    with pytest.raises(InputError, match=r"hold 42949673\d\d, but must be 0 to 89"):
        sa.read_lazy(path).X.compute()


@pytest.mark.parametrize("side_by_side", [True, False])
def test_uncompressed_chunks_that_lie_side_by_side_are_read_at_once(
    tmp_path, monkeypatch, side_by_side
):
    """A call per chunk would release and take the interpreter's lock a hundred times per block."""
    values = np.arange(1000, dtype=np.int32)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        if side_by_side:
            file.create_dataset("x", data=values, chunks=(64,))
        else:
            x = file.create_dataset("x", (1000,), np.int32, chunks=(64,))
            other = file.create_dataset("other", (1000,), np.int32, chunks=(64,))
            for start in range(0, 1000, 64):
                x[start : start + 64] = values[start : start + 64]
                file.flush()  # HDF5 allocates the chunk now
                other[start : start + 64] = 1
                file.flush()
    with h5py.File(tmp_path / "x.h5") as file:
        array = hdf5_chunked_array(str(tmp_path / "x.h5"), "x", file["x"])
    assert array.is_raw
    apart = 1 + np.count_nonzero(np.diff(array.locations.offsets) != 64 * 4)
    assert apart < 5 if side_by_side else apart == 16
    calls, fill = [], chunk_reader._fill
    monkeypatch.setattr(chunk_reader, "_fill", lambda *args: calls.append(args) or fill(*args))
    for begin, end in [(0, 1000), (1, 999), (63, 65), (64, 128), (100, 110), (5, 5), (990, 1000)]:
        np.testing.assert_array_equal(
            chunk_reader.read_values(array, begin, end, dtype=np.int32), values[begin:end]
        )
    calls.clear()
    chunk_reader.read_values(array, 0, 1000, dtype=np.int32)
    assert len(calls) == apart


def test_chunks_of_a_zarr_array_that_were_never_written_hold_its_fill_value(tmp_path):
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    x = group.create_array("x", shape=(50,), chunks=(10,), dtype="int32", fill_value=7,
                           compressors=None)  # fmt: skip
    x[10:30], x[40:] = 1, 2
    array = open_store(tmp_path / "x.zarr")["x"].chunked_array
    assert array.is_raw
    expected = np.repeat([7, 1, 1, 7, 2], 10)
    for begin, end in [(0, 50), (5, 35), (12, 18), (31, 39), (3, 9)]:
        np.testing.assert_array_equal(
            chunk_reader.read_values(array, begin, end, dtype=np.int32), expected[begin:end]
        )


def test_blocks_cut_by_rows_need_no_more_than_their_own_chunks(counts, tmp_path):
    import pickle

    path = write(counts, tmp_path / "p.h5ad", 10, compression="gzip")
    with open_counts(path) as source:
        rows = source.row_blocks(csr_blocks(source.matrix.indptr, 50_000))
    for block in rows:
        assert len(pickle.dumps(block)) < 8000
    again = pickle.loads(pickle.dumps(rows[3])).read()
    np.testing.assert_array_equal(
        again.toarray(), counts[rows[3].first : rows[3].first + rows[3].n_rows].toarray()
    )


def test_shared_chunks_are_decoded_once_for_concurrent_callers():
    cache, decoded = SharedChunkCache(), []

    def decode() -> np.ndarray:
        time.sleep(0.05)
        decoded.append(1)
        return np.arange(5)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cache.get("chunk", 4, decode), range(4)))
    assert len(decoded) == 1
    assert all(values is found[0] for values in found)
    assert not cache._entries


def test_a_block_does_not_wait_for_the_block_before_it_first(tmp_path, monkeypatch):
    """Else a thread would wait for another that waits, and large chunks be decoded one by one."""
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    values = np.arange(30, dtype=np.int32)
    group.create_array("x", data=values, chunks=(10,))
    array = open_store(tmp_path / "x.zarr")["x"].chunked_array
    begun, decoded = threading.Event(), threading.Event()
    read_chunk = chunk_reader._read_chunk

    def slow(array: object, chunk: int) -> np.ndarray:
        if chunk == 1:  # the first thread decodes it until the second has decoded the next
            begun.set()
            assert decoded.wait(120), "the second thread waits"
        found = read_chunk(array, chunk)
        if chunk == 2:
            decoded.set()
        return found

    monkeypatch.setattr(chunk_reader, "_read_chunk", slow)

    def read(begin: int, end: int) -> np.ndarray:
        readers = (2, 2) if begin else (1, 2)
        return chunk_reader.read_values(
            array, begin, end, dtype=np.int32, owner="x", edge_readers=readers
        )

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read, 0, 15)
        assert begun.wait(120)
        second = pool.submit(read, 15, 25)
        np.testing.assert_array_equal(second.result(), values[15:25])
        np.testing.assert_array_equal(first.result(), values[:15])


def test_shared_chunks_raise_an_error_in_each_caller_and_forget_it():
    cache = SharedChunkCache()

    def fail() -> np.ndarray:
        raise OSError("disk")

    for _ in range(2):
        with pytest.raises(OSError, match="disk"):
            cache.get("chunk", 2, fail)
    assert cache.get("chunk", 1, lambda: np.ones(1)) == 1


def test_shared_chunks_that_nobody_fetches_are_evicted():
    cache = SharedChunkCache()
    for i in range(100):
        cache.get(i, 2, lambda: np.zeros(1_000_000))
    held = sum(entry.values.nbytes for entry in cache._entries.values())
    assert held <= 64_000_000


def test_memory_of_a_block_is_used_again_when_no_view_is_left(monkeypatch):
    monkeypatch.setattr(buffer_pool, "_free", [])  # else memory of other tests
    first = buffer_pool.empty(1_000_000, np.int32)
    place = first.ctypes.data
    view = first[10:20]
    del first
    other = buffer_pool.empty(1_000_000, np.int32)
    assert other.ctypes.data != place
    del view
    again = buffer_pool.empty(1_000_000, np.float32)
    assert again.ctypes.data == place
    assert again.flags.writeable


def test_a_chunk_file_that_was_written_again_is_read_again(counts, tmp_path):
    """Although a pass that stopped early has cached the old chunk."""
    path = tmp_path / "p.zarr"
    with CsrWriter(path, n_vars=N_GENES) as writer:
        writer.append(counts)
    for block in blocks.stream(read_matrix(path, block_budget="50kB")[0]):
        assert block.nnz
        break
    with CsrWriter(tmp_path / "other.zarr", n_vars=N_GENES) as writer:
        writer.append(counts * 2)
    (path / "X/data/c/0").write_bytes((tmp_path / "other.zarr/X/data/c/0").read_bytes())
    found = sp.vstack(list(blocks.stream(read_matrix(path, block_budget="50kB")[0])))
    np.testing.assert_array_equal(found.toarray(), 2 * counts.toarray())


def test_a_file_that_is_replaced_while_it_is_read_is_refused(counts, tmp_path):
    path = write(counts, tmp_path / "p.h5ad", 100, compression="gzip")
    with open_counts(path) as source:
        (block,) = source.row_blocks([(0, N_CELLS)])
        write(counts * 2, tmp_path / "new.h5ad", 70, compression="gzip").replace(path)
        with pytest.raises(InputError, match="has changed since it was opened"):
            block.raw()


def test_a_source_that_is_replaced_after_its_last_block_is_refused(counts, tmp_path, monkeypatch):
    """Its tables may come from the new file."""
    path = write(counts, tmp_path / "p.h5ad", 100, compression="gzip")
    new = write(counts, tmp_path / "new.h5ad", 70, compression="gzip")
    tell = LoadStatistics.tell
    monkeypatch.setattr(LoadStatistics, "tell", lambda *args: new.replace(path) and tell(*args))
    with pytest.raises(InputError, match="has changed since it was opened"):
        load_plate(path, tmp_path / "counts.zarr", plate="p", mt_prefix=None)
    assert not (tmp_path / "counts.zarr").exists()
