#!/usr/bin/env bash
# zarr-python 3.1.6 beside a store that zarr-python 3.2 or newer wrote: one array whose data type the older
# one does not know ("struct", which anndata 0.13 uses for uns['rank_genes_groups']) makes open_group fail
# for the whole store if its metadata are consolidated, also for the elements that it knows. Without the
# consolidated metadata the other elements open.
# Seen: "consolidated: ValueError: No Zarr data type found ..." and "one by one: [1.0, 1.0]".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'zarr==3.1.6' 'numpy==2.3.5'
"$folder/venv/bin/python" -W ignore - "$folder/store.zarr" <<'PY'
import json
import sys
from pathlib import Path

import numpy as np
import zarr

store = Path(sys.argv[1])
group = zarr.open_group(store, mode="w", zarr_format=3)
group.create_array("known", data=np.ones(2))
table = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2],
    "data_type": {"name": "struct", "configuration": {"fields": [
        {"name": "a", "data_type": "float64"}]}},
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": "AAAAAAAAAAA=",
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "attributes": {},
}
(store / "newer").mkdir()
(store / "newer/zarr.json").write_text(json.dumps(table))
root = json.loads((store / "zarr.json").read_text())
known = json.loads((store / "known/zarr.json").read_text())
root["consolidated_metadata"] = {
    "kind": "inline", "must_understand": False, "metadata": {"known": known, "newer": table}
}
(store / "zarr.json").write_text(json.dumps(root))
try:
    zarr.open_group(store, mode="r")
except ValueError as error:
    print(f"consolidated: ValueError: {str(error)[:40]} ...")
    assert "No Zarr data type" in str(error)
else:
    raise SystemExit("the store opens now")
print(f"one by one: {zarr.open_group(store, mode='r', use_consolidated=False)['known'][:].tolist()}")
PY
