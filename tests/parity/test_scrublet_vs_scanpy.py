"""Doublet scores against scanpy's, which makes its simulated doublets' counts."""

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
    """900 cells, and doublets made of cells of two lines; cells and genes that play no part."""
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
    # Its automatic threshold asks for scikit-image; ours is compared with that in tests/unit.
    return sc.pp.scrublet(
        adata, threshold=0.25, use_approx_neighbors=False, random_state=seed, copy=True,
        verbose=False,
    )  # fmt: skip


def simulated_neighbors(scores: np.ndarray, k: int, ratio: float, rate: float = 0.05) -> np.ndarray:
    """How many of k neighbours are simulated, of Scrublet's score of them."""
    q = scores * (1 - rate) / (rate / ratio + scores * (1 - rate - rate / ratio))
    return np.round(q * (k + 2) - 1)


@pytest.mark.parametrize("seed", [0, 3])
def test_scores_are_scanpys(plate: ad.AnnData, seed: int):
    theirs = by_scanpy(plate, seed)
    ours = sa.pp.scrublet(plate, threshold=0.25, random_state=seed, copy=True)
    assert "doublet_score" not in plate.obs
    uns, reference = ours.uns["scrublet"], theirs.uns["scrublet"]
    # scanpy counts cells among those that play a part.
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
        # Two neighbours at one distance but for the rounding (of float32 values here and there)
        # change places: another count of simulated ones, by one.
        assert close.mean() > 0.99, name
        k, ratio = uns["parameters"]["n_neighbors"], len(reference["doublet_scores_sim"]) / 978
        counts = [simulated_neighbors(scores, round(k * (1 + ratio)), ratio) for scores in (a, b)]
        assert np.nanmax(np.abs(counts[0] - counts[1])) <= 1, name
    assert np.isnan(ours.obs["doublet_score"].to_numpy()[[5, 6]]).all()
    agree = ours.obs["predicted_doublet"] == theirs.obs["predicted_doublet"].eq(other=True)
    assert agree.mean() > 0.995


@pytest.mark.parametrize("most", [20_000, 350])
def test_doublets_are_found(plate: ad.AnnData, most: int, monkeypatch: pytest.MonkeyPatch):
    """In all cells at once, and in three parts."""
    from sklearn.metrics import roc_auc_score

    monkeypatch.setattr(doublet_scores.score, "__kwdefaults__", {"most": most})
    found = sa.pp.scrublet(plate, expected_doublet_rate=0.08, copy=True).obs.dropna()
    assert roc_auc_score(found["doublet"], found["doublet_score"]) > 0.95
    assert found.loc[found["doublet"], "predicted_doublet"].mean() > 0.7
    assert found.loc[~found["doublet"], "predicted_doublet"].mean() < 0.03
