"""Scrublet out of core: simulated doublets without their counts, parts, captures, blocks."""

from __future__ import annotations

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
from scatlas.errors import InputError
from scatlas.matrix import doublet_scores
from scatlas.matrix import scrublet as on_matrix
from scatlas.matrix.scrublet import scrublet_of_counts
from scatlas.pp import scrublet

N, GENES, COMPS = 240, 120, 6


@pytest.fixture(scope="module")
def counts() -> sp.csr_matrix:
    """Three kinds of cells; two empty cells and one of two genes; genes of 0, 1 and 2 cells."""
    rng = np.random.default_rng(0)
    profile = rng.gamma(0.4, 1.0, (3, GENES)) * 6
    x = rng.poisson(profile[np.arange(N) % 3] * rng.lognormal(0, 0.4, (N, 1)))
    x[[0, 77]] = 0
    x[8] = 0
    x[8, [4, 50]] = 3
    x[:, [10, 11, 12, 13]] = 0
    x[20, 11] = 5
    x[[21, 200], 12] = 2
    x[[22, 23, 201], 13] = 1
    return sp.csr_matrix(x.astype(np.int32))


def scored(x, **options) -> on_matrix.Doublets:
    options = {"n_prin_comps": COMPS, "n_top_genes": 60, **options}
    return scrublet_of_counts(x, pd.Index([f"g{i}" for i in range(GENES)]), **options)


def same(a: on_matrix.Doublets, b: on_matrix.Doublets) -> None:
    np.testing.assert_array_equal(a.score, b.score)
    np.testing.assert_array_equal(a.predicted, b.predicted)
    assert list(a.captures) == list(b.captures)
    for one, other in zip(a.captures.values(), b.captures.values(), strict=True):
        np.testing.assert_array_equal(one.scores_sim, other.scores_sim)
        np.testing.assert_array_equal(one.parents, other.parents)
        assert one.threshold == other.threshold


def test_every_kind_of_matrix(array_type, count_dtype, counts, block_loads):
    x = array_type(counts.astype(count_dtype))
    found = scored(x)
    if array_type.is_dask:
        assert block_loads.passes() == scrublet.passes == 4
    same(found, scored(counts))
    assert np.flatnonzero(np.isnan(found.score)).tolist() == [0, 8, 77]
    block_loads.assert_unchanged()


def test_blocks_change_nothing(counts, block_loads):
    mask = np.random.default_rng(2).random(N) < 0.8
    whole = scored(counts, mask=mask)
    for rows in (1, 7, 100):
        found = scored(block_loads.dask(counts, rows), mask=mask)
        # Sums of real numbers are folded block by block, so that the last bits differ.
        np.testing.assert_allclose(found.score, whole.score, rtol=1e-12)
    np.testing.assert_array_equal(np.isnan(whole.score[~mask]), True)
    alone = scored(counts[mask])
    np.testing.assert_allclose(whole.score[mask], alone.score, rtol=1e-12)


def test_many_cells_are_scored_in_parts(counts, monkeypatch, caplog):
    whole = scored(counts)
    monkeypatch.setattr(doublet_scores, "MAX_CELLS", 100)
    with caplog.at_level(logging.INFO):
        parts = scored(counts)
    assert "237 cells are scored in 3 random parts" in caplog.text
    same(parts, scored(counts))
    assert np.isfinite(parts.score).sum() == 237
    (capture,) = parts.captures.values()
    assert capture.scores_sim.size == 2 * 237
    # Each doublet is made of cells of one part, and each cell belongs to one.
    joined = sp.csr_matrix((np.ones(474), tuple(capture.parents.T)), shape=(N, N))
    sizes = np.bincount(sp.csgraph.connected_components(joined, directed=False)[1])
    assert sizes.max() <= 79
    assert (sizes > 60).sum() == 3
    assert not np.array_equal(parts.score, whole.score, equal_nan=True)


