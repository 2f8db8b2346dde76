#!/usr/bin/env bash
# anndata 0.12.19 with zarr 3.1.6: a column written into a store by write_elem is in no answer of
# read_zarr. write_elem refuses a group opened with consolidated metadata; opened without them it leaves
# those of the root as they were, and read_zarr believes these. A column deleted through the consolidated
# group stays in them, and read_zarr fails on a chunk that is gone or reads empty categories.
# Seen: "on disk b, columns read: a" and "after del: obs/a listed, on disk no".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check anndata==0.12.19 zarr==3.1.6 2>/dev/null
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PY'
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import zarr
from anndata.io import read_elem, write_elem

ad.settings.zarr_write_format = 3


def new(name):
    obs = pd.DataFrame({"a": pd.Categorical(["x", "y", "z"])}, index=["1", "2", "3"])
    ad.AnnData(np.zeros((3, 2)), obs=obs).write_zarr(name)
    return name


store = new("written.zarr")
root = zarr.open_group(store, mode="r+", use_consolidated=False)
obs = read_elem(root["obs"])
obs["b"] = [1, 2, 3]
write_elem(root, "obs", obs)
on_disk = Path(store, "obs/b/zarr.json").exists()
columns = list(ad.read_zarr(store).obs)
print(f"on disk {'b' if on_disk else 'nothing'}, columns read: {', '.join(columns)}")
assert on_disk and columns == ["a"]

store = new("deleted.zarr")
del zarr.open_group(store, mode="r+")["obs/a"]
listed = "obs/a" in zarr.open_group(store, mode="r")
on_disk = Path(store, "obs/a/zarr.json").exists()
print(f"after del: obs/a {'listed' if listed else 'gone'}, on disk {'yes' if on_disk else 'no'}")
assert listed and not on_disk
PY
