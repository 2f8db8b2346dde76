#!/usr/bin/env bash
# celltypist 1.7.1: clusters given to annotate as a pandas Series are joined with the cells by position.
# The index is not looked at, neither its order nor its names: a Series in another order than the cells
# (as after sort_values, groupby or reading a table) gives most cells the vote of a stranger's cluster,
# without a message. Assigning the same Series to adata.obs would have joined it by name.
# Seen: "votes that are the cell's type: 1.00 in the cells' order, 0.29 in another".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check \
    celltypist==1.7.1 scikit-learn==1.7.2 scanpy==1.11.5 pandas==2.3.3 2>/dev/null
"$folder/venv/bin/python" -W ignore - <<'PY'
import anndata as ad
import celltypist
import numpy as np
import pandas as pd
import scipy.sparse as sp

celltypist.logger.set_level(50)
means = np.random.default_rng(0).gamma(0.4, 1.5, (3, 200))


def cells(n_cells, seed):
    rng = np.random.default_rng(seed)
    types = rng.integers(0, 3, n_cells)
    counts = rng.poisson(means[types]).astype(np.float64)
    counts *= 1e4 / counts.sum(axis=1, keepdims=True)
    obs = pd.DataFrame({"type": np.array(["B", "T", "NK"])[types]}, index=[f"c{i}" for i in range(n_cells)])
    var = pd.DataFrame(index=[f"G{i}" for i in range(200)])
    return ad.AnnData(sp.csr_matrix(np.log1p(counts).astype(np.float32)), obs=obs, var=var)


model = celltypist.train(cells(400, 1), "type")
query = cells(300, 2)
equal = []
for clusters in (query.obs["type"], query.obs["type"].sample(frac=1, random_state=0)):
    answer = celltypist.annotate(query, model, majority_voting=True, over_clustering=clusters)
    votes = answer.predicted_labels["majority_voting"].astype(str)
    equal.append(float((votes == query.obs["type"]).mean()))
print(f"votes that are the cell's type: {equal[0]:.2f} in the cells' order, {equal[1]:.2f} in another")
assert equal[0] == 1 and equal[1] < 0.5
PY
