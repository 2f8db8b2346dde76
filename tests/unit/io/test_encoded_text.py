"""Texts in Zarr's encoding: copied, selected and compared as Python's strings would be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numcodecs import VLenUTF8

from scatlas.io.chunks.encoded_text import EncodedText

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), max_size=30)


def encode(texts: list[str]) -> EncodedText:
    return EncodedText.encode(np.array([*texts, ""], object)[:-1])


@given(TEXTS, TEXTS, st.data())
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


@given(TEXTS, st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.data())
def test_a_suffix(texts: list[str], suffix: str, data: st.DataObject):
    changed = data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts)))
    renamed = encode(texts).with_suffix(suffix, np.array(changed, bool))
    wanted = [text + suffix * change for text, change in zip(texts, changed, strict=True)]
    assert renamed.decode().tolist() == wanted
    assert renamed.hashes().tolist() == encode(wanted).hashes().tolist()


@given(TEXTS)
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
