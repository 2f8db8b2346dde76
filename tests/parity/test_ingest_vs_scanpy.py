"""Components and labels of new cells equal those of scanpy's Ingest with exact neighbours."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from sklearn.neighbors import NearestNeighbors

import scatlas as sa

K = 15


class ExactIngest(sc.tl.Ingest):
    """scanpy's with exact neighbours: pynndescent's query misses some, and compiles for 30 s."""

    def _init_pynndescent(self, distances: Any) -> None:
        pass

    def neighbors(self, **kwargs: Any) -> None:
        search = NearestNeighbors(n_neighbors=K, algorithm="brute").fit(self._rep)
        self._distances, self._indices = search.kneighbors(self._obsm["rep"])


def cells(n_cells: int, seed: int) -> ad.AnnData:
    """Cells of five groups that overlap, so that neighbours disagree."""
    means = np.random.default_rng(0).gamma(0.5, 1.0, (5, 120))
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 5, n_cells)
    x = np.log1p(rng.poisson(0.5 + 0.5 * means[group])).astype(np.float32)
    obs = pd.DataFrame({"group": pd.Categorical([f"g{i}" for i in group])})
    return ad.AnnData(x, obs=obs.set_index(obs.index.astype(str)))


def test_components_and_labels_are_scanpys() -> None:
    reference, theirs = cells(600, 1), cells(300, 2)
    reference.var["highly_variable"] = np.arange(120) % 4 > 0
    sc.pp.pca(reference, 20)
    sc.pp.neighbors(reference, K, n_pcs=12)
    # scanpy subtracts the mean of the new cells, scatlas that of the reference: make both equal.
    theirs.X += reference.X.mean(axis=0) - theirs.X.mean(axis=0)
    ours = theirs.copy()
    ingest = ExactIngest(reference)
    ingest.fit(theirs)
    ingest.map_embedding("pca")
    ingest.neighbors()
    ingest.map_labels("group", "knn")
    ingest.to_adata(inplace=True)
    assert sa.tl.ingest(ours, reference, obs="group", embedding_method="pca") is None
    largest = np.abs(theirs.obsm["X_pca"]).max()
    np.testing.assert_allclose(ours.obsm["X_pca"], theirs.obsm["X_pca"], atol=1e-5 * largest)
    votes = pd.get_dummies(reference.obs["group"]).to_numpy()[ingest._indices].sum(axis=1)
    votes.sort(axis=1)
    clear = votes[:, -1] > votes[:, -2]
    assert (votes[:, -1] < K).mean() > 0.2
    assert clear.mean() > 0.8
    assert ours.obs["group"].dtype == theirs.obs["group"].dtype
    assert list(ours.obs["group"][clear]) == list(theirs.obs["group"][clear])
