"""One plate in many layouts of HDF5 and Zarr, as of other tools, versions and options.

h5py and zarr write the arrays of X directly, so each file has the layout of its name; anndata
writes ``obs`` and ``var``. ``read_reference`` reads a file slowly with h5py or zarr.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from anndata.io import write_elem
from zarr.storage import MemoryStore

from scatlas.blocks import csr
from tests.conftest import simulate
from tests.helpers.layout_arrays import H5_CODECS, ZARR2, ZARR3, write_h5, write_zarr

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from scatlas.io.matrices.store_source import StoreSource

PARTS = ("data", "indices", "indptr")
ANNDATA = {"encoding-type": "anndata", "encoding-version": "0.1.0"}
CSR = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}


@dataclass(frozen=True)
class Layout:
    """Layout on disk of ``data``, ``indices`` and ``indptr`` of X, in this order below."""

    name: str
    kind: Literal["h5ad", "zarr2", "zarr3"]
    codec: str = "none"  # key of `H5_CODECS`, `ZARR2` or `ZARR3` of `layout_arrays`
    chunks: tuple[int, int, int] = (50, 35, 10)
    storage: str = "chunked"  # see `layout_arrays`; "anndata": as it writes for a user
    dtypes: tuple[str, str, str] = ("<f4", "<i4", "<i8")
    fill: float = 0  # of data
    file: Mapping[str, Any] = field(default_factory=dict)  # options


class Plain(NamedTuple):
    """The complete arrays of X, as h5py or zarr reads them."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray


