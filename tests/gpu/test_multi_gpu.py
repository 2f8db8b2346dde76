"""The published multi-GPU showcase: every step on a persisted X, one worker per GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.shared import needs, skip_without
from tests.helpers.programs import run_program

SHOWCASE = """
import hashlib, json, sys
import anndata as ad
import dask.array as da
import numpy as np
import scipy.sparse as sp
import scatlas as sa
from scatlas import blocks


def on_host(x):
    return x if isinstance(x, np.ndarray) else x.get()


def found(*, gpu, persisted):
    rng = np.random.default_rng(0)
    counts = sp.csr_matrix(rng.poisson(rng.gamma(0.3, 2.0, 300), (4000, 300)).astype(np.float32))
    x = da.from_array(counts, chunks=(100, 300), asarray=False)
    if gpu:
        x = sa.get.X_to_GPU(x)
    adata = ad.AnnData(X=x.persist() if persisted else x)
    counted = adata.X
    sa.pp.calculate_qc_metrics(adata, percent_top=None, inplace=True)
    sa.pp.filter_cells(adata, min_counts=1)
    sa.pp.filter_genes(adata, min_cells=3)
    sa.pp.normalize_total(adata)
    sa.pp.log1p(adata)
    sa.pp.highly_variable_genes(adata, n_top_genes=100)
    sa.pp.scale(adata, zero_center=False)
    sa.pp.pca(adata, n_comps=10)
    places = np.concatenate([on_host(x) for x in blocks.stream(adata.obsm["X_pca"])])
    after = sum(float(block.sum()) for block in blocks.stream(counted))
    return {
        "counts": np.asarray(adata.obs["total_counts"]),
        "dispersions": np.asarray(adata.var["dispersions_norm"]),
        "genes": np.asarray(adata.var["highly_variable"]),
        "variance": np.asarray(adata.uns["pca"]["variance"]),
        "places": places,
    }, after == float(counts.sum())


def same(a, b):
    return {key: a[key].tobytes() == b[key].tobytes() for key in a}


if __name__ == "__main__":
    cpu, _ = found(gpu=False, persisted=False)
    options = {"devices": int(sys.argv[1]), "threads_per_worker": 2, "rmm_pool_size": "2GB"}
    with sa.cluster("local-gpu", **options) as client:
        there, unharmed = found(gpu=True, persisted=True)
        used = client.run(lambda: __import__("cupy").get_default_memory_pool() is not None)
    here, _ = found(gpu=True, persisted=False)
    apart = {
        key: float(np.abs(there[key] - cpu[key]).max() / np.abs(cpu[key]).max())
        for key in ("dispersions", "variance", "places")
    }
    print(json.dumps({
        "workers": len(used), "unharmed": unharmed, "one GPU": same(here, there), "apart": apart,
        "counts": there["counts"].tolist() == cpu["counts"].tolist(),
        "genes": there["genes"].tolist() == cpu["genes"].tolist(),
    }))
"""


@needs("rmm")
@needs("dask_cuda")
@pytest.mark.parametrize("n", [1, 2])
def test_the_showcase(tmp_path: Path, n: int):
    """The bits of one GPU without a cluster, and the numbers of the CPU."""
    skip_without(n)
    locks = str(tmp_path / "locks")
    found = run_program(SHOWCASE, str(n), file=tmp_path / "use.py", SCATLAS_LOCKS_DIR=locks)
    assert found["workers"] == n
    assert found["unharmed"]
    assert found["counts"]
    assert found["genes"]
    assert all(found["one GPU"].values()), found["one GPU"]
    assert max(found["apart"].values()) < 1e-5, found["apart"]
