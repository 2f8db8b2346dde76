"""Open an AnnData file with its matrices left on disk, as Dask arrays of row blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from scatlas._util.numbers import parse_bytes
from scatlas.compute.memory import csr_blocks, dense_blocks
from scatlas.compute.threads import BLOCK_BYTES
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import (
    STRUCTURE,
    attribute,
    check_anndata,
    is_group,
    table_lengths,
)
from scatlas.io.files.anndata_file import Store, keep_open, load_filters
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.csr_row_block import RowBlock, row_blocks
from scatlas.io.matrices.layout import StoredMatrix, cells, in_memory, read_element, read_range
from scatlas.io.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import anndata
    import pandas as pd

    from scatlas.io.files.anndata_file import OpenFile
    from scatlas.io.files.local_zarr import StoredGroup

_MAPPINGS = ("obsm", "varm", "obsp", "varp")


def read_lazy(path: Path | str, *, block_budget: str | int = "256MB") -> anndata.AnnData:
    """Open an AnnData file without reading its matrices.

    Parameters
    ----------
    path
        h5ad file (any compression that h5py or hdf5plugin decodes) or Zarr store (v2 or v3,
        sharded or not); a local path or a URL that fsspec opens.
    block_budget
        Memory for the blocks in flight, as ``"256MB"``. A block of X takes at most an eighth of
        it, at most 32 MB at 8 bytes per value, and at least one cell. The bounds of blocks depend
        on the file and on this option alone.

    Returns
    -------
    ``AnnData`` with

    - ``X``, ``layers`` and ``raw.X``: Dask arrays [cells x genes], cut along the cells. Blocks of a
      sparse matrix are ``scipy.sparse.csr_matrix`` with the values' type as stored and int32
      indices (int64 when a block needs them); blocks of a dense matrix are ``numpy.ndarray``. A
      CSC matrix that fits the budget is converted. X and raw are None when the file has none.
    - ``obs``, ``var``, ``uns``, ``raw.var``: in memory.
    - ``obsm``, ``varm``, ``obsp``, ``varp``, ``raw.varm``: in memory, but dense arrays larger than
      the budget are Dask arrays too.

    Each block opens the file for itself, so the arrays can be computed by
    threads, processes or a cluster that sees the same path, and names in the graph depend on the
    path, its time and its size (of a Zarr store, those of every file): equal calls give equal
    names.

    Until the last of its lazy arrays is gone an h5ad file stays open for reading, so that HDF5
    refuses to let this process write to it. A Zarr store has no such guard.

    Raises
    ------
    InputError
        The file does not exist, is no AnnData file, its parts do not agree, or a CSC matrix is
        larger than the budget. When a block is computed: its values cannot be decoded, an index
        points outside the genes, or the file was replaced meanwhile.
    """
    import anndata

    budget = parse_bytes(block_budget)
    store = Store.find(path)
    with reading(store.path, STRUCTURE), store.open() as root:
        check_anndata(store.path, root)
        shape = table_lengths(store.path, root)
        parts: dict[str, Any] = {}
        # Elements of the wrong length are refused before they are read: a damaged length may ask
        # for terabytes of memory.
        if _present(root, "X"):
            parts["X"] = _matrix(store, root, "X", shape, budget)
        for name in ("obs", "var"):
            parts[name] = Table.open(store.path, root, name).read()
        if "uns" in root:
            parts["uns"] = read_element(store.path, root, "uns")
        parts["layers"] = {
            name: _matrix(store, root, f"layers/{name}", shape, budget)
            for name in sorted(root.get("layers", {}))
        }
        for group in _MAPPINGS:
            parts[group] = _mapping(store, root, group, budget)
        parts["raw"] = _raw(store, root, shape[0], budget)
    return anndata.AnnData(**parts)


def read_matrix(
    path: Path | str,
    *,
    compact: bool = False,
    block_budget: str | int = "256MB",
    largest_block: int = BLOCK_BYTES,
) -> tuple[da.Array, pd.DataFrame]:
    """X of an AnnData file as :func:`read_lazy` gives it, and var, without reading obs.

    An atlas's obs takes a hundred times the memory of its blocks, and most steps need none of it.

    Parameters
    ----------
    path, block_budget
        As for :func:`read_lazy`.
    compact
        Leave the indices of CSR blocks as narrow as they are stored (uint16, say). Our kernels
        take them, and they are half the memory; SciPy's functions do not.
    largest_block
        Bytes that a block of X takes at most, in place of 32 MB.

    Returns
    -------
    Dask X [cells x genes] and var.

    Raises
    ------
    InputError
        As :func:`read_lazy`, or the file has no X.
    """
    store = Store.find(path)
    with store.open() as root:
        check_anndata(store.path, root)
        if not _present(root, "X"):
            raise InputError(f"{path}: there is no X: give a file that holds a matrix")
        shape = table_lengths(store.path, root)
        budget = parse_bytes(block_budget)
        x = _matrix(store, root, "X", shape, budget, largest_block, compact=compact)
        return x, Table.open(store.path, root, "var").read()


def read_embedding(path: Path | str, name: str, *, block_budget: str | int = "256MB") -> da.Array:
    """Coordinates ``obsm[name]`` of the cells of an AnnData file, left on disk: dense blocks."""
    store, key = Store.find(path), f"obsm/{name}"
    with store.open() as root:
        check_anndata(store.path, root)
        if key not in root:
            raise InputError(f"{path}: there is no obsm[{name!r}]: give a file that holds it")
        n_cells, n_dims = root[key].shape
        matrix = StoredMatrix(
            store.path, key, "dense", (n_cells, n_dims), in_memory(root[key].dtype)
        )
        return _dense(store, matrix, parse_bytes(block_budget))


def _row_blocks_of(x: da.Array) -> dict[Any, RowBlock]:
    """Row blocks that a matrix reads as they are, by its keys; none of any other matrix."""
    layer = getattr(x.dask, "layers", {}).get(x.name)
    tasks = layer.mapping if isinstance(layer, MaterializedLayer) else {}
    readers = (RowBlock.read, RowBlock.compact)
    if not all(isinstance(task, tuple) and task[0] in readers for task in tasks.values()):
        return {}
    return {key: task[1] for key, task in tasks.items()}


def values_alone(x: da.Array) -> da.Array:
    """A CSR matrix on disk without gene indices (each is 0), half the bytes; others as they are."""
    row_blocks = _row_blocks_of(x)
    if not row_blocks:
        return x
    name = f"values-{x.name}"
    graph: dict[Any, tuple[Any, ...]] = {
        (name, *key[1:]): (RowBlock.values, block) for key, block in row_blocks.items()
    }
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[])
    return da.Array(layers, name, chunks=x.chunks, meta=x._meta, dtype=x.dtype)


def stored_x(x: Any) -> Store | None:
    """The file whose CSR X this is, whole and unchanged, as from :func:`read_lazy`; else None."""
    row_blocks = _row_blocks_of(x) if isinstance(x, da.Array) else {}
    block = next(iter(row_blocks.values()), None)
    return block.store if block is not None and block.key == "X" else None


def _present(root: StoredGroup, key: str) -> bool:
    return key in root and attribute(root[key], "encoding-type") != "null"


def _raw(store: Store, root: StoredGroup, n_cells: int, budget: int) -> dict[str, Any] | None:
    """Parts of ``raw``, X left on disk; None without X. Old files have dots in their names."""
    if "raw.X" in root:
        x, var, varm = "raw.X", "raw.var", "raw.varm"
    elif _present(root, "raw") and _present(root, "raw/X"):
        x, var, varm = "raw/X", "raw/var", "raw/varm"
    else:
        return None
    shape = n_cells, Table.open(store.path, root, var).n_rows
    return {
        "X": _matrix(store, root, x, shape, budget),
        "var": read_element(store.path, root, var),
        "varm": _mapping(store, root, varm, budget),
    }


def _matrix(
    store: Store,
    root: StoredGroup,
    key: str,
    shape: tuple[int, int],
    budget: int,
    largest: int = BLOCK_BYTES,
    *,
    compact: bool = False,
) -> da.Array:
    matrix = StoredMatrix.find(store.path, root, key, shape)
    if matrix.format == "dense":
        return _dense(store, matrix, budget, largest)
    if matrix.format == "csc":
        whole = matrix.to_csr(root, store.kind, budget)
        blocks = csr_blocks(whole.indptr, budget, largest)
        tasks: list[tuple[Any, ...]] = [(_slice_rows, whole, *rows) for rows in blocks]
    else:
        blocks = csr_blocks(matrix.indptr, budget, largest)
        read, open_file = RowBlock.compact if compact else RowBlock.read, keep_open(store)
        parts = row_blocks(store, root, matrix, blocks)
        tasks = [(read, replace(part, open_file=open_file)) for part in parts]
    meta = sp.csr_matrix((0, 0), dtype=matrix.dtype)
    return _array(store, matrix, blocks, tasks, meta, kind="compact" if compact else "read")


def _dense(store: Store, matrix: StoredMatrix, budget: int, largest: int = BLOCK_BYTES) -> da.Array:
    row_bytes = int(np.prod(matrix.shape[1:])) * matrix.dtype.itemsize
    blocks = dense_blocks(matrix.shape[0], row_bytes, budget, largest)
    open_file = keep_open(store)
    tasks = [(_read_dense, store, matrix.key, first, stop, open_file) for first, stop in blocks]
    return _array(store, matrix, blocks, tasks, np.empty((0, 0), dtype=matrix.dtype))


def _array(
    store: Store,
    matrix: StoredMatrix,
    blocks: list[tuple[int, int]],
    tasks: Sequence[tuple[Any, ...]],
    meta: Any,
    *,
    kind: str = "read",
) -> da.Array:
    name = f"{kind}-{matrix.key.replace('/', '-')}-{tokenize(store, matrix.key, blocks)}"
    graph: dict[Any, tuple[Any, ...]] = {(name, i, 0): task for i, task in enumerate(tasks)}
    chunks = (tuple(stop - first for first, stop in blocks), (matrix.shape[1],))
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[])
    return da.Array(layers, name, chunks=chunks, meta=meta, dtype=matrix.dtype)


def _mapping(store: Store, root: StoredGroup, group: str, budget: int) -> dict[str, Any]:
    names = sorted(root.get(group, {}))
    return {name: _small_or_lazy(store, root, f"{group}/{name}", budget) for name in names}


def _small_or_lazy(store: Store, root: StoredGroup, key: str, budget: int) -> Any:
    element = root[key]
    dense = not is_group(element) and len(element.shape) == 2 and element.dtype.kind in "biuf"
    if not dense or element.dtype.itemsize * int(np.prod(element.shape)) <= budget:
        return read_element(store.path, root, key)
    load_filters(store.path, element)
    n_rows, n_columns = element.shape
    matrix = StoredMatrix(store.path, key, "dense", (n_rows, n_columns), in_memory(element.dtype))
    return _dense(store, matrix, budget)


def _read_dense(
    store: Store,
    key: str,
    first: int,
    stop: int,
    open_file: OpenFile | None,  # noqa: ARG001  (the task keeps it)
) -> np.ndarray:
    store.check_unchanged()
    with reading(store.path, STRUCTURE), store.open() as root:
        load_filters(store.path, root[key])
        return read_range(store.path, root, key, first, stop, cells(first, stop))


def _slice_rows(whole: sp.csr_matrix, first: int, stop: int) -> sp.csr_matrix:
    return whole[first:stop]
