"""Odd plates: the z-scores of SciPy, planted plates found, clean plates left in peace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import euclidean
from scipy.stats import median_abs_deviation

from scatlas.workflow.report._odd_plates import (
    FACTS,
    PlateComparison,
    cluster_distances,
    facts_of_plates,
    limit,
    robust_z,
)

SIZES = (5, 14, 140, 500)


def clean_plates(rng: np.random.Generator, n: int, *, spread: float = 1.0) -> pd.DataFrame:
    """Facts of plates that differ by chance alone.

    ``spread`` multiplies the usual differences: 30% in cells, 15% in counts, 6% in genes, 2 points
    in the cells kept and in the genes shared, 1 in the mitochondrial share, 0.03 in the clusters.
    """

    def normal(middle: float, deviation: float) -> np.ndarray:
        return rng.normal(middle, spread * deviation, n)

    table = {
        "cells": np.exp(normal(np.log(50_000), 0.3)).round(),
        "kept %": normal(88, 2).clip(0, 100),
        "median counts": np.exp(normal(np.log(5000), 0.15)).round(),
        "median genes": np.exp(normal(np.log(1800), 0.06)).round(),
        "median mt %": normal(6, 1).clip(0, 100),
        "shared genes %": normal(80, 2).clip(0, 100),
        "cluster distance": np.abs(normal(0.15, 0.03)),
    }
    return pd.DataFrame(table, index=[f"plate{i}" for i in range(n)]).rename_axis("plate")


@pytest.mark.parametrize("n", [*SIZES, 6, 3])
def test_scores_are_those_of_scipy(n: int):
    values = np.random.default_rng(n).lognormal(size=n)
    expected = (values - np.median(values)) / median_abs_deviation(values, scale="normal")
    np.testing.assert_allclose(robust_z(values), expected, rtol=1e-4)  # 1.4826 has five digits
    with_gap = np.append(values, np.nan)
    np.testing.assert_array_equal(robust_z(with_gap), np.append(robust_z(values), np.nan))
    assert np.isnan(robust_z(np.full(n, np.nan))).all()


def test_equal_plates_have_no_score_and_one_unlike_them_an_infinite_one():
    values = np.r_[np.full(9, 3.0), 4.0, 2.0]
    assert robust_z(values).tolist() == [0.0] * 9 + [np.inf, -np.inf]


def rate_by_chance(n: int, n_runs: int) -> float:
    """Share of clean atlases with any plate beyond the limit, by seven independent facts."""
    x = np.random.default_rng(n).normal(size=(n_runs, len(FACTS), n))
    away = np.abs(x - np.median(x, axis=-1, keepdims=True))
    z = away / (1.4826 * np.median(away, axis=-1, keepdims=True))
    return float((z > limit(n)).any(axis=(1, 2)).mean())


@pytest.mark.parametrize("n", [5, 6, 7, 8, 10, 14, 20, 30, 140, 500])
def test_the_limit_names_few_plates_by_chance(n: int):
    """Whatever the differences are: the rates that the module's docstring states."""
    least, most, n_runs = (0.01, 0.06, 4000) if n <= 30 else (0, 0.015, 1000)
    assert least <= rate_by_chance(n, n_runs) < most


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("cells", 400, "Only 400 cells were read; other plates have about "),
        ("kept %", 20, "Only 20% of its cells passed; other plates keep about "),
        ("median counts", 400, "Only 400 counts in its median cell; on other plates about "),
        ("median counts", 60_000, "60,000 counts in its median cell; on other plates about "),
        ("median genes", 500, "Only 500 genes in its median cell; on other plates about "),
        ("median mt %", 45, "45.0% mitochondrial counts in its median cell; on other plates "),
        ("shared genes %", 20, "Only 20% of its variable genes are in the atlas; of other "),
        ("cluster distance", 0.9, "Its cells are in other clusters than usual: distance 0.90; "),
    ],
)
def test_a_planted_plate_is_named(n: int, fact: str, value: float, said: str):
    # Five plates have to be very alike for one of them to be named.
    facts = clean_plates(np.random.default_rng(1), n, spread=0.2 if n == 5 else 0.5)
    facts.loc["plate3", fact] = value
    found = PlateComparison(facts)
    assert found.odd_plates == ["plate3"]
    ((name, words),) = found.reasons("plate3")
    assert name == fact
    assert words.startswith(said)
    assert found.table().iloc[0]["odd by"] == fact
    assert found.table().index[0] == "plate3"
    assert sorted(found.table().index) == sorted(facts.index)


