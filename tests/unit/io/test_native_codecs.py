"""Decoding a run of chunks in one call equals decoding them one by one."""

from __future__ import annotations

import gzip
import logging
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc

from scatlas.io.chunks import chunk_reader, chunked_array, native_codecs
from scatlas.io.chunks.codecs import Blosc, ChunkError, Crc32c, Deflate, Zstd, decode
from scatlas.io.files.chunk_locations import hdf5_chunked_array


def _checked(raw: bytes) -> bytes:
    return raw + crc32c(raw).to_bytes(4, "little")


PIPELINES = {
    "zlib": ((Deflate(),), lambda x: zlib.compress(x.tobytes())),
    "gzip": ((Deflate("gzip"),), lambda x: gzip.compress(x.tobytes())),
    "blosc": ((Blosc(),), lambda x: blosc.compress(x, b"lz4", 5, blosc.SHUFFLE)),
    "blosc-crc32c": (
        (Crc32c(), Blosc()),
        lambda x: _checked(blosc.compress(x, b"zstd", 5, blosc.BITSHUFFLE)),
    ),
}


@given(data=st.data(), name=st.sampled_from(sorted(PIPELINES)), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_a_run_equals_its_chunks(data, name, seed):
    """Intact or with one changed byte: the same values up to the first refused chunk."""
    pipeline, encode = PIPELINES[name]
    rng = np.random.default_rng(seed)
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "u2", "i8", "f4"])))
    n, size = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3000))
    values = rng.integers(0, 9, (n, size)).astype(dtype)
    encoded = [encode(chunk) for chunk in values]
    gaps = [bytes(rng.integers(0, 256, rng.integers(0, 9), np.uint8)) for _ in encoded]
    starts = np.cumsum([0, *(len(e) + len(g) for e, g in zip(encoded, gaps, strict=True))])[:-1]
    sizes = np.array([len(chunk) for chunk in encoded])
    raw = bytearray(b"".join(e + g for e, g in zip(encoded, gaps, strict=True)))
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    expected = []
    for start, length in zip(starts, sizes, strict=True):
        try:
            expected.append(decode(pipeline, memoryview(raw)[start : start + length], dtype, size))
        except Exception:  # noqa: BLE001 - each library has another class
            break
    out = np.full(n * size + 1, 7, dtype)
    found = native_codecs.run_decoder(pipeline)(
        np.frombuffer(raw, np.uint8), starts, sizes, out[:-1], size * dtype.itemsize
    )
    assert found == len(expected)
    for i, chunk in enumerate(expected):
        np.testing.assert_array_equal(out[i * size : (i + 1) * size], chunk)
    assert out[-1] == 7  # nothing was written beyond


def test_pipelines_without_a_run_decoder():
    assert native_codecs.run_decoder(()) is None
    assert native_codecs.run_decoder((Zstd(),)) is None
    assert native_codecs.run_decoder((Deflate(), Blosc())) is None


@pytest.fixture
def array(tmp_path) -> chunked_array.ChunkedArray:
    values = np.arange(10_000, dtype=np.int64) % 977
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(300,), compression="gzip")
    with h5py.File(tmp_path / "a.h5") as file:
        return hdf5_chunked_array(str(tmp_path / "a.h5"), "x", file["x"])


def test_without_the_symbols_chunks_are_decoded_one_by_one(array, monkeypatch, caplog):
    expected = chunk_reader.read_values(array, 100, 9_900, dtype=np.int64)

    def missing(module, name):
        raise AttributeError(f"{module}: undefined symbol: {name}")

    monkeypatch.setattr(native_codecs, "_address", missing)
    native_codecs._deflate_decoder.cache_clear()
    native_codecs._log_once.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            found = chunk_reader.read_values(array, 100, 9_900, dtype=np.int64)
    finally:
        native_codecs._deflate_decoder.cache_clear()
    assert "one by one" in caplog.text
    np.testing.assert_array_equal(found, expected)


def test_a_damaged_chunk_of_a_run_is_named(array):
    path = Path(array.locations.path)
    raw = bytearray(path.read_bytes())
    raw[int(array.locations.offsets[17]) + 30] ^= 255
    path.write_bytes(raw)
    with pytest.raises(Exception, match=r"(?i)deflate|decompress|data"):
        chunk_reader.read_values(array, 0, 10_000, dtype=np.int64)
    np.testing.assert_array_equal(
        chunk_reader.read_values(array, 0, 17 * 300, dtype=np.int64), np.arange(17 * 300) % 977
    )
    with pytest.raises(chunk_reader.IndexRangeError):
        chunk_reader.read_values(array, 0, 17 * 300, dtype=np.int64, limit=900)
    assert issubclass(chunk_reader.IndexRangeError, ChunkError)
