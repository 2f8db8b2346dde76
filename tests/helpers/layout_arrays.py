"""Write the arrays of X to HDF5 and Zarr files, chunk by chunk if the layout needs it."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numcodecs import LZ4, Blosc, Delta, FixedScaleOffset, GZip, Zlib, Zstd
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.codecs.numcodecs import Delta as Delta3

if TYPE_CHECKING:
    import zarr

    from tests.helpers.layouts import Layout

# -- HDF5 ----------------------------------------------------------------------------------------


H5_CODECS = [
    *("gzip", "shuffle+gzip", "gzip+fletcher32", "shuffle+gzip+fletcher32", "fletcher32"),
    *("shuffle", "lzf", "shuffle+lzf", "scaleoffset", "zstd", "lz4", "bzip2"),
    *("shuffle+zstd", "zstd+fletcher32", "bitshuffle-none", "bitshuffle-lz4", "bitshuffle-zstd"),
    *(
        f"blosc-{cname}-{shuffle}"
        for cname in ("lz4", "zstd", "blosclz", "lz4hc", "zlib")
        for shuffle in ("NOSHUFFLE", "SHUFFLE", "BITSHUFFLE")
    ),
    *("blosc2-lz4-SHUFFLE", "blosc2-zstd-BITSHUFFLE", "blosc2-blosclz-NOFILTER"),
]


def h5_filters(name: str) -> dict[str, Any]:
    """Options of ``create_dataset`` for a chain of filters, such as ``"shuffle+gzip"``."""
    options: dict[str, Any] = {}
    for step in name.split("+"):
        if step in ("gzip", "lzf", "szip"):
            options["compression"] = step
        elif step in ("shuffle", "fletcher32"):
            options[step] = True
        elif step == "scaleoffset":
            options[step] = 0
        elif step != "none":
            options["compression"] = _plugin(*step.split("-"))
    return options


def _plugin(name: str, inner: str = "", shuffle: str = "SHUFFLE") -> Any:
    import hdf5plugin

    match name:
        case "blosc":
            return hdf5plugin.Blosc(inner, 5, getattr(hdf5plugin.Blosc, shuffle))
        case "blosc2":
            return hdf5plugin.Blosc2(inner, 5, getattr(hdf5plugin.Blosc2, shuffle))
        case "bitshuffle":
            return hdf5plugin.Bitshuffle(cname=inner)
        case "bzip2":
            return hdf5plugin.BZip2()
        case "lz4":
            return hdf5plugin.LZ4()
        case "zstd":
            return hdf5plugin.Zstd()
    raise ValueError(name)


def write_h5(group: h5py.Group, part: str, values: np.ndarray, chunk: int, layout: Layout) -> None:
    """Write one array.

    Storages: ``chunked`` (fixed length), ``resizable``, ``grown`` (in odd pieces), ``early``
    (allocated at once), ``backwards`` (the last chunk comes first in the file), ``holes`` (chunks
    of the fill value are missing), ``masked`` (some chunks skip some or all filters),
    ``contiguous``, ``compact``, ``external``, ``virtual``, ``odd-integers`` (20 of 32 bits).
    """
    n, storage = values.size, layout.storage
    options: dict[str, Any] = {}
    if storage in ("resizable", "grown"):
        options["maxshape"] = (None,)
    elif n == 0:  # a fixed chunk must not be larger than its array
        storage = "contiguous"
    else:
        chunk = min(chunk, n)
    fixed = storage in ("contiguous", "compact", "external", "virtual")
    if not fixed:
        options |= {"chunks": (chunk,), **h5_filters(layout.codec)}
    if part == "data" and layout.fill:
        options["fillvalue"] = values.dtype.type(layout.fill)
    if storage in ("early", "compact"):
        options["dcpl"] = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if storage == "early":
            options["dcpl"].set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        else:
            options["dcpl"].set_layout(h5py.h5d.COMPACT)
    if storage == "external":
        options["external"] = [(f"{group.file.filename}.{part}", 0, h5py.h5f.UNLIMITED)]
    if storage == "virtual":
        other = f"{group.file.filename}.{part}"
        with h5py.File(other, "w") as file:
            file["values"] = values
        source = h5py.VirtualSource(other, "values", (n,), values.dtype)
        view = h5py.VirtualLayout((n,), values.dtype)
        view[:] = source
        group.create_virtual_dataset(part, view)
        return
    kind: Any = values.dtype
    if storage == "odd-integers" and part == "data":
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_precision(20)
        values = -values  # reading these bits as int32 gives other numbers
    if storage in ("chunked", "early", "resizable", *(("contiguous", "compact") if fixed else ())):
        group.create_dataset(part, data=values, dtype=kind, **options)
        return
    if storage == "grown":
        grown = group.create_dataset(part, (0,), kind, **options)
        edges = [*range(0, n, 37), n]
        for first, stop in pairwise(edges):
            grown.resize((stop,))
            grown[first:stop] = values[first:stop]
        return
    made = group.create_dataset(part, (n,), kind, **options)
    if fixed or storage == "odd-integers":
        made[:] = values
        return
    pieces = [slice(first, min(first + chunk, n)) for first in range(0, n, chunk)]
    for i, piece in reversed([*enumerate(pieces)]):
        if storage == "holes" and (values[piece] == made.fillvalue).all():
            continue
        if storage == "masked":
            # The first two filters are shuffle and gzip; a set bit marks a skipped filter.
            whole = np.resize(values[piece], chunk).tobytes()
            mask = (0b11, 0b01, 0b10, 0)[i % 4]
            if not mask & 0b01:
                whole = np.frombuffer(whole, "u1").reshape(-1, values.itemsize).T.tobytes()
            made.id.write_direct_chunk(
                (piece.start,), whole if mask & 0b10 else zlib.compress(whole), mask
            )
            continue
        made[piece] = values[piece]
        group.file.flush()


# -- Zarr ----------------------------------------------------------------------------------------

_DELTA = FixedScaleOffset(offset=0, scale=1, dtype="<f4", astype="<u2")
ZARR2: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"compressors": None},
    "zstd": {"compressors": Zstd(3)},
    "zstd-checksum": {"compressors": Zstd(3, checksum=True)},
    "gzip": {"compressors": GZip(4)},
    "zlib": {"compressors": Zlib(4)},
    "lz4": {"compressors": LZ4()},
    "blosc-lz4-bit": {"compressors": Blosc("lz4", 5, Blosc.BITSHUFFLE)},
    "blosc-zstd-byte": {"compressors": Blosc("zstd", 3, Blosc.SHUFFLE)},
    "blosc-zlib-none": {"compressors": Blosc("zlib", 3, Blosc.NOSHUFFLE)},
    "blosc-blosclz-auto": {"compressors": Blosc("blosclz", 9, Blosc.AUTOSHUFFLE)},
    "blosc-small-blocks": {"compressors": Blosc("lz4hc", 5, Blosc.SHUFFLE, blocksize=64)},
}
_BLOSC3 = {
    f"blosc-{cname}-{shuffle}": {"compressors": BloscCodec(cname=cname, shuffle=shuffle)}
    for cname in ("lz4", "zstd", "blosclz", "lz4hc", "zlib")
    for shuffle in ("noshuffle", "shuffle", "bitshuffle")
}
ZARR3: dict[str, dict[str, Any]] = {
    "default": {},
    "none": {"compressors": None},
    "zstd-checksum": {"compressors": ZstdCodec(level=3, checksum=True)},
    "gzip": {"compressors": GzipCodec(level=4)},
    "crc32c": {"compressors": Crc32cCodec()},
    "zstd+crc32c": {"compressors": (ZstdCodec(level=1), Crc32cCodec())},
    "blosc+crc32c": {"compressors": (BloscCodec(cname="lz4"), Crc32cCodec())},
    "gzip+zstd": {"compressors": (GzipCodec(level=1), ZstdCodec(level=1))},
    "big": {"serializer": BytesCodec(endian="big")},
    "big-none": {"serializer": BytesCodec(endian="big"), "compressors": None},
    "big-blosc": {"serializer": BytesCodec(endian="big"), "compressors": BloscCodec(cname="lz4")},
    **_BLOSC3,
}


def write_zarr(
    group: zarr.Group, part: str, values: np.ndarray, chunk: int, layout: Layout
) -> None:
    """Write one array.

    Storages: ``chunked``; ``dots`` and ``slashes`` (names of the chunks), ``old-names`` (v2's
    names in v3); ``F``; ``holes`` (chunks of the fill value are missing); ``delta``, ``scaled``
    (filters); ``sharded`` and ``shard-index-first`` (three chunks per shard), ``shard-in-shard``,
    ``shard-compressed``, ``shard-index-bare`` (no checksum), ``one-shard``.
    """
    n, storage, v3 = values.size, layout.storage, layout.kind == "zarr3"
    options = dict((ZARR3 if v3 else ZARR2)[layout.codec])
    options["config"] = {"write_empty_chunks": storage != "holes"}
    if part == "data" and layout.fill:
        options["fill_value"] = layout.fill
    cut: int | None = None
    match storage:
        case "dots" | "slashes":
            separator = "." if storage == "dots" else "/"
            options["chunk_key_encoding"] = {
                "name": "default" if v3 else "v2",
                "separator": separator,
            }
        case "old-names":
            options["chunk_key_encoding"] = {"name": "v2", "separator": "."}
        case "F":
            options["order"] = "F"
        case "delta" if v3:
            options["filters"] = [Delta3(dtype=values.dtype.str)]
        case "delta":
            options["filters"] = [Delta(dtype=values.dtype.str)]
        case "scaled" if part == "data":
            options["filters"] = [_DELTA]
        case "sharded":
            options["shards"] = (3 * chunk,)
        case "one-shard":
            options["shards"] = (-(-max(n, 1) // chunk) * chunk,)
        case "shard-index-first":
            options["shards"] = {"shape": (3 * chunk,), "index_location": "start"}
        case "shard-in-shard" | "shard-compressed" | "shard-index-bare":
            inner = [BytesCodec(), ZstdCodec(level=1)]
            index = (
                [BytesCodec()] if storage == "shard-index-bare" else [BytesCodec(), Crc32cCodec()]
            )
            cut = 3 * chunk
            shard = ShardingCodec(chunk_shape=(chunk,), codecs=inner, index_codecs=index)
            if storage == "shard-in-shard":
                cut = 6 * chunk
                shard = ShardingCodec(chunk_shape=(3 * chunk,), codecs=[shard])
            options["serializer"] = shard
            options["compressors"] = ZstdCodec(level=1) if storage == "shard-compressed" else None
    array = group.create_array(
        part, shape=(n,), dtype=values.dtype, chunks=(cut or chunk,), **options
    )
    array[:] = values
