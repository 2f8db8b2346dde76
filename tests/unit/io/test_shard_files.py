"""Runs of encoded chunks land in the same place whichever thread brings them first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from scatlas.io.zarr_writer import shard_files
from scatlas.io.zarr_writer.shard_files import EncodedRun, ShardFiles
from tests.helpers.files import files, n_open

CHUNKS = 8


def runs(seed: int) -> list[EncodedRun]:
    """Runs of one to four chunks, none across a shard, with the last shard incomplete."""
    rng = np.random.default_rng(seed)
    found, n_chunks = [], 0
    while n_chunks < 5 * CHUNKS - 3:
        n = min(int(rng.integers(1, 5)), CHUNKS - n_chunks % CHUNKS)
        sizes = rng.integers(1, 50_000, n).tolist()
        found.append(EncodedRun(rng.bytes(sum(sizes)), sizes, [n_chunks + i for i in range(n)]))
        n_chunks += n
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_arrival_does_not_show(tmp_path: Path, seed: int):
    wanted = ShardFiles(tmp_path / "in_order", CHUNKS, 1)
    for number, run in enumerate(runs(seed)):
        wanted.put(number, run)
    wanted.finish()
    shards = ShardFiles(tmp_path / "shuffled", CHUNKS, 1)
    numbers = np.random.default_rng(100 + seed).permutation(len(runs(seed)))
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(shards.put, int(i), runs(seed)[i]) for i in numbers]
    for future in done:
        future.result()
    shards.finish()

    assert files(tmp_path / "shuffled") == files(tmp_path / "in_order")
    assert len(files(tmp_path / "shuffled")) == 5
    assert shards.sizes == wanted.sizes
    assert shards.checksums == wanted.checksums == list(range(len(wanted.checksums)))
    assert n_open(tmp_path) == 0


def test_abandoned_files_are_closed(tmp_path: Path):
    shards = ShardFiles(tmp_path / "x", CHUNKS, 1)
    shards.put(0, EncodedRun(b"abc", [3], [0]))
    shards.put(2, EncodedRun(b"late", [4], [2]))
    assert files(tmp_path / "x") == {"c/0": b"abc"}, "the run before it is missing"
    shards.abandon()
    assert n_open(tmp_path) == 0


def test_the_disk_writes_large_files_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shard_files, "_LARGE_FILE", 100)
    begun: list[int] = []
    monkeypatch.setattr(shard_files, "begin_to_write", lambda file: begun.append(file))
    shards = ShardFiles(tmp_path, 1, 1)
    for number, size in enumerate((1000, 10, 1000)):
        shards.put(number, EncodedRun(bytes(size), [size], [number]))
    assert len(begun) == 2