def test_captures_are_searched_alone(counts, caplog):
    lane = np.array(["a", "b"] * (N // 2), dtype=object)
    lane[:40], lane[60:70] = "few", None
    with caplog.at_level(logging.WARNING):
        found = scored(counts, batch=lane, threshold=0.2)
    assert list(found.captures) == ["a", "b", "few", "none"]
    assert "38 cells of few are too few to find doublets" in caplog.text
    assert "10 cells of none are too few to find doublets" in caplog.text
    assert np.isnan(found.score[lane == "few"]).all()
    for name in "ab":
        capture = found.captures[name]
        assert set(lane[capture.cells]) == set(lane[capture.parents.ravel()]) == {name}
        assert capture.threshold == 0.2
        assert capture.n_neighbors == round(0.5 * np.sqrt(capture.cells.size))
        np.testing.assert_array_equal(
            found.predicted[capture.cells], found.score[capture.cells] > 0.2
        )


# scikit-image 0.26: skimage.filters.threshold_minimum of these arrays.
THRESHOLDS = [0.2331636366788406, 0.5419676607672967, 0.3153594850013731, 0.22402343749999998,
              0.26810263890572383, None, None, None]  # fmt: skip


def test_the_threshold_lies_between_two_modes():
    rng = np.random.default_rng(5)
    arrays = [
        np.r_[rng.beta(2, 30, 4000), rng.beta(20, 30, 1500)],
        np.r_[rng.beta(2, 10, 900), rng.beta(30, 10, 100)],
        np.r_[rng.normal(0.1, 0.02, 300), rng.normal(0.5, 0.1, 300), rng.normal(0.8, 0.05, 300)],
        np.round(np.r_[rng.beta(2, 30, 3000), rng.beta(20, 30, 3000)], 2),
        rng.beta(2, 30, 4000),
        np.arange(10.0),
        np.full(7, 0.25),
        np.empty(0),
    ]
    assert [doublet_scores.find_threshold(array) for array in arrays] == THRESHOLDS


def test_no_threshold_takes_no_cell(counts, monkeypatch, caplog):
    monkeypatch.setattr(doublet_scores, "find_threshold", lambda scores: None)
    with caplog.at_level(logging.WARNING):
        found = scored(counts)
    assert not found.predicted.any()
    assert "do not have two modes, so no cell is predicted to be a doublet" in caplog.text


def test_it_writes_what_scanpy_writes(counts):
    adata = ad.AnnData(counts)
    adata.obs["lane"] = ["a", "b"] * (N // 2)
    options = {"n_prin_comps": COMPS, "n_top_genes": 60, "threshold": 0.3}
    assert scrublet(adata, **options) is None
    assert adata.obs["doublet_score"].dtype == np.float64
    assert adata.obs["predicted_doublet"].dtype == bool
    uns = adata.uns["scrublet"]
    assert set(uns) == {"doublet_scores_sim", "doublet_parents", "parameters", "threshold"}
    scrublet(adata, batch_key="lane", **options)
    uns = adata.uns["scrublet"]
    assert uns["batched_by"] == "lane"
    assert set(uns["batches"]) == {"a", "b"}
    scores = adata.obs["doublet_score"].to_numpy(copy=True)
    adata.obs_names = [f"cell{i // 4}" for i in range(N)]  # names that occur twice change nothing
    scrublet(adata, batch_key="lane", **options)
    np.testing.assert_array_equal(adata.obs["doublet_score"], scores)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"batch_key": "lane"}, r"no column 'lane' \(batch_key\)"),
        ({"expected_doublet_rate": 1.0}, "must lie between 0 and 1"),
        ({"sim_doublet_ratio": 0}, "must be above 0"),
        ({"n_prin_comps": 61}, r"61 components \(n_prin_comps\) are too many for 237 cells and 60"),
    ],
)
def test_refusals(counts, options, message):
    adata = ad.AnnData(counts)
    with pytest.raises(InputError, match=message):
        sa.pp.scrublet(adata, n_top_genes=60, **{"n_prin_comps": COMPS, **options})
    if "n_prin_comps" in options:
        adata.X = adata.X.multiply(0).tocsr()
        with pytest.raises(InputError, match="no cell has counts of three genes"):
            sa.pp.scrublet(adata)
