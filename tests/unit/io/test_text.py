"""Text of HDF5 read without libhdf5 is what libhdf5 reads; encoded text is as Python's strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import VLenUTF8

from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.tables import encodings, hdf5_strings
from scatlas.io.tables.hdf5_strings import read_strings, references_of

if TYPE_CHECKING:
    from pathlib import Path

UTF8 = h5py.string_dtype()
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def direct(dataset: h5py.Dataset, lo: int, hi: int) -> np.ndarray | None:
    references = references_of(dataset)
    if references is None:
        return None
    found = read_strings(references, dataset.file.filename, lo, hi)
    return None if found is None else found.decode()


def write(path: Path, texts: list[str], **options: object) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=np.array(texts, object), dtype=UTF8, **options)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=400),
    chunk=st.sampled_from([None, 1, 7, 64]),
    gzip=st.booleans(),
    ends=st.tuples(st.integers(0, 400), st.integers(0, 400)),
)
def test_any_text(tmp_path_factory, texts, chunk, gzip, ends):
    path = tmp_path_factory.mktemp("t") / "t.h5"
    options = {} if chunk is None else {"chunks": (min(chunk, len(texts)),)}
    write(path, texts, **options, **({"compression": "gzip", "shuffle": True} if gzip else {}))
    lo, hi = sorted(min(end, len(texts)) for end in ends)
    with h5py.File(path) as file:
        found = direct(file["t"], lo, hi)
        assert found is not None
        assert found.dtype == object
        assert found.tolist() == texts[lo:hi] == file["t"].asstr()[lo:hi].tolist()


@pytest.mark.parametrize("length", [4_000, 65_000, 70_000, 1_000_000])
def test_long_text(tmp_path, length):
    texts = ["a", "é" * length, "b", "c" * length, ""]
    write(tmp_path / "t.h5", texts)
    with h5py.File(tmp_path / "t.h5") as file:
        assert direct(file["t"], 0, 5).tolist() == texts


def test_text_that_was_written_over_and_grown(tmp_path):
    """Objects of a collection are freed and used again, out of order."""
    rng = np.random.default_rng(0)
    texts = [f"text {i}" for i in range(3_000)]
    write(tmp_path / "t.h5", texts, chunks=(100,), maxshape=(None,))
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        for i in rng.permutation(3_000)[:1_500].tolist():
            texts[i] = "x" * int(rng.integers(0, 300))
            file["t"][i] = texts[i]
        file["t"].resize((3_500,))
        file["t"][3_400] = "last"
    with h5py.File(tmp_path / "t.h5") as file:
        wanted = file["t"].asstr()[:].tolist()
        assert wanted[:3_000] == texts
        assert direct(file["t"], 0, 3_500) is None  # a chunk was never written
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["t"].resize((3_000,))
    with h5py.File(tmp_path / "t.h5") as file:
        assert direct(file["t"], 0, 3_000).tolist() == texts


def other(path: Path, kind: str) -> None:
    """Text that is left to libhdf5."""
    with h5py.File(path, "w", userblock_size=512 if kind == "user block" else 0) as file:
        values = np.array(["a", "b"], object)
        if kind == "ascii":
            file.create_dataset("t", data=values, dtype=h5py.string_dtype("ascii"))
        elif kind == "fixed":
            file.create_dataset("t", data=np.array([b"a", b"b"]))
        else:
            file.create_dataset("t", data=values, dtype=UTF8)


@pytest.mark.parametrize("kind", ["ascii", "fixed", "user block"])
def test_what_is_left_to_the_library(tmp_path, kind):
    other(tmp_path / "t.h5", kind)
    with h5py.File(tmp_path / "t.h5") as file:
        assert references_of(file["t"]) is None


def spoil(path: Path, find: bytes, replace: bytes, *, back: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    at = raw.index(find) - back
    raw[at : at + len(replace)] = replace
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "find, replace, back",
    [
        (b"needle", b"nee\0le", 0),  # where libhdf5 takes it to end
        (b"needle", b"\x09", 8),  # longer than its reference says
        (b"needle", b"\xff\xff", 16),  # another number
        (b"GCOL", b"GCOX", 0),
        (b"GCOL", b"GCOL\x02", 0),
        (b"GCOL", b"\xff" * 8, -8),  # size of the collection
    ],
)
def test_unusual_text_is_left_to_the_library(tmp_path, find, replace, back):
    write(tmp_path / "t.h5", ["one", "needle", "two"])
    with h5py.File(tmp_path / "t.h5") as file:
        assert direct(file["t"], 0, 3).tolist() == ["one", "needle", "two"]
    spoil(tmp_path / "t.h5", find, replace, back=back)
    with h5py.File(tmp_path / "t.h5") as file:
        assert direct(file["t"], 0, 3) is None


def test_text_that_is_no_utf8(tmp_path):
    write(tmp_path / "t.h5", ["one", "needle"])
    spoil(tmp_path / "t.h5", b"needle", b"\xff")
    with h5py.File(tmp_path / "t.h5") as file, pytest.raises(UnicodeDecodeError):
        direct(file["t"], 0, 2)


def test_columns_are_read_so(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(encodings, "_FEW", 2)
    monkeypatch.setattr(
        hdf5_strings, "read_strings", lambda *args: calls.append(args[2:]) or read_strings(*args)
    )
    write(tmp_path / "t.h5", ["a", "b", "c", "d"])
    with h5py.File(tmp_path / "t.h5", "r+") as file:
        file["t"].attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    with h5py.File(tmp_path / "t.h5") as file:
        stored = encodings.Stored.find(file, "t")
        assert stored.values[1:3].tolist() == ["b", "c"]  # few: by the library
        assert stored.values[0:4].tolist() == ["a", "b", "c", "d"]
    assert calls == [(0, 4)]


# -- texts in Zarr's encoding: copied, selected and compared -------------------------------------

LISTS = st.lists(TEXTS, max_size=30)


def encode(texts: list[str]) -> EncodedText:
    return EncodedText.encode(np.array([*texts, ""], object)[:-1])


@given(LISTS, LISTS, st.data())
def test_parts_and_selections(first: list[str], second: list[str], data: st.DataObject):
    both = EncodedText.join([encode(first), encode(second)])
    texts = first + second
    assert both.decode().tolist() == texts
    lo = data.draw(st.integers(0, len(texts)))
    hi = data.draw(st.integers(0, len(texts)))
    assert both[lo:hi].decode().tolist() == texts[lo:hi]
    rows = sorted(data.draw(st.sets(st.integers(0, max(0, len(texts) - 1))))) if texts else []
    picked = both[np.array(rows, np.int64)]
    assert picked.decode().tolist() == [texts[row] for row in rows]
    assert EncodedText.join([both[lo:hi], picked]).decode().tolist() == [
        *texts[lo:hi],
        *(texts[row] for row in rows),
    ]


@given(LISTS, st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.data())
def test_a_suffix(texts: list[str], suffix: str, data: st.DataObject):
    changed = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    renamed = encode(texts).with_suffix(suffix, np.array(changed, bool))
    wanted = [text + suffix * change for text, change in zip(texts, changed, strict=True)]
    assert renamed.decode().tolist() == wanted
    assert renamed.hashes().tolist() == encode(wanted).hashes().tolist()


@given(LISTS)
def test_hashes_tell_texts_apart(texts: list[str]):
    hashes = encode(texts).hashes()
    assert len(set(hashes.tolist())) == len(set(texts))
    assert encode(texts[::-1]).hashes().tolist() == hashes.tolist()[::-1]


def test_hashes_of_numbered_names_fill_all_bits():
    """Cells are sorted by the highest bits; names that differ in the last digits must spread."""
    hashes = encode([f"cell{i}" for i in range(16_000)]).hashes()
    assert len(np.unique(hashes)) == 16_000
    shares = np.bincount((hashes >> np.uint64(60)).astype(int), minlength=16) / 1000
    assert 0.85 < shares.min() < shares.max() < 1.15


def test_damaged_chunks_are_refused():
    chunk = VLenUTF8().encode(np.array(["one", "two", "three"], object))
    for damaged in (chunk[:-1], chunk[:6], b"\x09" + chunk[1:], b"\xff\xff\xff\xff" + chunk[4:]):
        with pytest.raises(ValueError, match="do not hold"):
            EncodedText.of_chunk(bytes(damaged))
    with pytest.raises(UnicodeDecodeError):
        EncodedText.of_chunk(bytes(chunk).replace(b"two", b"tw\xff"))
