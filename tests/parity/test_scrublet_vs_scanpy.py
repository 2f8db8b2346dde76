"""Doublet scores agree with scanpy's, which computes the counts of simulated doublets."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
import scanpy as sc
import scipy.sparse as sp

import scatlas as sa
from scatlas.datasets import simulate_plate
from scatlas.matrix import doublet_scores

N_DOUBLETS = 80


@pytest.fixture(scope="module")
def plate() -> ad.AnnData:
    """900 cells, doublets of two cell lines, and cells and genes that are excluded."""
    cells = simulate_plate(1, n_cells=1000, n_genes=1500)
    cells = cells[cells.obs["pass_filter"] == "full"][:900].copy()
    rng = np.random.default_rng(0)
    lines = cells.obs["cell_line"].cat.codes.to_numpy()
    first = rng.choice(cells.n_obs, N_DOUBLETS, replace=False)
    second = np.array([rng.choice(np.flatnonzero(lines != lines[i])) for i in first])
    x = sp.vstack([cells.X, cells.X[first] + cells.X[second]]).tolil()
    x[5] = 0
    x[6] = 0
    x[6, [3, 700]] = 4
    for gene, n_cells in zip((10, 20, 30, 40), (0, 1, 2, 3), strict=True):
        x[:, gene] = 0
        x[100 : 100 + n_cells, gene] = 7
    adata = ad.AnnData(x.tocsr().astype(np.float32))
    adata.var_names = cells.var_names
    adata.obs_names = [f"c{i}" for i in range(adata.n_obs)]
    adata.obs["doublet"] = np.arange(adata.n_obs) >= cells.n_obs
    adata.obs["lane"] = [f"lane{i % 2}" for i in range(adata.n_obs)]
    return adata


def by_scanpy(adata: ad.AnnData, seed: int) -> ad.AnnData:
    # scanpy's automatic threshold needs scikit-image; tests/unit compares scatlas's with it.
    return sc.pp.scrublet(
        adata, threshold=0.25, use_approx_neighbors=False, random_state=seed, copy=True,
        verbose=False,
    )  # fmt: skip


def simulated_neighbors(scores: np.ndarray, k: int, ratio: float, rate: float = 0.05) -> np.ndarray:
    """Number of simulated cells among k neighbours, from Scrublet's score."""
    q = scores * (1 - rate) / (rate / ratio + scores * (1 - rate - rate / ratio))
    return np.round(q * (k + 2) - 1)


@pytest.mark.parametrize("seed", [0, 3])
def test_scores_are_scanpys(plate: ad.AnnData, seed: int):
    theirs = by_scanpy(plate, seed)
    ours = sa.pp.scrublet(plate, threshold=0.25, random_state=seed, copy=True)
    assert "doublet_score" not in plate.obs
    uns, reference = ours.uns["scrublet"], theirs.uns["scrublet"]
    # scanpy numbers the included cells.
    part = np.delete(np.arange(plate.n_obs), [5, 6])
    np.testing.assert_array_equal(uns["doublet_parents"], part[reference["doublet_parents"]])
    for key in ("expected_doublet_rate", "sim_doublet_ratio", "n_neighbors", "random_state"):
        assert uns["parameters"][key] == reference["parameters"][key]
    assert uns["threshold"] == 0.25
    for name, a, b in (
        ("cells", ours.obs["doublet_score"], theirs.obs["doublet_score"]),
        ("simulated", uns["doublet_scores_sim"], reference["doublet_scores_sim"]),
    ):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        close = np.isclose(a, b, rtol=1e-12, atol=0, equal_nan=True)
        # Two neighbours with distances within the float32 rounding swap, which changes the number
        # of simulated neighbours by one.
        assert close.mean() > 0.99, name
        np.testing.assert_allclose(a, b, atol=0.1, err_msg=name)
        k, ratio = uns["parameters"]["n_neighbors"], len(reference["doublet_scores_sim"]) / 978
        counts = [simulated_neighbors(scores, round(k * (1 + ratio)), ratio) for scores in (a, b)]
        assert np.nanmax(np.abs(counts[0] - counts[1])) <= 1, name
    assert np.isnan(ours.obs["doublet_score"].to_numpy()[[5, 6]]).all()
    agree = ours.obs["predicted_doublet"] == theirs.obs["predicted_doublet"].eq(other=True)
    assert agree.mean() > 0.995


@pytest.mark.parametrize("max_cells", [20_000, 350])
def test_doublets_are_found(plate: ad.AnnData, max_cells: int, monkeypatch: pytest.MonkeyPatch):
    """With all cells at once, and in three parts."""
    from sklearn.metrics import roc_auc_score

    monkeypatch.setattr(doublet_scores, "MAX_CELLS", max_cells)
    found = sa.pp.scrublet(plate, expected_doublet_rate=0.08, copy=True).obs.dropna()
    assert roc_auc_score(found["doublet"], found["doublet_score"]) > 0.95
    assert found.loc[found["doublet"], "predicted_doublet"].mean() > 0.7
    assert found.loc[~found["doublet"], "predicted_doublet"].mean() < 0.03
