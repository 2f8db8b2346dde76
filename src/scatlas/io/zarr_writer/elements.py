"""AnnData elements in Zarr v3 stores: groups, small elements, consolidated metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.io.files.listing import walk_files
from scatlas.io.files.local_zarr import WRITER_ATTRIBUTE
from scatlas.io.zarr_writer.node_metadata import write_array_metadata, write_group_metadata
from scatlas.io.zarr_writer.sharded_array import (
    CHUNK_VALUES,
    PROJECTED_CODEC,
    SHARD_VALUES,
    ShardedArray,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    import zarr

# Attributes of elements by AnnData's encoding.
ANNDATA = {"encoding-type": "anndata", "encoding-version": "0.1.0"}
CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
CSC = {"encoding-type": "csc_matrix", "encoding-version": "0.1.0"}
DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}
RAW = {"encoding-type": "raw", "encoding-version": "0.1.0"}
DATAFRAME = {"encoding-type": "dataframe", "encoding-version": "0.2.0"}
ARRAY = {"encoding-type": "array", "encoding-version": "0.2.0"}
STRING_ARRAY = {"encoding-type": "string-array", "encoding-version": "0.2.0"}
STRING = {"encoding-type": "string", "encoding-version": "0.2.0"}
SCALAR = {"encoding-type": "numeric-scalar", "encoding-version": "0.2.0"}
CATEGORICAL = {"encoding-type": "categorical", "encoding-version": "0.2.0"}
MAPPINGS = ("layers", "obsm", "obsp", "varm", "varp", "uns")
# Zarr v3 has not standardised consolidated metadata yet; anndata writes and reads it.
_INLINE = {"kind": "inline", "must_understand": False}


def create_group(path: Path, attributes: Mapping[str, Any]) -> None:
    """Create a Zarr v3 group; arrays that exist in the folder stay."""
    path.mkdir(parents=True, exist_ok=True)
    write_group_metadata(path, attributes)


def open_group_to_write(path: Path) -> zarr.Group:
    """Open an existing group for :func:`write_elem`."""
    import zarr

    return zarr.open_group(path, mode="r+")


def write_elem(group: zarr.Group, key: str, elem: Any) -> None:
    """Write one element in AnnData's encoding, with any pandas text; changes no argument."""
    # Imports Dask, 0.5 s, which steps that write no element save.
    from anndata.experimental import write_dispatched

    if isinstance(elem, pd.DataFrame):
        elem = writable_frame(elem)

    def callback(
        write_func: Callable[..., None],
        store: zarr.Group,
        name: str,
        value: Any,
        *,
        dataset_kwargs: Mapping[str, Any],
        iospec: Any,  # noqa: ARG001
    ) -> None:
        write_func(store, name, value, dataset_kwargs={**dataset_kwargs, **_chunk_options(value)})

    write_dispatched(group, key, elem, callback=callback)


def write_params(folder: Path, params: Mapping[str, bool | str]) -> None:
    """Write flags and texts by name with the bytes of `write_elem`, without importing anndata."""
    from numcodecs import VLenUTF8, Zstd

    create_group(folder, DICT)
    zstd = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    text: dict[str, Any] = {"name": "vlen-utf8", "configuration": {}}
    for name, value in params.items():
        array = folder / name
        array.mkdir()
        kind, codec, attributes = "bool", {"name": "bytes"}, SCALAR
        if isinstance(value, str):
            kind, codec, attributes = "string", text, STRING
        write_array_metadata(
            array, (), kind, type(value)(), grid=(), codecs=[codec, zstd], attributes=attributes
        )
        if value:  # a chunk of the fill value has no file
            raw = VLenUTF8().encode([value]) if isinstance(value, str) else bytes([value])
            (array / "c").write_bytes(Zstd(0).encode(raw))


def _chunk_options(value: Any) -> dict[str, Any]:
    # Always with "shards": otherwise anndata's settings decide, and warn that they will change.
    if not isinstance(value, np.ndarray) or value.ndim == 0 or value.size == 0:
        return {"shards": None}
    rows = max(1, CHUNK_VALUES // max(1, value.size // len(value)))
    if len(value) <= rows:
        return {"chunks": value.shape, "shards": None}
    per_shard = min(SHARD_VALUES // CHUNK_VALUES, -(-len(value) // rows))
    return {"chunks": (rows, *value.shape[1:]), "shards": (rows * per_shard, *value.shape[1:])}


def writable_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Copy that every version writes: text with gaps is categorical, other text ``str`` objects."""
    text_columns = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.StringDtype) or column.dtype == object:
            has_missing = bool(column.isna().any())
            text_columns[name] = (
                pd.Categorical(column.astype(object))
                if has_missing
                else np.asarray(column, dtype=object)
            )
    out = frame.copy(deep=False)
    for name, values in text_columns.items():
        # A Series of dtype object, because pandas 3 would infer its string dtype again.
        out[name] = pd.Series(values, index=out.index, dtype=getattr(values, "dtype", object))
    out.index = pd.Index(np.asarray(frame.index.astype(str), dtype=object), dtype=object)
    out.index.name = frame.index.name
    return out


def coordinates(
    path: Path, n_dims: int, pool: ThreadPoolExecutor, dtype: np.dtype | type = np.float32
) -> ShardedArray:
    """New array of coordinates of cells, in chunks of whole rows."""
    return ShardedArray(
        path, dtype, pool, compression=PROJECTED_CODEC, row_shape=(n_dims,), attributes=ARRAY
    )


def finish_store(path: Path) -> None:
    """Write what an AnnData store needs beside its elements, and its consolidated metadata."""
    create_group(path, ANNDATA)
    for name in MAPPINGS:
        if not (path / name / "zarr.json").exists():
            create_group(path / name, DICT)
    consolidate(path)


def consolidate(path: Path) -> None:
    """Write all nodes' metadata to the root, in a fixed order, with :data:`WRITER_ATTRIBUTE`."""
    (path / "zarr.json").write_text(consolidated_metadata(path), encoding="utf-8")


def consolidated_metadata(path: Path) -> str:
    """Metadata of the root with those of all nodes, as JSON."""
    files = [file for file, _ in walk_files(path) if file.endswith("/zarr.json")]
    root = json.loads((path / "zarr.json").read_bytes())
    nodes = {}
    names = [file.removesuffix("/zarr.json") for file in files]
    for name in sorted(names, key=lambda name: (name.count("/"), name)):
        nodes[name] = json.loads((path / name / "zarr.json").read_bytes())
        if nodes[name]["node_type"] == "group":
            nodes[name]["consolidated_metadata"] = {**_INLINE, "metadata": {}}
    metadata = {
        "attributes": root["attributes"] | WRITER_ATTRIBUTE,
        "zarr_format": 3,
        "consolidated_metadata": {**_INLINE, "metadata": nodes},
        "node_type": "group",
    }
    # Without indentation, which would double the time: a plate has fifty nodes.
    return json.dumps(metadata)
