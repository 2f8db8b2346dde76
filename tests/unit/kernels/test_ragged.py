"""Lists of tokens and values to CSR: the same as a sum by NumPy, in any order and width."""

from __future__ import annotations

import numpy as np
import pytest

from scatlas.kernels.counts.ragged_cpu import Lists, Marker, RaggedToCsr


def ragged(rng: np.random.Generator, n_genes: int, lengths: list[int], top: int) -> Lists:
    """Cells with these numbers of entries behind the marker, some for a gene that was there."""
    offsets = np.cumsum([0, *(n + 1 for n in lengths)])
    tokens = rng.integers(0, n_genes, offsets[-1]) + 3
    values = rng.integers(1, top, offsets[-1]).astype(np.float32)
    tokens[offsets[:-1]], values[offsets[:-1]] = 1, -2
    return Lists(tokens, values, offsets)


def convert(parts: list[Lists], n_genes: int, dtype: type = np.uint8) -> RaggedToCsr:
    table = np.full(n_genes + 3, 2**32 - 1, np.uint32)
    table[3:] = np.arange(n_genes)
    n_cells, n_entries = (sum(len(p[i]) for p in parts) for i in (2, 0))
    made = RaggedToCsr(n_cells, n_entries, table, n_genes, marker=Marker(1, -2), dtype=dtype)
    for part in parts:
        assert made.append(part) is None
    return made


@pytest.mark.parametrize(("n_genes", "top"), [(7, 9), (700, 200), (2**16 + 5, 40_000), (64, 2**20)])
def test_equals_a_sum_by_numpy(n_genes: int, top: int):
    rng = np.random.default_rng(0)
    lengths = [[0], [], [3, 0, n_genes // 2], [min(5 * n_genes, 3000), 1]]
    parts = [ragged(rng, n_genes, part, top) for part in lengths]
    block = convert(parts, n_genes).block()
    dense, n_entries = np.zeros((6, n_genes), np.int64), 0
    cells = [(p, i) for p in parts for i in range(p.offsets.size - 1)]
    for row, (part, i) in zip(dense, cells, strict=True):
        own = slice(part.offsets[i] + 1, part.offsets[i + 1])
        np.add.at(row, part.tokens[own] - 3, part.values[own].astype(np.int64))
        n_entries += own.stop - own.start
    assert block.data.dtype == next(
        kind for kind in (np.uint8, np.uint16, np.uint32) if dense.max() <= np.iinfo(kind).max
    )
    assert block.indices.dtype == (np.uint16 if n_genes <= 2**16 else np.int32)
    np.testing.assert_array_equal(block.indptr, [0, *np.cumsum((dense > 0).sum(1))])
    np.testing.assert_array_equal(block.indices, np.nonzero(dense)[1])
    np.testing.assert_array_equal(block.data, dense[dense > 0])
    assert block.n_repeated == n_entries - block.indptr[-1]
    wide = convert(parts, n_genes, np.float64).block()  # as after a block with other values
    np.testing.assert_array_equal(wide.data, block.data)
    np.testing.assert_array_equal(wide.indices, block.indices)


@pytest.mark.parametrize("values", [(-5, 7), (7, -5), (0.5, 0.5), (np.nan, 1), (1, np.inf)])
def test_a_sum_does_not_hide_what_is_no_count(values: tuple[float, float]):
    part = Lists(np.array([1, 4, 4, 3]), np.array([-2, *values, 1], np.float32), np.array([0, 4]))
    found = convert([part], 5).block()
    assert found.indices.tolist() == [0, 1]
    assert found.data[1] in values or np.isnan(found.data[1])
    assert found.data[1] < 0 or not found.data[1].is_integer()


def test_a_token_without_a_gene_is_told():
    for token in (-1, 1, 2, 8, 2**40):
        part = Lists(np.array([1, 4, token]), np.array([-2, 1, 1.0]), np.array([0, 0, 3]))
        made = RaggedToCsr(4, 9, np.array([9, 9, 9, 0, 1, 2, 3, 4], np.uint16), 5)
        assert made.append(Lists(part.tokens[1:2], part.values[1:2], np.array([0, 1]))) is None
        assert made.append(part) == (1, 1)  # the marker is none here
        part.tokens[0] = 3
        assert made.append(part) == (1, token)
