#!/usr/bin/env bash
# pandas 2.3.3: a column of Arrow's dictionary type, which pyarrow's reader of Parquet gives for categories
# with types_mapper=pandas.ArrowDtype, becomes categories by astype("category"), but pd.Categorical of the
# same column ends in an error. Seen: "AttributeError: 'Series' object has no attribute '_pa_array'".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check 'pandas==2.3.3' 'pyarrow==22.0.0' 'numpy==2.3.5'
"$folder/venv/bin/python" -W ignore - <<'PY'
import pandas as pd
import pyarrow as pa

table = pa.table({"cell_type": pa.array(["B", "T", "B"]).dictionary_encode()})
column = table.to_pandas(types_mapper=pd.ArrowDtype)["cell_type"]
print(column.dtype)
assert column.astype("category").cat.categories.tolist() == ["B", "T"]
try:
    pd.Categorical(column)
except AttributeError as error:
    print(f"AttributeError: {error}")
else:
    raise SystemExit("pd.Categorical takes the column now")
PY
