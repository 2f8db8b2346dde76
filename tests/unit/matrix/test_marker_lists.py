"""Types of clusters by lists of marker genes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.stats import mannwhitneyu, rankdata

from scatlas.errors import InputError
from scatlas.matrix.annotate import annotate_values
from scatlas.matrix.marker_lists import MAX_RANK, NO_SCORE, list_scores, vote_by_scores
from scatlas.workflow.annotation import read_marker_lists

if TYPE_CHECKING:
    from pathlib import Path

    from scatlas.io.products.annotators import Annotator


def lists(folder: Path, text: str) -> Annotator:
    path = folder / "genes.tsv"
    path.write_text(text)
    return read_marker_lists(path)


def counts(n_cells: int, n_genes: int, seed: int = 0) -> sparse.csr_matrix:
    rng = np.random.default_rng(seed)
    x = rng.poisson(rng.gamma(0.3, 2, n_genes), (n_cells, n_genes))
    x[0] = 0  # an empty cell
    return sparse.csr_matrix(x, dtype=np.int32)


def scores(x: object, names: pd.Index, annotator: Annotator, n_cells: int) -> np.ndarray:
    keep = np.ones(n_cells, dtype=bool)
    keep[::3] = False
    return list_scores(x, names, annotator, keep=keep, source="x"), keep


@pytest.mark.parametrize("dtype", [np.uint8, np.int32])
def test_genes_up_are_scored_by_the_mann_whitney_statistic(tmp_path: Path, dtype: type):
    x, names = counts(60, 400).astype(dtype), pd.Index([f"g{i}" for i in range(400)])
    annotator = lists(tmp_path, "label\tup\nA\tg3, g8 g11\nB\tg399;absent;g0\n")
    found, keep = scores(x, names, annotator, 60)
    for number, members in enumerate(([3, 8, 11], [399, 0])):
        rest = np.setdiff1d(np.arange(400), members)
        for row, cell in zip(found, x[keep].toarray().astype(float), strict=True):
            if not cell.any():
                assert row[number] == 0
                continue
            test = mannwhitneyu(
                cell[members], cell[rest], use_continuity=False, method="asymptotic"
            )
            mean = len(members) * rest.size / 2
            ties = np.unique(cell, return_counts=True)[1]
            variance = mean / 6 * (401 - (ties**3 - ties).sum() / (400 * 399))
            assert row[number] == round(100 * (test.statistic - mean) / variance**0.5)


def test_genes_down_count_against_a_type_and_ranks_end(tmp_path: Path):
    n_genes = 4000
    x, names = counts(30, n_genes, seed=1), pd.Index([f"g{i}" for i in range(n_genes)])
    annotator = lists(tmp_path, '"label","down","up"\n"A","g5","g1,g2"\n')
    found, keep = scores(da.from_array(x, chunks=(7, -1)), names, annotator, 30)
    for row, cell in zip(found, x[keep].toarray(), strict=True):
        ranks = np.minimum(rankdata(-cell), MAX_RANK)
        signs = pd.Series(0, names).add(pd.Series({"g1": 1, "g2": 1, "g5": -1}), fill_value=0)[
            names
        ]
        excess, size = signs.sum(), np.abs(signs).sum()
        sd = ranks.std(ddof=1) * np.sqrt(size - excess**2 / n_genes)
        assert abs(row[0] - 100 * (ranks.mean() * excess - ranks @ signs) / sd) <= 0.5 + 1e-9


def test_a_plate_without_genes_of_a_type_gives_it_no_score(tmp_path: Path):
    x, names = counts(12, 50), pd.Index([f"g{i}" for i in range(50)])
    annotator = lists(tmp_path, "label\tup\nA\tg3\nB\tabsent\n")
    assert (scores(x, names, annotator, 12)[0] == NO_SCORE).all(axis=0).tolist() == [False, True]
    with pytest.raises(InputError, match="clusters alone"):
        annotate_values(x, names, annotator)
    with pytest.raises(InputError, match="0 of the 2 genes"):
        scores(x, pd.Index([f"Gene{i}" for i in range(50)]), annotator, 12)


def test_random_genes_name_few_clusters_and_true_ones_all(tmp_path: Path):
    rng = np.random.default_rng(5)
    n_genes, n_lists = 2000, 20
    levels = rng.gamma(0.3, 2, n_genes)
    names = pd.Index([f"g{i}" for i in range(n_genes)])
    wrong = 0
    for _ in range(20):
        x = sparse.csr_matrix(rng.poisson(levels, (50, n_genes)))
        rows = [" ".join(names[rng.choice(n_genes, 8, replace=False)]) for _ in range(n_lists)]
        text = "label\tup\n" + "".join(f"T{n}\t{row}\n" for n, row in enumerate(rows))
        annotator = lists(tmp_path, text)
        found = list_scores(x, names, annotator, keep=np.ones(50, dtype=bool), source="x")
        best = np.bincount(found.argmax(axis=1), minlength=n_lists)
        sizes = np.full((1, n_lists), 50.0)
        table = vote_by_scores(
            found.sum(axis=0, dtype=float)[None], sizes, best[None].astype(float)
        )
        wrong += int(table["vote"][0] >= 0)
        assert table["label"][0] >= 0
    assert wrong <= 4, "a twentieth of 20, with room for chance"
    levels[annotator.coef[4] @ np.eye(n_genes)[names.get_indexer(annotator.genes)] > 0] = 5
    x = sparse.csr_matrix(rng.poisson(levels, (50, n_genes)))
    found = list_scores(x, names, annotator, keep=np.ones(50, dtype=bool), source="x")
    best = np.bincount(found.argmax(axis=1), minlength=n_lists)[None].astype(float)
    table = vote_by_scores(found.sum(axis=0, dtype=float)[None], sizes, best)
    assert table.loc[0, ["vote", "share", "unknown"]].tolist() == [4, 1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("type\tup\nA\tg1\n", "no column 'label'; it has type, up"),
        ("label\tup\nA\tg1\nA\tg2\n", "type 'A' has two rows"),
        ("label\tup\nA\t\nB\tg2\n", "type 'A' has no gene"),
        ("label\tup\tdown\nA\tg1\tg1\n", "g1 is up and down in type 'A'"),
        ("label\tup\nUnassigned\tg1\n", "no cell type"),
        ("label\tup\nA|B\tg1\n", "joins types"),
        ("label\tup\n", "no rows"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, text: str, words: str):
    with pytest.raises(InputError, match=words.replace("|", r"\|")):
        lists(tmp_path, text)
    with pytest.raises(InputError, match="no such table of marker genes"):
        read_marker_lists(tmp_path / "absent.tsv")