def test_reasons_are_in_the_words_of_a_user():
    facts = clean_plates(np.random.default_rng(0), 14)
    facts["median counts"] = [*range(5000, 5130, 10), 3120]
    facts["kept %"] = [90.0] * 13 + [40.25]
    found = PlateComparison(facts)
    assert found.reasons("plate13") == [
        ("kept %", "Only 40% of its cells passed; other plates keep about 90%"),
        ("median counts", "Only 3,120 counts in its median cell; on other plates about 5,055"),
    ]


def test_hundreds_of_nearly_equal_plates_have_no_odd_one_by_a_trifle():
    facts = clean_plates(np.random.default_rng(0), 500, spread=0)
    facts.loc["plate7"] += [9000, -1, 500, -150, 1, 2, 0.05]
    facts.loc["plate8"] *= 1.01
    found = PlateComparison(facts)
    assert np.isinf(found.z.loc["plate7"]).all()
    assert found.odd_plates == []
    facts.loc["plate7", "kept %"] = 60
    assert PlateComparison(facts).odd_plates == ["plate7"]


def test_up_to_two_fifths_of_the_plates_may_be_odd():
    facts = clean_plates(np.random.default_rng(0), 140)
    bad = facts.index[:50]
    facts.loc[bad, "median counts"] /= 50
    found = PlateComparison(facts)
    assert set(found.odd_plates) == set(bad)
    assert set(found.is_odd.columns[found.is_odd.any()]) == {"median counts"}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_plates_are_not_judged(n: int):
    facts = clean_plates(np.random.default_rng(0), n)
    facts.loc["plate0", ["median counts", "kept %"]] = [1, 1]
    found = PlateComparison(facts)
    assert not found.can_judge
    assert found.odd_plates == []
    scores = [f"z of {fact.name}" for fact in FACTS]
    assert found.table()[scores].isna().all(axis=None)
    assert limit(n) == np.inf


def test_a_plate_without_cells_is_odd_by_the_cells_it_kept():
    facts = clean_plates(np.random.default_rng(0), 14)
    facts.loc["plate2"] = [50_000, 0, np.nan, np.nan, np.nan, np.nan, np.nan]
    found = PlateComparison(facts)
    assert found.odd_plates == ["plate2"]
    assert [fact for fact, _ in found.reasons("plate2")] == ["kept %"]
    facts.loc[:, "cluster distance"] = np.nan
    facts.loc["plate3", "cluster distance"] = 0.9
    assert PlateComparison(facts).odd_plates == ["plate2"], "one distance is no spread"


def test_distances_are_hellingers_from_the_median():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(50, 500, (6, 9)), columns=[f"p{i}" for i in range(9)])
    shares = table / table.sum()
    usual = shares.median(axis=1)
    usual /= usual.sum()
    expected = [euclidean(np.sqrt(shares[p]), np.sqrt(usual)) / np.sqrt(2) for p in table]
    np.testing.assert_allclose(cluster_distances(table), expected, rtol=1e-7)


def test_few_cells_or_clusters_of_single_plates_have_no_distance():
    table = pd.DataFrame({"a": [500, 500], "b": [400, 600], "c": [1, 18], "d": [0, 0]})
    assert cluster_distances(table).notna().tolist() == [True, True, False, False]
    own = pd.DataFrame(np.eye(4, dtype=int) * 1000, columns=list("abcd"))
    assert cluster_distances(own).isna().all()


def test_facts_are_those_of_the_files():
    summaries = {
        "p1": {"n_cells": 200, "n_kept": 150, "median_counts": 1000.0, "median_genes": 500.0},
        "p2": {"n_cells": 0, "n_kept": 0, "median_counts": np.nan, "median_genes": np.nan},
    }
    clusters = pd.DataFrame({"p1": [100, 50]}, index=["0", "1"])
    facts = facts_of_plates(
        summaries,
        {"p1": 4.5, "p2": np.nan},
        {"p1": ["a", "b", "c"], "p2": []},
        ["b", "c"],
        clusters,
    )
    assert list(facts) == [fact.name for fact in FACTS]
    first = facts.loc["p1"].tolist()
    assert first == pytest.approx([200, 75, 1000, 500, 4.5, 200 / 3, 0])
    assert facts.loc["p2"].isna().tolist() == [False] + [True] * 6
