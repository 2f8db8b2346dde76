"""``zarr.json`` of an array, as zarr-python writes it.

Through zarr-python an array takes 5 ms, most of it in its event loop; a plate's table has thirty.
A test holds the files equal, byte for byte.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def array_metadata(
    shape: tuple[int, ...],
    dtype: np.dtype,
    *,
    chunk: tuple[int, ...],
    shard: tuple[int, ...],
    codecs: Sequence[Mapping[str, Any]],
    attributes: Mapping[str, Any],
) -> str:
    """Metadata of a sharded array, JSON.

    Parameters
    ----------
    shape, dtype
        Of the array; ``object`` stands for text.
    chunk, shard
        Shapes; a shard holds whole chunks, its index stands at its end.
    codecs
        What is done to the bytes of a chunk, as JSON has it.
    attributes
        Of the array.
    """
    if dtype.kind == "O":
        name, fill, encode = "string", "", {"name": "vlen-utf8", "configuration": {}}
    else:
        name, fill = dtype.name, dtype.type(0).item()
        encode = _LITTLE if dtype.itemsize > 1 else {"name": "bytes"}
    sharding = {
        "chunk_shape": chunk,
        "codecs": [encode, *codecs],
        "index_codecs": [_LITTLE, {"name": "crc32c"}],
        "index_location": "end",
    }
    metadata = {
        "shape": shape,
        "data_type": name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": attributes,
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(metadata, indent=2)
