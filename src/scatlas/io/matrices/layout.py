"""Matrices of a file as they lie on disk, cells x genes or transposed: structure, checked, and
plain reading.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
import scipy.sparse as sp

from scatlas.compute.memory import BYTES_PER_VALUE, block_bytes
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import attribute, for_anndata, is_group
from scatlas.io.files.anndata_file import load_filters
from scatlas.io.files.chunk_locations import read_without_plugins
from scatlas.io.files.read_errors import REMEDY, reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from scatlas.io.files.local_zarr import StoredGroup

logger = logging.getLogger(__name__)
_SPARSE: dict[str, Literal["csr", "csc"]] = {"csr_matrix": "csr", "csc_matrix": "csc"}


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix [cells x genes] in a file."""

    path: str
    key: str
    # Dense of genes x cells is transposed; lists are per cell.
    format: Literal["csr", "csc", "dense", "transposed", "lists"]
    shape: tuple[int, int]
    dtype: np.dtype  # of the values when read, see in_memory
    # Offsets of the rows, int64 (of the columns for csc); empty for dense ones.
    indptr: np.ndarray = field(repr=False, default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def find(cls, path: str, root: StoredGroup, key: str, shape: tuple[int, int]) -> StoredMatrix:
        """Find how a matrix is stored and check that its parts agree with the tables' lengths."""
        with reading(path, key):
            element = root[key]
            encoding = attribute(element, "encoding-type", "array")
            load_filters(path, element)
        name, shape_name = f"{path}: {key}", "shape"
        if "h5sparse_format" in element.attrs:  # of AnnData before 0.7
            encoding = f"{attribute(element, 'h5sparse_format')}_matrix"
            shape_name = "h5sparse_shape"
        if not is_group(element) and len(element.shape) == 2:
            _check_shape(name, tuple(element.shape), shape)
            check_kind(name, element.dtype)
            return cls(path, key, "dense", shape, in_memory(element.dtype))
        if encoding not in _SPARSE or not is_group(element):
            raise InputError(f"{name} is stored as {encoding!r}: store counts as a CSR matrix")
        with reading(path, f"the shape of {key}"):
            n_rows, n_columns = (int(n) for n in element.attrs[shape_name])
        _check_shape(name, (n_rows, n_columns), shape)
        return cls.find_sparse(path, root, key, shape, _SPARSE[encoding])

    @classmethod
    def find_sparse(
        cls, path: str, root: Any, key: str, shape: tuple[int, int], kind: Literal["csr", "csc"]
    ) -> StoredMatrix:
        """Check that lengths, offsets and types of a sparse matrix agree."""
        element, name = root[key], f"{path}: {key}"
        lengths = _lengths(path, key, element)
        n_rows = shape[0 if kind == "csr" else 1]
        # Before memory is set aside for it: a damaged length may ask for terabytes.
        _check_length(name, lengths["indptr"], n_rows, kind)
        with reading(path, f"{key}/indptr"):
            stored = element["indptr"]
            is_hdf5 = isinstance(stored, h5py.Dataset)
            offsets = read_without_plugins(stored) if is_hdf5 else stored[:]
            indptr = np.asarray(offsets).astype(np.int64, copy=False)
        _check_offsets(path, key, indptr, lengths, kind)
        return cls(path, key, kind, shape, in_memory(element["data"].dtype), indptr)

    @property
    def n_values(self) -> int:
        """Stored values."""
        if self.format in ("dense", "transposed"):
            return self.shape[0] * self.shape[1]
        return int(self.indptr[-1])

    def to_csr(self, root: StoredGroup, kind: str, budget: int) -> sp.csr_matrix:
        """CSR matrix of a dense or CSC element that fits the budget."""
        stored, n_bytes = root[self.key], self.n_values * self.dtype.itemsize
        if self.format == "csc":
            n_bytes += self.n_values * stored["indices"].dtype.itemsize
        if n_bytes > budget:
            raise InputError(
                f"{self.path}: {self.key} is a {'CSC' if self.format == 'csc' else 'dense'} matrix "
                f"of {n_bytes / 1e6:,.1f} MB, more than the block budget of {budget / 1e6:,.1f} "
                f"MB: convert it to CSR with: {self._conversion(kind)}"
            )
        logger.info("%s: %s is %s: converted to CSR", self.path, self.key, self.format)
        if self.format == "dense":
            rows = cells(0, self.shape[0])
            return sp.csr_matrix(read_range(self.path, root, self.key, 0, self.shape[0], rows))
        data, indices = (
            read_range(self.path, root, f"{self.key}/{part}", 0, self.n_values, "all genes")
            for part in ("data", "indices")
        )
        check_indices(self.path, self.key, indices, self.shape[0], "all genes")
        return sp.csc_matrix((data, indices, self.indptr), shape=self.shape).tocsr()

    def _conversion(self, kind: str) -> str:
        suffix = "h5ad" if kind == "h5ad" else "zarr"
        name = self.path.rstrip("/").rpartition("/")[2] if "://" in self.path else self.path
        target = f"{name.removesuffix('.' + suffix)}.csr.{suffix}"
        holder = f"a.layers[{self.key.split('/', 1)[1]!r}]" if self.key[0] == "l" else "a.X"
        before = after = ""
        if self.key.startswith("raw"):
            holder, before, after = "r.X", "r = a.raw.to_adata(); ", "a.raw = r; "
        code = (
            f"import anndata, scipy.sparse; a = anndata.read_{suffix}({name!r}); {before}"
            f"{holder} = scipy.sparse.csr_matrix({holder}); {after}a.write_{suffix}({target!r})"
        )
        return f'python -c "{code}"'


def in_memory(dtype: np.dtype) -> np.dtype:
    """Type that SciPy and Numba take for values stored as ``dtype``: float32 for float16."""
    native = np.dtype(dtype).newbyteorder("=")
    return np.dtype(np.float32) if native == np.float16 else native


def _lengths(path: str, key: str, element: Any) -> dict[str, int]:
    parts = {"data": "biuf", "indices": "iu", "indptr": "iu"}
    for part in parts:
        if part not in element:
            raise InputError(f"{path}: {key} has no {part}: the file is not complete; {REMEDY}")
    for part, kinds in parts.items():
        with reading(path, f"{key}/{part}"):
            _check_line(f"{path}: {key}/{part}", element[part])
            check_kind(f"{path}: {key}/{part}", element[part].dtype, kinds)
    return {part: int(element[part].shape[0]) for part in parts}


def _check_shape(name: str, stored: tuple[int, ...], shape: tuple[int, int]) -> None:
    if stored != shape:
        raise InputError(
            f"{name} has {stored[0]:,} rows and {stored[1]:,} columns, but obs has "
            f"{shape[0]:,} cells and var {shape[1]:,} genes: {REMEDY}"
        )


def _check_line(name: str, element: Any) -> None:
    """Refuse elements that are not arrays of one dimension: groups, single values, tables."""
    # HDF5 has data sets without any extent; their shape is None.
    shape = None if is_group(element) else element.shape
    if shape is not None and len(shape) == 1:
        return
    found = "a group" if is_group(element) else "empty"
    if shape is not None:
        found = f"an array of {len(shape)} dimensions" if shape else "a single number"
    raise InputError(f"{name} is {found} instead of an array of one dimension: {REMEDY}")


def check_kind(name: str, dtype: np.dtype, kinds: str = "biuf") -> None:
    """Refuse an array of other values than numbers."""
    if dtype.kind not in kinds:
        wanted = "integers" if kinds == "iu" else "real numbers"
        raise InputError(f"{name} holds {dtype} instead of {wanted}: {REMEDY}")


def _check_length(name: str, n_offsets: int, n_rows: int, kind: str) -> None:
    if n_offsets != n_rows + 1:
        row = "cell" if kind == "csr" else "gene"
        raise InputError(
            f"{name}/indptr has {n_offsets:,} entries for {n_rows:,} {row}s "
            f"({n_rows + 1:,} expected): {REMEDY}"
        )


def _check_offsets(
    path: str, key: str, indptr: np.ndarray, lengths: dict[str, int], kind: str
) -> None:
    row = "cell" if kind == "csr" else "gene"
    trouble = None
    if indptr[0] != 0:
        trouble = f"starts at {indptr[0]} instead of 0"
    # Compared, not subtracted: damaged offsets of 63 bits would wrap around.
    elif (falls := np.flatnonzero(indptr[1:] < indptr[:-1])).size:
        i = int(falls[0])
        trouble = f"falls from {indptr[i]} to {indptr[i + 1]} at {row} {i}"
    else:
        for part in ("data", "indices"):
            if lengths[part] != indptr[-1]:
                trouble = f"ends at {indptr[-1]:,}, but {key}/{part} has {lengths[part]:,} values"
                break
    if trouble:
        raise InputError(f"{path}: {key}/indptr {trouble}: {REMEDY}")


def read_range(
    path: str, root: StoredGroup, key: str, first: int, stop: int, rows: str
) -> np.ndarray:
    """Part of an array along its first axis, read by the library; types as :func:`in_memory`."""
    with reading(path, f"{key} of {rows}"):
        stored = np.asarray(root[key][first:stop])
    return stored.astype(in_memory(stored.dtype), copy=False)


def cells(first: int, stop: int) -> str:
    """Words for a range of rows."""
    return f"cells {first} to {stop - 1}"


def check_indices(path: str, key: str, indices: np.ndarray, size: int, rows: str) -> None:
    """Refuse indices that point outside the matrix; compiled code would follow them."""
    if indices.size == 0:
        return
    worst = int(indices.max())
    if worst < size and indices.dtype.kind == "i":
        worst = int(indices.min())
    if not 0 <= worst < size:
        msg = f"{path}: {key}/indices of {rows} hold {worst}, but must be 0 to {size - 1}: {REMEDY}"
        raise InputError(msg)


def read_element(path: str, root: StoredGroup, name: str) -> Any:
    """Read an element whole, as anndata decodes it."""
    from anndata.io import read_elem

    with reading(path, name):
        load_filters(path, root[name])
        return read_elem(for_anndata(root[name]))


def find_transposed(path: str, root: h5py.File, key: str, shape: tuple[int, int]) -> StoredMatrix:
    """Find a matrix of genes x cells; ``shape`` is of the tables, cells first."""
    with reading(path, key):
        stored = root[key]
        load_filters(path, stored)
        found, dtype = tuple(stored.shape), stored.dtype
    if found != shape[::-1]:
        raise InputError(
            f"{path}: {key} has shape {found}, but there are {shape[1]:,} genes and {shape[0]:,} "
            f"cells: {REMEDY}"
        )
    check_kind(f"{path}: {key}", dtype)
    return StoredMatrix(path, key, "transposed", shape, in_memory(dtype))


def transposed_blocks(
    matrix: StoredMatrix, root: h5py.File, budget: int
) -> tuple[list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
    """Blocks of cells of a matrix of genes x cells, cut at chunks, and a function to read one."""
    stored = root[matrix.key]
    n_cells, n_genes = matrix.shape
    # The values, and at worst each of them in the sparse block.
    per_cell = max(1, n_genes * (matrix.dtype.itemsize + BYTES_PER_VALUE))
    width = max(1, block_bytes(budget) // per_cell)
    chunk = stored.chunks[1] if stored.chunks else 1
    width = width // chunk * chunk or min(chunk, width)
    cut = [(i, min(i + width, n_cells)) for i in range(0, n_cells, width)] or [(0, 0)]

    def read(i: int) -> sp.csr_matrix:
        first, stop = cut[i]
        with reading(matrix.path, f"{matrix.key} of {cells(first, stop)}"):
            values = np.asarray(stored[:, first:stop]).astype(matrix.dtype, copy=False)
        return sp.csr_matrix(values.T)

    return cut, read
