#!/usr/bin/env bash
# anndata 0.12.6 with SciPy 1.16.3: read_zarr and read_h5ad keep the types of indices and of offsets as they
# are stored. A matrix with narrow indices (uint16) beside int64 offsets, which is valid in both formats,
# becomes a csr_matrix of which sums and slices work, and tocoo() and what is built on it fail. The same
# arrays through SciPy's constructor get one type. Seen: "as read: tocoo: ValueError" and "constructed: tocoo: works".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check \
  'anndata==0.12.6' 'scipy==1.16.3' 'numpy==2.3.5' 'pandas==2.3.3' 'zarr==3.1.5'
"$folder/venv/bin/python" -W ignore - "$folder/a.zarr" <<'PY'
import sys

import anndata as ad
import numpy as np
import scipy.sparse as sp
import zarr

x = sp.random(50, 40, 0.2, "csr", np.float32, random_state=0)
ad.AnnData(x).write_zarr(sys.argv[1])
root = zarr.open_group(sys.argv[1], mode="r+")
for name, kind in (("indices", np.uint16), ("indptr", np.int64)):
    values = root[f"X/{name}"][:].astype(kind)
    del root[f"X/{name}"]
    root.create_array(f"X/{name}", data=values)
zarr.consolidate_metadata(sys.argv[1])


def to_coo(matrix: sp.csr_matrix) -> str:
    try:
        return "works" if (matrix.tocoo() != x).nnz == 0 else "other values"
    except Exception as error:
        return type(error).__name__


read = ad.read_zarr(sys.argv[1]).X
made = sp.csr_matrix((read.data, read.indices, read.indptr), read.shape)
print("types as read:", read.indices.dtype, read.indptr.dtype)
print("as read: tocoo:", to_coo(read))
print("constructed: tocoo:", to_coo(made))
assert (read.indices.dtype, read.indptr.dtype) == (np.uint16, np.int64)
assert to_coo(read) != "works", "one type of both now"
assert to_coo(made) == "works"
PY
