#!/usr/bin/env bash
# celltypist 1.7.1: annotate cuts the model's coefficients to the query's genes and puts them back after
# the prediction, but not if the prediction raises (here: a mode spelt "best_match"). The model in memory
# then keeps the few genes of that query, and later calls of other data use these alone, without a
# message and with other scores.
# Seen: "genes of the model: 199, after a failed call: 50; later scores differ by up to 10.3".
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
def scores():
    return celltypist.annotate(query, model).decision_matrix.to_numpy()


before, n_genes = scores(), len(model.classifier.features)
try:
    celltypist.annotate(query[:, :50].copy(), model, mode="best_match")
except ValueError as error:
    assert "mode" in str(error)
n_left = len(model.classifier.features)
off = float(np.abs(scores() - before).max())
print(
    f"genes of the model: {n_genes}, after a failed call: {n_left}; "
    f"later scores differ by up to {off:.1f}"
)
assert n_left < n_genes and off > 1
PY
