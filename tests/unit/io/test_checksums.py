"""Checksums and the JSON files between steps."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.compute.threads import use_threads
from scatlas.io.files import checksums
from scatlas.io.files.checksums import checksum, write_json
from scatlas.io.matrices.csr_writer import CsrWriter


def store(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


FILES = {"zarr.json": "{}", "X/c/0": "abc", "X/c/1": "abd"}


def test_checksum_of_a_file_is_blake2b(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    # b2sum -l 128
    assert checksum(tmp_path / "abc") == "cf4ab791c62b8d2b2109c90275287816"


def test_checksum_of_a_large_file_is_that_of_its_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(checksums, "_PART_BYTES", 4096)
    monkeypatch.setattr(checksums, "_READ_BYTES", 1024)
    parts = [bytes([i]) * 4096 for i in range(5)] + [b"last"]
    (tmp_path / "x").write_bytes(b"".join(parts))

    def digest(data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16).digest()

    expected = digest(b"".join(map(digest, parts))).hex()
    for n_threads in (1, 3):
        with use_threads(n_threads):
            assert checksum(tmp_path / "x") == expected
    (tmp_path / "x").write_bytes(parts[0])
    assert checksum(tmp_path / "x") == digest(parts[0]).hex()


def test_checksum_of_a_folder_depends_on_data_only(tmp_path):
    first = checksum(store(tmp_path / "a", FILES))
    second = store(tmp_path / "b", dict(reversed(FILES.items())))
    (second / ".snakemake_timestamp").write_text("")
    (second / "X" / "empty").mkdir()
    # The record of the run is no part of the data.
    store(second, {"uns/scatlas/zarr.json": "{}", "uns/scatlas/config/c": "abc"})
    os.utime(second / "zarr.json", (0, 0))
    assert checksum(second) == first
    store(second, {"uns/scatlas2/c": "abc"})
    assert checksum(second) != first


@pytest.mark.parametrize(
    "change",
    [{"X/c/1": "abe"}, {"X/c/2": ""}, {"zarr.json": "{ }"}, {"X/c/1": None, "X/c/2": "abd"}],
)
def test_checksum_of_a_folder_sees_changes(tmp_path, change):
    first = checksum(store(tmp_path / "a", FILES))
    files = {name: text for name, text in (FILES | change).items() if text is not None}
    assert checksum(store(tmp_path / "b", files)) != first
    with pytest.raises(FileNotFoundError):
        checksum(tmp_path / "absent")


def test_checksum_of_a_store_sees_each_value(tmp_path, monkeypatch):
    """Although it reads only the checksums of the chunks."""
    x = sp.random(60, 20, 0.5, format="csr", rng=np.random.default_rng(0))
    x.data = np.ceil(x.data * 9)
    monkeypatch.setattr("scatlas.io.zarr_writer.sharded_array.CHUNK_VALUES", 64)
    monkeypatch.setattr("scatlas.io.zarr_writer.sharded_array.SHARD_VALUES", 256)

    def stored(name, x):
        with CsrWriter(tmp_path / name, n_vars=20) as writer:
            writer.append(x)
        return checksum(tmp_path / name)

    first = stored("a.zarr", x)
    assert stored("b.zarr", x) == first
    for at in (0, 100, 255, 256, x.nnz - 1):
        changed = x.copy()
        changed.data[at] += 1
        assert stored("c.zarr", changed) != first
    whole = []
    read = checksums._blake2b
    monkeypatch.setattr(checksums, "_blake2b", lambda file: whole.append(file) or read(file))
    checksum(tmp_path / "a.zarr")
    assert whole
    assert not [file for file in whole if "X/data/c/" in str(file)]


def test_json_is_stable_and_plain(tmp_path):
    mapping = {
        "b": np.float64(0.1),
        "a": np.int64(2**40),
        "list": (np.arange(2), np.bool_(True)),
        "path": tmp_path,
        "nan": float("nan"),
        "gene": "β-actin",
    }
    write_json(tmp_path / "m.json", mapping)
    text = (tmp_path / "m.json").read_text()
    assert text.endswith("}\n")
    assert list(json.loads(text)) == sorted(mapping)
    assert json.loads(text) == {
        "a": 2**40,
        "b": 0.1,
        "gene": "β-actin",
        "list": [[0, 1], True],
        "nan": None,
        "path": str(tmp_path),
    }
    write_json(tmp_path / "n.json", dict(reversed(mapping.items())))
    assert (tmp_path / "n.json").read_bytes() == (tmp_path / "m.json").read_bytes()


def test_json_refuses_what_it_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match="set has no JSON form"):
        write_json(tmp_path / "m.json", {"a": {1}})
    assert list(tmp_path.iterdir()) == []
