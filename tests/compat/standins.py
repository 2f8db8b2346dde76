"""Simulated cells in place of the data sets that scanpy's tests fetch from the network.

The tests need the same form, not the same numbers: 2,700 cells x 32,738 genes of sparse float32
counts (``pbmc3k``), and the same after scanpy's tutorial (``pbmc3k_processed``). So this suite
needs no server. Tests that compare with numbers of the real data fail for scanpy, too, and do not
count.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

N_CELLS, N_GENES, N_TYPES = 2700, 32738, 8
N_EXPRESSED = 16634  # no cell has the other genes of the reference, as in the real data


@functools.cache
def _counts() -> tuple[sparse.csr_matrix, np.ndarray]:
    rng = np.random.default_rng(0)
    kind = rng.choice(N_TYPES, N_CELLS, p=np.arange(N_TYPES, 0, -1) / 36)
    expressed = np.sort(rng.choice(N_GENES, N_EXPRESSED, replace=False))
    profile = np.exp(rng.normal(0, 2, N_EXPRESSED) + rng.normal(0, 0.7, (N_TYPES, N_EXPRESSED)))
    profile /= profile.sum(axis=1, keepdims=True)
    depth = rng.lognormal(np.log(2200), 0.4, N_CELLS).astype(np.int64)
    rows, columns, values = [], [], []
    for cell in range(N_CELLS):
        genes, n = np.unique(
            rng.choice(N_EXPRESSED, depth[cell], p=profile[kind[cell]]), return_counts=True
        )
        rows.append(np.full(genes.size, cell))
        columns.append(expressed[genes])
        values.append(n)
    x = sparse.csr_matrix(
        (
            np.concatenate(values).astype(np.float32),
            (np.concatenate(rows), np.concatenate(columns)),
        ),
        shape=(N_CELLS, N_GENES),
    )
    return x, kind


def pbmc3k() -> AnnData:
    """Raw counts, as ``scanpy.datasets.pbmc3k``."""
    x, _ = _counts()
    names = [f"{'MT-' if i % 2500 == 0 else ''}GENE{i}" for i in range(N_GENES)]
    return AnnData(
        x.copy(),
        obs=pd.DataFrame(index=[f"CELL{i}-1" for i in range(N_CELLS)]),
        var=pd.DataFrame({"gene_ids": [f"ENSG{i:011d}" for i in range(N_GENES)]}, index=names),
    )


def pbmc3k_processed() -> AnnData:
    """Scaled values of some genes, and logarithms of all in ``raw``, as in this data set."""
    x, kind = _counts()
    x = x[:2638]
    x = x[:, x.getnnz(axis=0) >= 3][:, :13714]
    totals = np.asarray(x.sum(axis=1)).ravel()
    logs = sparse.csr_matrix(sparse.diags(1e4 / totals) @ x, dtype=np.float32)
    logs.data = np.log1p(logs.data)
    names = [f"GENE{i}" for i in range(logs.shape[1])]
    names_of_types = np.array([f"type {i}" for i in range(N_TYPES)])
    obs = pd.DataFrame(
        {
            "n_genes": x.getnnz(axis=1),
            "percent_mito": np.random.default_rng(1).uniform(0, 0.05, x.shape[0]),
            "n_counts": totals,
            "louvain": pd.Categorical(names_of_types[kind[:2638]], categories=names_of_types),
        },
        index=[f"CELL{i}-1" for i in range(x.shape[0])],
    )
    raw = AnnData(logs, obs=obs, var=pd.DataFrame({"n_cells": x.getnnz(axis=0)}, index=names))
    adata = raw[:, :1838].copy()
    dense = adata.X.toarray()
    adata.X = (dense - dense.mean(axis=0)) / dense.std(axis=0)
    adata.raw = raw
    return adata
