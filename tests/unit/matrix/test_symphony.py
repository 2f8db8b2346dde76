"""Symphony's mapping beside its equations with whole matrices, and its bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.matrix import harmony_rows
from scatlas.matrix.symphony import MixedClusters

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

RNG = np.random.default_rng(0)
N_NEW, N_OLD, N_COMPS, N_CLUSTERS = 400, 900, 6, 9
CENTRES = 5 * RNG.normal(size=(N_CLUSTERS, N_COMPS))
OLD = CENTRES[RNG.integers(N_CLUSTERS, size=N_OLD)] + RNG.normal(size=(N_OLD, N_COMPS))
BATCHES = RNG.integers(3, size=N_NEW)
EFFECTS = RNG.normal(size=(3, N_COMPS))
NEW = CENTRES[RNG.integers(N_CLUSTERS, size=N_NEW)] + RNG.normal(size=(N_NEW, N_COMPS))
NEW = (NEW + EFFECTS[BATCHES]).astype(np.float32)
SHARES = RNG.dirichlet(np.full(N_CLUSTERS, 0.1), N_OLD)


def clusters_of(shares: np.ndarray) -> MixedClusters:
    return MixedClusters(shares.sum(axis=0), shares.T @ OLD, 0.1)


def shares_of(x: np.ndarray, means: np.ndarray) -> np.ndarray:
    """As Harmony's, of squared distances of unit rows."""
    unit, centres = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, means))
    weights = np.exp(-((unit[:, None] - centres) ** 2).sum(axis=2) / 0.1)
    return weights / weights.sum(axis=1, keepdims=True)


def test_new_cells_move_as_by_the_regression_with_all_cells(tmp_path: Path):
    clusters = clusters_of(SHARES)
    found = np.concatenate([*clusters.mix([NEW[:150], NEW[150:]], BATCHES, tmp_path)])
    x = NEW.astype(np.float64)
    shares, wanted = shares_of(x, SHARES.T @ OLD), x.copy()
    design = np.c_[np.ones(N_NEW), np.eye(3)[BATCHES]]
    for k in range(N_CLUSTERS):
        # The old cells have no batch: they weigh on the intercept alone.
        both = np.r_[design, np.eye(4)[np.zeros(N_OLD, int)]]
        weights, z = np.r_[shares[:, k], SHARES[:, k]], np.r_[x, OLD]
        ridge = np.diag([0.0, 1.0, 1.0, 1.0])
        fit = np.linalg.solve(both.T * weights @ both + ridge, both.T * weights @ z)
        wanted -= shares[:, [k]] * (design[:, 1:] @ fit[1:])
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    apart = [np.abs(z[BATCHES == 0].mean(0) - z[BATCHES == 1].mean(0)).max() for z in (x, found)]
    assert apart[1] < apart[0] / 2


def test_no_bit_depends_on_parts_or_on_where_the_cells_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clusters = clusters_of(SHARES)
    wanted = np.concatenate([*clusters.mix([NEW], BATCHES, tmp_path)])
    monkeypatch.setattr(harmony_rows, "HARMONY_CELLS_IN_MEMORY", 10)
    found = np.concatenate([*clusters.mix(np.array_split(NEW, 7), BATCHES, tmp_path)])
    np.testing.assert_array_equal(found, wanted)
    assert not [*tmp_path.iterdir()]


def test_a_batch_that_is_like_the_old_cells_stays(tmp_path: Path):
    old = OLD.astype(np.float32)
    clusters = clusters_of(shares_of(OLD, CENTRES))
    found = np.concatenate([*clusters.mix([old], np.zeros(N_OLD, int), tmp_path)])
    assert np.median(np.abs(found - old)) < 0.01
