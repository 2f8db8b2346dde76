"""AnnData elements in Zarr v3 stores: groups, tables, small elements, consolidated metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.io.files.local_zarr import WRITTEN_BY
from scatlas.io.zarr_writer.sharded_array import CHUNK_VALUES, SHARD_VALUES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import zarr

ANNDATA = {"encoding-type": "anndata", "encoding-version": "0.1.0"}
CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
DICT = {"encoding-type": "dict", "encoding-version": "0.1.0"}
DATAFRAME = {"encoding-type": "dataframe", "encoding-version": "0.2.0"}
ARRAY = {"encoding-type": "array", "encoding-version": "0.2.0"}
STRING_ARRAY = {"encoding-type": "string-array", "encoding-version": "0.2.0"}
SCALAR = {"encoding-type": "numeric-scalar", "encoding-version": "0.2.0"}
CATEGORICAL = {"encoding-type": "categorical", "encoding-version": "0.2.0"}
# Zarr v3 has not standardised consolidated metadata yet; anndata writes and reads it.
_INLINE = {"kind": "inline", "must_understand": False}
MAPPINGS = ("layers", "obsm", "obsp", "varm", "varp", "uns")


def create_group(path: Path, attributes: Mapping[str, Any]) -> None:
    """Make a Zarr v3 group; arrays written below it beforehand stay."""
    # As zarr-python writes it, without the event loop that takes most of its time.
    metadata = {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}
    path.mkdir(parents=True, exist_ok=True)
    (path / "zarr.json").write_text(json.dumps(metadata, indent=2), encoding="utf-8")


def open_to_write(path: Path) -> zarr.Group:
    """Open a group that :func:`create_group` has made, for :func:`write_elem`."""
    import zarr

    return zarr.open_group(path, mode="r+")


def write_elem(group: zarr.Group, key: str, elem: Any) -> None:
    """Write one element (table, array, mapping) as AnnData encodes it, in few and large files.

    Unlike ``anndata.io.write_elem`` it cuts arrays into shards as the rest of the store is cut,
    whatever anndata's settings say, and takes text columns of any pandas string dtype. Nothing
    that it is given changes.
    """
    # 0.5 s, Dask and all, which steps that write no element are spared.
    from anndata.experimental import write_dispatched

    if isinstance(elem, pd.DataFrame):
        elem = writable_frame(elem)

    def callback(write_func, store, name, value, *, dataset_kwargs, iospec) -> None:  # noqa: ARG001
        write_func(store, name, value, dataset_kwargs={**dataset_kwargs, **_cut(value)})

    write_dispatched(group, key, elem, callback=callback)


def write_flags(folder: Path, flags: Mapping[str, bool]) -> None:
    """Write a mapping of true and false, to the same bytes as `write_elem`, which imports anndata.

    Parameters
    ----------
    folder
        Where; made here.
    flags
        By name.
    """
    from numcodecs import Zstd

    create_group(folder, DICT)
    codecs = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
    metadata = {
        "shape": [],
        "data_type": "bool",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False,
        "codecs": codecs,
        "attributes": SCALAR,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    for name, flag in flags.items():
        array = folder / name
        array.mkdir()
        (array / "zarr.json").write_text(json.dumps(metadata, indent=2), encoding="utf-8")
        if flag:  # a chunk that holds nothing but the fill value has no file
            (array / "c").write_bytes(Zstd(0).encode(bytes([flag])))


def _cut(value: Any) -> dict[str, Any]:
    # "shards" is given always: otherwise anndata's settings decide, and warn that they change.
    if not isinstance(value, np.ndarray) or value.ndim == 0 or value.size == 0:
        return {"shards": None}
    rows = max(1, CHUNK_VALUES // max(1, value.size // len(value)))
    if len(value) <= rows:
        return {"chunks": value.shape, "shards": None}
    per_shard = min(SHARD_VALUES // CHUNK_VALUES, -(-len(value) // rows))
    return {
        "chunks": (rows, *value.shape[1:]),
        "shards": (rows * per_shard, *value.shape[1:]),
    }


def writable_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the same table with text columns that every version of anndata and pandas writes.

    Text without gaps becomes plain strings; text with gaps becomes categorical, as
    ``AnnData.strings_to_categoricals`` makes it. The index becomes plain strings.
    """
    changed = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.StringDtype) or column.dtype == object:
            has_gaps = bool(column.isna().any())
            changed[name] = (
                pd.Categorical(column.astype(object))
                if has_gaps
                else np.asarray(column, dtype=object)
            )
    out = frame.copy(deep=False)
    for name, values in changed.items():
        # A Series of dtype object: pandas 3 would infer its own string dtype again.
        out[name] = pd.Series(values, index=out.index, dtype=getattr(values, "dtype", object))
    out.index = pd.Index(np.asarray(frame.index.astype(str), dtype=object), dtype=object)
    out.index.name = frame.index.name
    return out


def consolidate(path: Path) -> None:
    """Gather all metadata in the root's ``zarr.json``, in an order that never varies.

    The same as ``zarr.consolidate_metadata`` makes, but for the order, which there follows the file
    system, and for the mark of a store that lacks no chunk (:data:`WRITTEN_BY`).
    """
    found = {file.parent.relative_to(path).as_posix(): file for file in path.rglob("zarr.json")}
    root = json.loads(found.pop(".").read_bytes())
    nodes = {}
    for name in sorted(found, key=lambda name: (name.count("/"), name)):
        nodes[name] = json.loads(found[name].read_bytes())
        if nodes[name]["node_type"] == "group":
            nodes[name]["consolidated_metadata"] = {**_INLINE, "metadata": {}}
    whole = {
        "attributes": root["attributes"] | WRITTEN_BY,
        "zarr_format": 3,
        "consolidated_metadata": {**_INLINE, "metadata": nodes},
        "node_type": "group",
    }
    # Without line breaks, which would take as long as all else here: a plate has fifty nodes.
    (path / "zarr.json").write_text(json.dumps(whole), encoding="utf-8")
