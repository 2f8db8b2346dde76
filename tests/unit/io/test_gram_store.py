from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from scatlas.compute.memory import gram_is_worth_storing
from scatlas.errors import InputError
from scatlas.io import StoredGram, write_gram
from scatlas.io.products import gram_store
from scatlas.matrix.gram import gram_stats, gram_stats_of_plates
from tests.helpers.files import files


def cells(n_cells, n_genes, seed=0):
    rng = np.random.default_rng(seed)
    x = sparse.random(n_cells, n_genes, 0.1, "csr", dtype=np.float32, rng=rng)
    return sparse.csr_matrix(x)


def write(path, x, *, stored=True):
    stats = gram_stats(x) if stored else None
    write_gram(path, n_cells=x.shape[0], n_genes=x.shape[1], stats=stats)
    return StoredGram.open(path)


@pytest.mark.parametrize(
    ("n_genes", "values_at_once"), [(1, 1), (7, 1), (300, 5000), (1000, gram_store._VALUES_AT_ONCE)]
)
def test_stored_statistics_come_back_bit_for_bit(tmp_path, monkeypatch, n_genes, values_at_once):
    monkeypatch.setattr(gram_store, "_VALUES_AT_ONCE", values_at_once)
    x = cells(50, n_genes)
    stored = write(tmp_path / "gram.zarr", x)
    expected = gram_stats(x)
    sums, upper = np.zeros(n_genes), np.zeros((n_genes, n_genes))
    stored.add_to(sums, upper)
    assert (stored.n_cells, stored.n_genes, stored.has_matrix) == (50, n_genes, True)
    np.testing.assert_array_equal(sums, expected.sums)
    np.testing.assert_array_equal(upper, np.triu(expected.gram))
    write(tmp_path / "again.zarr", x)
    assert files(tmp_path / "again.zarr") == files(tmp_path / "gram.zarr")


def test_damage_and_loss_are_refused_by_name(tmp_path):
    path = tmp_path / "gram.zarr"
    write(path, cells(80, 900))
    shard = path / "triangle/c/0"
    whole = shard.read_bytes()
    for damaged in (whole[:1000], whole[:1000] + b"\0" + whole[1001:]):
        shard.write_bytes(damaged)
        with pytest.raises(InputError, match=r"gram\.zarr"):
            StoredGram.open(path).add_to(np.zeros(900), np.zeros((900, 900)))
    shard.unlink()
    with pytest.raises(InputError, match=r"gram\.zarr"):
        StoredGram.open(path)
    with pytest.raises(InputError, match=r"absent\.zarr"):
        StoredGram.open(tmp_path / "absent.zarr")


@pytest.mark.parametrize("stored", ["000000", "111111", "010101"])
def test_components_hardly_depend_on_which_plates_store_their_matrix(tmp_path, stored):
    sizes = [700, 3, 1, 1200, 64, 500]
    plates = [cells(n, 250, seed) for seed, n in enumerate(sizes)]
    x = sparse.vstack(plates, "csr")
    found = gram_stats_of_plates(
        sparse.csr_matrix(x),
        [
            write(tmp_path / str(i), plate, stored=flag == "1")
            for i, (plate, flag) in enumerate(zip(plates, stored, strict=True))
        ],
    )
    expected = gram_stats(sparse.csr_matrix(x))
    assert found.n_cells == expected.n_cells
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-13)
    np.testing.assert_allclose(found.gram, expected.gram, rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(found.gram, found.gram.T)
    if "1" not in stored:
        np.testing.assert_array_equal(found.gram, expected.gram)


def test_other_cells_or_genes_than_the_merged_matrix_are_refused(tmp_path):
    x = cells(50, 20)
    stored = write(tmp_path / "gram.zarr", x)
    with pytest.raises(InputError, match="merged"):
        gram_stats_of_plates(cells(51, 20), [stored])
    with pytest.raises(InputError, match="merged"):
        gram_stats_of_plates(cells(50, 21), [stored])


@pytest.mark.parametrize(
    ("n_cells", "values_per_cell", "n_genes", "stored"),
    [
        (7_000_000, 1451, 2304, True),  # a plate of Tahoe-100M
        (300_000, 1451, 2000, True),
        (3_000, 1500, 7540, False),  # a droplet run
        (20_000, 2000, 2000, False),
        (0, 0, 1, False),
    ],
)
def test_large_plates_store_their_matrix(n_cells, values_per_cell, n_genes, stored):
    assert gram_is_worth_storing(n_cells, values_per_cell, n_genes) == stored


@pytest.mark.parametrize("n_genes", [300, 7540, 30_000])
def test_a_stored_matrix_is_small_beside_the_counts(n_genes):
    n_cells = range(1000, 100_000_000, 1000)
    first = next(n for n in n_cells if gram_is_worth_storing(n, 1000, n_genes))
    assert 8 * n_genes**2 / 2 <= 0.1 * 2 * first * 1000
