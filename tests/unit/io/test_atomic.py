"""Outputs that exist whole or not at all."""

from __future__ import annotations

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
    final, elsewhere = tmp_path / "a.zarr", tmp_path / "elsewhere"
    if before == "empty":
        final.mkdir()
    elif before == "half":
        (final / "X").mkdir(parents=True)
        (final / ".snakemake_timestamp").write_text("")
    elif before == "store":
        fill(final, "old")
        (final / "c" / "1").write_text("old")
    elif before == "file":
        final.write_text("old")
    elif before == "link":
        fill(elsewhere, "other")
        final.symlink_to(elsewhere, target_is_directory=True)
    with atomic_path(final) as partial:
        fill(partial, "new")
    assert names(final) == ["c", "zarr.json"]
    assert names(final / "c") == ["0"]
    assert (final / "c" / "0").read_text() == "new"
    assert names(tmp_path) == ["a.zarr", *["elsewhere"] * (before == "link")]
    if before == "link":
        assert (elsewhere / "c" / "0").read_text() == "other"


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
