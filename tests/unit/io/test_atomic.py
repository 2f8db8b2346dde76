"""Outputs that exist whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.checksums import checksum


def fill(folder: Path, text: str) -> None:
    (folder / "c").mkdir(parents=True)
    (folder / "zarr.json").write_text("{}")
    (folder / "c" / "0").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_file_appears_when_complete(tmp_path):
    final = tmp_path / "new" / "a.txt"
    with atomic_path(final) as partial:
        assert partial.parent == final.parent
        partial.write_text("1")
        assert not final.exists()
    assert final.read_text() == "1"
    with atomic_path(final) as partial:
        partial.write_text("2")
        assert final.read_text() == "1"
    assert final.read_text() == "2"
    assert names(final.parent) == ["a.txt"]


@pytest.mark.parametrize("before", ["absent", "empty", "half", "store", "file", "link"])
def test_folder_replaces_whatever_is_there(tmp_path, before):
    final = tmp_path / "a.zarr"
    if before in {"empty", "half"}:
        final.mkdir()
    if before == "half":
        (final / ".snakemake_timestamp").write_text("")
        (final / "X").mkdir()
    if before == "store":
        fill(final, "old")
        (final / "c" / "1").write_text("old")
    if before == "file":
        final.write_text("old")
    if before == "link":
        fill(tmp_path / "elsewhere", "other")
        final.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with atomic_path(final) as partial:
        fill(partial, "new")
    assert names(final) == ["c", "zarr.json"]
    assert names(final / "c") == ["0"]
    assert (final / "c" / "0").read_text() == "new"
    if before == "link":
        assert (tmp_path / "elsewhere" / "c" / "0").read_text() == "other"
        assert names(tmp_path) == ["a.zarr", "elsewhere"]
    else:
        assert names(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_leaves_nothing_new(tmp_path, error):
    final = tmp_path / "a.zarr"
    fill(final, "old")
    before = checksum(final)

    def write() -> None:
        with atomic_path(final) as partial:
            fill(partial, "new")
            raise error

    with pytest.raises(error):
        write()
    assert names(tmp_path) == ["a.zarr"]
    assert checksum(final) == before


def test_body_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a"):
        pass
    assert names(tmp_path) == []


def test_leftovers_of_a_killed_run_are_removed_first(tmp_path):
    fill(tmp_path / ".a.zarr.partial", "leftover")
    fill(tmp_path / ".a.zarr.old", "leftover")
    with atomic_path(tmp_path / "a.zarr") as partial:
        assert names(tmp_path) == []
        fill(partial, "new")
    assert names(tmp_path) == ["a.zarr"]


WRITE = """
import sys, time
import numpy as np, scipy.sparse as sp
from scatlas.io.matrices.csr_writer import CsrWriter
import scatlas.io.zarr_writer.sharded_array as shards

shards.CHUNK_VALUES, shards.SHARD_VALUES = 64, 128
x = sp.random(200, 50, 0.3, format="csr", random_state=0)
x.data = np.ceil(x.data * 300)
with CsrWriter(sys.argv[1], n_vars=50) as store:
    for i in range(200):
        store.append(x[i : i + 1])
        if i == 150 and len(sys.argv) > 2:
            print("half", flush=True)
            time.sleep(60)
"""


def test_sigkill_in_the_middle_of_a_store(tmp_path):
    """A killed job leaves nothing that looks finished, and the next run gives the same bytes."""
    script = tmp_path / "write.py"
    script.write_text(WRITE)
    store = tmp_path / "out" / "counts.zarr"
    undisturbed = tmp_path / "undisturbed" / "counts.zarr"
    subprocess.run([sys.executable, script, undisturbed], check=True)

    store.mkdir(parents=True)  # as Snakemake does for an output inside the store
    with subprocess.Popen(
        [sys.executable, script, store, "slowly"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b"half\n"
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert names(store) == []
    partial = store.with_name(".counts.zarr.partial")
    assert any((partial / "X" / "data").rglob("*"))  # it was in the middle of writing
    assert not (partial / "zarr.json").exists()

    subprocess.run([sys.executable, script, store], check=True)
    assert names(store.parent) == ["counts.zarr"]
    assert checksum(store) == checksum(undisturbed)
