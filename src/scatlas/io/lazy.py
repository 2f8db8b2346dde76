"""Open an AnnData file with its matrices left on disk, as Dask arrays of row blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anndata
import dask.array as da
import numpy as np
import scipy.sparse as sp
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from scatlas.blocks import csr
from scatlas.errors import InputError
from scatlas.io.size import csr_blocks, dense_blocks, parse_bytes
from scatlas.io.source import (
    STRUCTURE,
    Matrix,
    cells,
    check_anndata,
    check_indices,
    convert,
    describe,
    frame_length,
    in_memory,
    is_group,
    read_dense,
    read_element,
    read_values,
)
from scatlas.io.store import Store, load_filters, reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

_INT32 = np.iinfo(np.int32).max
_MAPPINGS = ("obsm", "varm", "obsp", "varp")


def read_lazy(path: Path | str, *, block_budget: str | int = "256MB") -> anndata.AnnData:
    """Open an AnnData file without reading its matrices.

    Parameters
    ----------
    path
        h5ad file (any compression that h5py or hdf5plugin decodes) or Zarr store (v2 or v3,
        sharded or not); a local path or a URL that fsspec opens.
    block_budget
        Memory for blocks in work, as ``"256MB"``. A block of X takes at most an eighth of it
        (at 8 bytes a value, at least one cell). The cut depends on the file and on this value
        alone.

    Returns
    -------
    ``AnnData`` with

    - ``X`` and ``layers``: Dask arrays [cells x genes], cut along the cells. Blocks of a sparse
      matrix are ``scipy.sparse.csr_matrix`` with the values' type as stored and int32 indices
      (int64 when a block needs them); blocks of a dense matrix are ``numpy.ndarray``. A CSC
      matrix that fits the budget is converted. X is None when the file has none.
    - ``obs``, ``var``, ``uns``: in memory.
    - ``obsm``, ``varm``, ``obsp``, ``varp``: in memory, but dense arrays larger than the budget
      are Dask arrays too.

    ``raw`` is left out. Each block opens the file for itself, so the arrays can be computed by
    threads, processes or a cluster that sees the same path, and names in the graph depend on the
    path, its time and its size: equal calls give equal names.

    Raises
    ------
    InputError
        The file does not exist, is no AnnData file, its parts do not agree, or a CSC matrix is
        larger than the budget. When a block is computed: its values cannot be decoded, an index
        points outside the genes, or the file was replaced meanwhile.
    """
    budget = parse_bytes(block_budget)
    store = Store.at(path)
    with reading(store.path, STRUCTURE), store.open() as root:
        check_anndata(store.path, root)
        shape = tuple(frame_length(store.path, root, name) for name in ("obs", "var"))
        parts: dict[str, Any] = {
            name: read_element(store.path, root, name)
            for name in ("obs", "var", "uns")
            if name in root
        }
        if _present(root, "X"):
            parts["X"] = _matrix(store, root, "X", shape, budget)
        parts["layers"] = {
            name: _matrix(store, root, f"layers/{name}", shape, budget)
            for name in sorted(root.get("layers", {}))
        }
        for group in _MAPPINGS:
            parts[group] = {
                name: _small_or_lazy(store, root, f"{group}/{name}", budget)
                for name in sorted(root.get(group, {}))
            }
    return anndata.AnnData(**parts)


def read_matrix(
    path: Path | str, *, block_budget: str | int = "256MB"
) -> tuple[da.Array, pd.DataFrame]:
    """X of an AnnData file as :func:`read_lazy` gives it, and var, without reading obs.

    An atlas's obs takes a hundred times the memory of its blocks, and most steps need none of it.

    Parameters
    ----------
    path, block_budget
        As for :func:`read_lazy`.

    Returns
    -------
    Dask X [cells x genes] and var.

    Raises
    ------
    InputError
        As :func:`read_lazy`, or the file has no X.
    """
    store = Store.at(path)
    with store.open() as root:
        check_anndata(store.path, root)
        if not _present(root, "X"):
            msg = f"{path}: there is no X: give a file that holds a matrix"
            raise InputError(msg)
        shape = tuple(frame_length(store.path, root, name) for name in ("obs", "var"))
        x = _matrix(store, root, "X", shape, parse_bytes(block_budget))
        return x, read_element(store.path, root, "var")


def _present(root: Any, key: str) -> bool:
    return key in root and root[key].attrs.get("encoding-type") != "null"


def _matrix(store: Store, root: Any, key: str, shape: tuple[int, int], budget: int) -> da.Array:
    """Dask array of an X-like element."""
    matrix = describe(store.path, root, key, shape)
    if matrix.format == "dense":
        return _dense(store, matrix, budget)
    if matrix.format == "csc":
        whole = convert(store.path, store.kind, root, matrix, budget)
        blocks = csr_blocks(whole.indptr, budget)
        tasks = [(_slice_rows, whole, first, stop) for first, stop in blocks]
    else:
        blocks = csr_blocks(matrix.indptr, budget)
        tasks = [
            # Each block carries its own offsets: no block reads indptr again.
            (_read_csr, store, key, first, matrix.indptr[first : stop + 1], shape[1])
            for first, stop in blocks
        ]
    meta = sp.csr_matrix((0, 0), dtype=matrix.dtype)
    return _array(store, matrix, blocks, tasks, meta)


def _dense(store: Store, matrix: Matrix, budget: int) -> da.Array:
    row_bytes = int(np.prod(matrix.shape[1:])) * matrix.dtype.itemsize
    blocks = dense_blocks(matrix.shape[0], row_bytes, budget)
    tasks = [(_read_dense, store, matrix.key, first, stop) for first, stop in blocks]
    return _array(store, matrix, blocks, tasks, np.empty((0, 0), dtype=matrix.dtype))


def _array(
    store: Store,
    matrix: Matrix,
    blocks: list[tuple[int, int]],
    tasks: list[tuple[Callable, Any]],
    meta: Any,
) -> da.Array:
    name = f"read-{matrix.key.replace('/', '-')}-{tokenize(store, matrix.key, blocks)}"
    graph = {(name, i, 0): task for i, task in enumerate(tasks)}
    chunks = (tuple(stop - first for first, stop in blocks), (matrix.shape[1],))
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[])
    return da.Array(layers, name, chunks=chunks, meta=meta, dtype=matrix.dtype)


def _small_or_lazy(store: Store, root: Any, key: str, budget: int) -> Any:
    element = root[key]
    dense = not is_group(element) and len(element.shape) == 2 and element.dtype.kind in "biuf"
    if not dense or element.dtype.itemsize * int(np.prod(element.shape)) <= budget:
        return read_element(store.path, root, key)
    load_filters(store.path, element)
    matrix = Matrix(key, "dense", tuple(element.shape), in_memory(element.dtype))
    return _dense(store, matrix, budget)


def _read_csr(
    store: Store, key: str, first: int, indptr: np.ndarray, n_genes: int
) -> sp.csr_matrix:
    """Rows of a CSR element; ``indptr`` are their offsets in the whole matrix."""
    store.check_unchanged()
    rows = cells(first, first + indptr.size - 1)
    begin, end = int(indptr[0]), int(indptr[-1])
    with reading(store.path, STRUCTURE), store.open() as root:
        load_filters(store.path, root[key])  # a fresh process has not loaded them yet
        data, indices = read_values(store.path, root, key, begin, end, rows)
    check_indices(store.path, key, indices, n_genes, rows)
    # One width for both, as SciPy wants it.
    width = np.int32 if max(end - begin, n_genes) <= _INT32 else np.int64
    offsets = (indptr - begin).astype(width, copy=False)
    return csr(data, indices.astype(width, copy=False), offsets, n_genes)


def _read_dense(store: Store, key: str, first: int, stop: int) -> np.ndarray:
    store.check_unchanged()
    with reading(store.path, STRUCTURE), store.open() as root:
        load_filters(store.path, root[key])
        return read_dense(store.path, root, key, first, stop)


def _slice_rows(whole: sp.csr_matrix, first: int, stop: int) -> sp.csr_matrix:
    return whole[first:stop]
