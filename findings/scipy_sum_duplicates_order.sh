#!/usr/bin/env bash
# SciPy 1.17.1: sum_duplicates() sorts each row first, and this sort does not keep the order of entries
# with the same index. With three or more parts of a value in floating point the sum can therefore have
# other last bits than toarray(), which adds them in the order in which they are stored, and CSR and CSC
# of the same entries can differ from each other. Seen: "rows that differ: 50 of 50".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'scipy==1.17.1' 'numpy==2.3.5'
"$folder/venv/bin/python" - <<'PY'
import numpy as np
import scipy.sparse as sp

rng = np.random.default_rng(0)
n_rows, parts, n_columns = 50, 6, 40
indices = np.tile(np.tile(np.arange(n_columns), parts), n_rows).astype(np.int32)
data = rng.random(indices.size).astype(np.float32)
indptr = np.arange(0, indices.size + 1, parts * n_columns)
x = sp.csr_matrix((data, indices, indptr), shape=(n_rows, n_columns))
summed = x.copy()
summed.sum_duplicates()
differ = (summed.toarray() != x.toarray()).any(axis=1).sum()
print(f"rows that differ: {differ} of {n_rows}")
assert np.allclose(summed.toarray(), x.toarray(), rtol=1e-6)
assert differ > 0, "the sum has the bits of toarray() now"
PY
