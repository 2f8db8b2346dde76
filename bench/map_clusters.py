"""Leiden of all cells beside Leiden of a sample, whose other cells take the vote of their nearest.

A group is found if a cluster has a Jaccard index of at least 0.5 with it; groups of up to N_RARE
cells are rare. A sample with strata holds at least N_STRATUM cells of each group.
"""

from __future__ import annotations

from typing import NamedTuple

import map_cells as cells
import numpy as np
from sklearn.metrics import adjusted_rand_score

import scatlas as sa
from scatlas.matrix import inverted_lists
from scatlas.matrix.projection import vote_labels

N_CLUSTER_GROUPS, SMALLEST, N_STRATUM, N_RARE, FOUND = 60, 30, 30, 300, 0.5


class Clusters(NamedTuple):
    """Label of each cell, and the time of neighbours, Leiden and votes."""

    labels: np.ndarray
    spent: cells.Spent


def lines(n_cells: int, n_sample: int) -> list[str]:
    """Lines of the table."""
    truth = unequal_groups(n_cells)
    x = cells.simulate(truth)
    rng = np.random.default_rng(3)
    cluster(x[:2000], np.arange(1000))  # compiles
    by_chance = np.sort(rng.choice(n_cells, n_sample, replace=False))
    sides = {
        "all cells": np.arange(n_cells),
        "sample": by_chance,
        "sample with strata": stratified(truth, n_sample, rng),
    }
    found = {name: cluster(x, rows) for name, rows in sides.items()}
    whole = found["all cells"].labels
    n_rare = int((np.bincount(truth) <= N_RARE).sum())
    table = [
        f"\n## Leiden (rounds) of {n_cells:,} cells in {N_CLUSTER_GROUPS} groups from {SMALLEST} "
        f"to {np.bincount(truth).max():,} cells, and of samples of {n_sample:,} with votes",
        f"{'clusters of':<20}{'cells':>9}{'seconds':>9}{'CPU':>8}{'clusters':>10}"
        f"{'ARI, all cells':>16}{'ARI, groups':>13}{'found':>8}{'rare found':>12}",
    ]
    for name, (labels, spent) in found.items():
        jaccard = best_jaccard(truth, labels)
        rare = (jaccard >= FOUND) & (np.bincount(truth) <= N_RARE)
        table.append(
            f"{name:<20}{sides[name].size:>9,}{spent.wall:>9.1f}{spent.cpu:>8.1f}"
            f"{labels.max() + 1:>10}{adjusted_rand_score(whole, labels):>16.4f}"
            f"{adjusted_rand_score(truth, labels):>13.4f}"
            f"{(jaccard >= FOUND).sum():>5}/{N_CLUSTER_GROUPS}{rare.sum():>9}/{n_rare}"
        )
    return table


def unequal_groups(n_cells: int) -> np.ndarray:
    """Labels of groups whose sizes grow by the same factor, from SMALLEST cells."""
    low, high = 1.0, n_cells / SMALLEST
    for _ in range(60):
        top = (low * high) ** 0.5
        sizes = SMALLEST * np.geomspace(1, top, N_CLUSTER_GROUPS)
        low, high = (top, high) if sizes.sum() < n_cells else (low, top)
    sizes = sizes.astype(int)
    sizes[-1] += n_cells - sizes.sum()
    return np.random.default_rng(4).permutation(np.repeat(np.arange(N_CLUSTER_GROUPS), sizes))


def stratified(groups: np.ndarray, n_sample: int, rng: np.random.Generator) -> np.ndarray:
    """Cells of a sample: N_STRATUM of each group, the others by chance."""
    order = rng.permutation(groups.size)
    by_group = order[np.argsort(groups[order], kind="stable")]
    starts = np.searchsorted(groups[by_group], np.arange(groups.max() + 1))
    rank = np.arange(groups.size) - starts[groups[by_group]]
    first = by_group[rank < N_STRATUM]
    others = rng.permutation(by_group[rank >= N_STRATUM])[: n_sample - first.size]
    return np.sort(np.concatenate([first, others]))


def cluster(x: np.ndarray, rows: np.ndarray) -> Clusters:
    """Leiden of ``rows``; all other cells take the label of their nearest of these."""

    def labels() -> np.ndarray:
        adata = cells.with_components(np.ascontiguousarray(x[rows]))
        sa.pp.neighbors(adata, cells.N_NEIGHBORS, use_rep="X_pca")
        sa.tl.leiden(adata, flavor="rounds")
        codes = adata.obs["leiden"].cat.codes.to_numpy().astype(np.int64)
        out = np.empty(len(x), np.int64)
        out[rows] = codes
        others = np.setdiff1d(np.arange(len(x)), rows)
        if others.size:
            index = inverted_lists.build(adata.obsm["X_pca"], cells.N_NEIGHBORS)
            out[others] = vote_labels(codes, *index.search(x[others], cells.N_NEIGHBORS))[0]
        return out

    spent, found = cells.timed(labels)
    return Clusters(found, spent)


def best_jaccard(truth: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Largest Jaccard index of each group with a cluster."""
    both = np.zeros((truth.max() + 1, labels.max() + 1))
    np.add.at(both, (truth, labels), 1)
    either = both.sum(axis=1, keepdims=True) + both.sum(axis=0) - both
    return (both / either).max(axis=1)