def plate(n_cells: int = 61, n_genes: int = 40, *, seed: int = 0) -> sp.csr_matrix:
    """Counts with empty cells, and with a run of ones, which gives chunks of a single value."""
    x = simulate(n_cells, n_genes, seed=seed)
    x.data[x.nnz // 3 : x.nnz // 3 + 100] = 1
    return x


def frames(n_cells: int, n_genes: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Names, text, numbers and categories of cells and genes."""
    obs = pd.DataFrame(
        {
            "line": pd.Categorical([f"line{i % 3}" for i in range(n_cells)]),
            "depth": np.linspace(0, 1, n_cells),
            "note": [f"note {i}" for i in range(n_cells)],
        },
        index=[f"cell{i}" for i in range(n_cells)],
    )
    names = [f"{'MT-' if j < 3 else ''}gene{j}" for j in range(n_genes)]
    return obs, pd.DataFrame({"id": np.arange(n_genes) * 7}, index=names)


def write(x: sp.csr_matrix, folder: Path, layout: Layout) -> Path:
    path = folder / f"{layout.name}.{layout.kind.rstrip('23')}"
    arrays = {
        part: getattr(x, part).astype(dtype)
        for part, dtype in zip(PARTS, layout.dtypes, strict=True)
    }
    with warnings.catch_warnings():
        # anndata announces another default, zarr warns of extensions of the specification.
        warnings.simplefilter("ignore")
        if layout.storage == "anndata":
            adata = ad.AnnData(sp.csr_matrix(x, dtype=layout.dtypes[0]), *frames(*x.shape))
            if layout.kind == "h5ad":
                adata.write_h5ad(path, **layout.file)
            else:
                with ad.settings.override(zarr_write_format=int(layout.kind[-1]), **layout.file):
                    adata.write_zarr(path)
        elif layout.kind == "h5ad":
            with h5py.File(path, "w", **layout.file) as root:
                _write_anndata(root, *x.shape)
                for part, chunk in zip(PARTS, layout.chunks, strict=True):
                    write_h5(root["X"], part, arrays[part], chunk, layout)
        else:
            for name, content in _without_counts(int(layout.kind[-1]), *x.shape).items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
            root = zarr.open_group(path, mode="r+")
            for part, chunk in zip(PARTS, layout.chunks, strict=True):
                write_zarr(root["X"], part, arrays[part], chunk, layout)
            if layout.file.get("consolidated"):
                zarr.consolidate_metadata(path)
    return path


@cache
def _without_counts(zarr_format: int, n_cells: int, n_genes: int) -> dict[str, bytes]:
    """Files of a Zarr store without the arrays of X: anndata takes longer for them than a test."""
    store: dict[str, Any] = {}
    root = zarr.create_group(MemoryStore(store), zarr_format=zarr_format)
    _write_anndata(root, n_cells, n_genes)
    return {name: content.to_bytes() for name, content in store.items()}


def _write_anndata(root: Any, n_cells: int, n_genes: int) -> None:
    root.attrs.update(ANNDATA)
    for name, table in zip(("obs", "var"), frames(n_cells, n_genes), strict=True):
        write_elem(root, name, table)
    root.create_group("X").attrs.update({**CSR, "shape": [n_cells, n_genes]})


def read_reference(path: Path) -> Plain:
    """Read the complete arrays of X with h5py or zarr alone."""
    if path.suffix == ".h5ad":
        import hdf5plugin  # noqa: F401  (importing it registers its filters)

        with h5py.File(path) as root:
            return Plain(*(root["X"][part][:] for part in PARTS))
    root = zarr.open_group(path, mode="r", use_consolidated=False)
    return Plain(*(np.asarray(root[f"X/{part}"][:]) for part in PARTS))


def native(dtype: np.dtype) -> np.dtype:
    """Type of values in memory that are stored as ``dtype``."""
    dtype = dtype.newbyteorder("=")
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def read_rows(source: StoreSource, first: int, stop: int) -> sp.csr_matrix:
    """Rows of a CSR X as stored."""
    (block,) = source.row_blocks([(first, stop)])
    return csr(*block.raw(), block.offsets, source.shape[1])


def assert_rows(rows: sp.csr_matrix, wanted: Plain, first: int, stop: int) -> None:
    """Check rows from `open_counts`: equal values, types as stored."""
    begin, end = int(wanted.indptr[first]), int(wanted.indptr[stop])
    assert rows.shape == (stop - first, rows.shape[1])
    assert rows.data.dtype == native(wanted.data.dtype)
    assert rows.indices.dtype == native(wanted.indices.dtype)
    np.testing.assert_array_equal(rows.indptr, wanted.indptr[first : stop + 1] - begin)
    np.testing.assert_array_equal(rows.indices, wanted.indices[begin:end])
    np.testing.assert_array_equal(rows.data, wanted.data[begin:end])


def assert_block(x: sp.csr_matrix, wanted: Plain) -> None:
    """Check a whole lazy X: equal values, index types that SciPy takes."""
    assert x.data.dtype == native(wanted.data.dtype)
    assert x.indices.dtype in (np.int32, np.int64)
    np.testing.assert_array_equal(x.indptr, wanted.indptr)
    np.testing.assert_array_equal(x.indices, wanted.indices)
    np.testing.assert_array_equal(x.data, wanted.data)


# -- the layouts ---------------------------------------------------------------------------------

_STORAGES = ["chunked", "resizable", "grown", "early", "backwards", "contiguous", "compact"]
_STORAGES += ["anndata"]
_SHARDED = ["sharded", "shard-index-first", "one-shard"]
_TYPES = [
    *[(data, "<i4", "<i8") for data in ("<f8", "<f2", "<i4", "<i8", "|u1", "|i1", "<u2", "<u8")],
    *[("<f4", "<i8", "<i8"), ("<f4", "<u2", "<i4"), ("<u4", "<u4", "<u8"), ("|b1", "|u1", "<u2")],
    *[(">f4", ">i4", ">i4"), (">f8", ">i8", ">i8"), (">u2", ">u2", ">u4"), (">f2", ">i2", ">i8")],
]


# A file of an interrupted writer: HDF5 reads ones for missing chunks.
INCOMPLETE = Layout("h5-incomplete", "h5ad", "gzip", (7, 5, 3), "holes", fill=1)


def _is_own(codec: str) -> bool:
    """Whether to test this layout alone: each codec of Blosc, and each shuffle with one codec."""
    family, _, inner = codec.lower().partition("-")
    return family != "blosc" or inner.startswith("lz4-") or inner.endswith("-shuffle")


def _word(dtype: str) -> str:
    return dtype.lstrip("<|").replace(">", "big")


def _layouts() -> list[Layout]:
    h5 = [Layout(f"h5-{codec}", "h5ad", codec) for codec in H5_CODECS if _is_own(codec)]
    latest = {"libver": "latest"}
    for storage in _STORAGES:
        h5.append(Layout(f"h5-{storage}", "h5ad", storage=storage))
        if storage != "anndata":
            h5.append(Layout(f"h5-{storage}-latest", "h5ad", storage=storage, file=latest))
    for storage in ("resizable", "grown", "early", "backwards", "masked"):
        codec = "shuffle+gzip"
        h5.append(Layout(f"h5-{storage}-gzip", "h5ad", codec, storage=storage))
        h5.append(Layout(f"h5-{storage}-gzip-latest", "h5ad", codec, storage=storage, file=latest))
    whole = (10**5, 10**5, 10**5)
    h5 += [
        *[Layout(f"h5-{name}", "h5ad", storage=name) for name in ("external", "virtual")],
        Layout("h5-odd-integers", "h5ad", storage="odd-integers", dtypes=("<i4", "<i4", "<i8")),
        Layout("h5-userblock", "h5ad", "gzip", file={"userblock_size": 1024}),
        Layout("h5-userblock-latest", "h5ad", file={"userblock_size": 512, **latest}),
        Layout("h5-small-chunks", "h5ad", "gzip", (7, 7, 7)),
        Layout("h5-small-chunks-latest", "h5ad", chunks=(7, 7, 7), file=latest),
        Layout("h5-one-chunk", "h5ad", "gzip", whole),
        Layout("h5-one-chunk-latest", "h5ad", "gzip", whole, file=latest),
        Layout("h5-chunk-beyond-array", "h5ad", "shuffle+gzip", whole, "resizable"),
        Layout("h5-chunk-beyond-array-latest", "h5ad", chunks=whole, storage="grown", file=latest),
        Layout("h5-anndata-gzip", "h5ad", storage="anndata", file={"compression": "gzip"}),
        Layout("h5-anndata-lzf", "h5ad", storage="anndata", file={"compression": "lzf"}),
    ]
    zarrs = [Layout(f"z2-{codec}", "zarr2", codec) for codec in ZARR2]
    zarrs += [
        Layout(f"z2-{name}", "zarr2", "default", storage=name)
        for name in ("dots", "slashes", "F", "delta", "scaled", "anndata")
    ]
    zarrs += [Layout(f"z3-{codec}", "zarr3", codec) for codec in ZARR3 if _is_own(codec)]
    zarrs += [
        Layout(f"z3-{name}-{codec}", "zarr3", codec, storage=name)
        for name in _SHARDED
        for codec in ("default", "none", "blosc-lz4-bitshuffle", "blosc+crc32c", "gzip", "big")
    ]
    bare = ("shard-in-shard", "shard-compressed", "shard-index-bare")
    zarrs += [
        *[Layout(f"z3-{name}", "zarr3", storage=name) for name in bare],
        *[Layout(f"z3-{n}", "zarr3", "default", storage=n) for n in ("dots", "old-names", "delta")],
        Layout("z3-anndata", "zarr3", storage="anndata"),
        Layout("z3-anndata-sharded", "zarr3", storage="anndata", file={"auto_shard_zarr_v3": True}),
        Layout("z2-consolidated", "zarr2", "default", file={"consolidated": True}),
        Layout("z3-consolidated", "zarr3", "default", file={"consolidated": True}),
        Layout("z2-one-chunk", "zarr2", "default", whole),
        Layout("z3-one-chunk", "zarr3", "default", whole),
        Layout("z3-small-chunks", "zarr3", "none", (7, 5, 3)),
        Layout("z3-small-shards", "zarr3", "blosc-lz4-shuffle", (7, 5, 3), "sharded"),
    ]
    for kind in ("zarr2", "zarr3"):
        zarrs += [
            Layout(f"{kind}-holes", kind, "default", (7, 5, 3), "holes"),
            Layout(f"{kind}-holes-of-ones", kind, "default", (7, 5, 3), "holes", fill=1),
        ]
    zarrs.append(Layout("z3-sharded-fill", "zarr3", "default", (7, 5, 3), "sharded", fill=1))
    typed = [
        replace(base, name=f"{base.name}-{'-'.join(_word(t) for t in types)}", dtypes=types)
        for types in _TYPES
        for base in (
            Layout("h5-types", "h5ad", "shuffle+gzip"),
            Layout("h5-flat", "h5ad", storage="contiguous"),
            Layout("z2-types", "zarr2", "default"),
            Layout("z3-types", "zarr3", "blosc-lz4-shuffle", storage="sharded"),
        )
        # Swapped byte order with every reader; other types with two.
        if base.name in ("h5-types", "z3-types") or types[0].startswith(">")
    ]
    return [*h5, *zarrs, *typed]


LAYOUTS = {layout.name: layout for layout in _layouts()}
