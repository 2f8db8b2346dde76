#!/usr/bin/env bash
# celltypist 1.7.1: annotate(mode="prob match") calls a cell "Unassigned" if no type passes the
# threshold, but cuts this word to the length of the longest name among the call's other answers: the
# name depends on which cells are in the call. With types B, T and NK it is a lone "U".
# Seen: "threshold 0.99999: U; 0.5: B, NK, T".
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
names = {}
for threshold in (0.99999, 0.5):
    answer = celltypist.annotate(query, model, mode="prob match", p_thres=threshold)
    names[threshold] = sorted(set(answer.predicted_labels["predicted_labels"].astype(str)))
print("threshold " + "; ".join(f"{key:g}: {', '.join(value)}" for key, value in names.items()))
assert names == {0.99999: ["U"], 0.5: ["B", "NK", "T"]}
PY
