"""Plates that hold the cells of another plate, found by a sample of names and numbers of genes."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.tables.cell_names import SharedCells

N = 60_000
WELLS = np.array([f"c{i:06}" for i in range(N)], dtype=object)


def compared(**plates: tuple[np.ndarray, np.ndarray]) -> list[tuple[str, str]]:
    """Plates whose cells are on another plate, by the sentences."""
    cells = SharedCells()
    for plate, (names, n_genes) in plates.items():
        parts = np.array_split(np.arange(names.size), 3)
        cells.add(plate, [(EncodedText.encode(names[i]), n_genes[i]) for i in parts])
    said = cells.sentences().items()
    return [(plate, re.search(r"on plate (\w+), too", text)[1]) for plate, text in said]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_filtered_cells_are_in_the_unfiltered_plate_in_any_order(rng: np.random.Generator):
    n_genes = rng.integers(0, 3000, N)
    few = np.sort(rng.permutation(N)[:3000])
    filtered = WELLS[few], n_genes[few]
    raw = WELLS, n_genes
    assert compared(a=filtered, b=raw) == [("a", "b")]
    assert compared(b=raw, a=filtered) == [("a", "b")]
    assert compared(b=raw, c=raw) == [("c", "b")], "the second of two equal ones, once"
    order = rng.permutation(few.size)
    assert compared(b=raw, a=(filtered[0][order], filtered[1][order])) == [("a", "b")]


def test_other_cells_with_the_same_names_are_other_cells(rng: np.random.Generator):
    """Wells of sublibraries, barcodes of a whitelist in raw matrices, numbers as names."""
    wells = {f"p{i}": (WELLS, rng.integers(300, 3000, N)) for i in range(4)}
    assert compared(**wells) == []
    empty = {f"p{i}": (WELLS, rng.poisson(1, N)) for i in range(3)}
    assert compared(**empty) == [], "droplets without a cell"
    assert compared() == []
    one = np.array(["cell"], object), np.array([20])
    assert compared(a=one, b=one) == [], "too few to say so"


def test_half_of_the_cells_are_not_nearly_all(rng: np.random.Generator):
    n_genes = rng.integers(300, 3000, N)
    half = np.where(np.arange(N) % 2, n_genes, n_genes + 1)
    assert compared(a=(WELLS, n_genes), b=(WELLS, half)) == []
    most = np.where(np.arange(N) % 20, n_genes, n_genes + 1)
    assert compared(a=(WELLS, n_genes), b=(WELLS, most)) == [("b", "a")]


def test_barcodes_of_other_counts_are_the_same_cells(rng: np.random.Generator):
    """CellBender's output beside Cell Ranger's; two runs share 1% of a whitelist."""
    letters = np.array(["".join(rng.choice(list("ACGT"), 16)) + "-1" for _ in range(3000)], object)
    counted = rng.integers(300, 3000, letters.size)
    fewer = counted - rng.integers(1, 90, letters.size)
    assert compared(a=(letters, counted), b=(letters[:2000], fewer[:2000])) == [("b", "a")]
    assert compared(a=(letters[:1000], counted[:1000]), b=(letters[900:], fewer[900:])) == []
