#!/usr/bin/env bash
# scanpy 1.11.5: tl.ingest takes the representation that the reference's neighbours were searched in from
# uns["neighbors"]["params"]["use_rep"]. Where that says "X_pca" (neighbors(use_rep="X_pca"), the default
# in other words) it looks for X_pca in the new data, which is what ingest is to compute, and falls back to
# their X, of thousands of genes. With a sparse X this ends in an error of Numba; without use_rep, of the
# same components, it works. Seen: "default: placed 50 cells" and "use_rep='X_pca': TypingError".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check \
  'scanpy==1.11.5' 'anndata==0.12.6' 'scipy==1.16.3' 'numpy==2.3.5' 'pandas==2.3.3' 'zarr==3.1.5'
"$folder/venv/bin/python" -W ignore - <<'PY'
import anndata as ad
import numpy as np
import scanpy as sc
import scipy.sparse as sp

rng = np.random.default_rng(0)
x = sp.csr_matrix(rng.poisson(rng.gamma(0.5, 2.0, 300), (250, 300)).astype(np.float32))


def place(**options: str) -> str:
    """What ingest makes of 50 cells of 250."""
    adata = ad.AnnData(x.copy())
    sc.pp.log1p(adata)
    reference, query = adata[:200].copy(), adata[200:].copy()
    sc.pp.pca(reference, n_comps=10)
    sc.pp.neighbors(reference, **options)
    sc.tl.umap(reference)
    reference.obs["cluster"] = (np.arange(200) % 3).astype(str)
    reference.obs["cluster"] = reference.obs["cluster"].astype("category")
    try:
        sc.tl.ingest(query, reference, obs="cluster")
    except Exception as error:
        return type(error).__name__
    return f"placed {query.obs['cluster'].notna().sum()} cells"


found = place(), place(use_rep="X_pca")
print("default:", found[0])
print("use_rep='X_pca':", found[1])
assert found[0] == "placed 50 cells"
assert found[1] != found[0], "ingest takes such a reference now"
PY
