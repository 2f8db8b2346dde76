"""Elements of h5ad files in memory: threads decode large arrays of numbers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from anndata.io import read_elem
from scipy import sparse

from scatlas.blocks import map_in_order
from scatlas.compute.threads import n_cores
from scatlas.io.chunks.chunk_reader import read_values
from scatlas.io.files.chunk_locations import hdf5_chunked_array
from scatlas.io.files.hdf5_heaps import TEXT_REFERENCE
from scatlas.io.files.read_errors import UnsupportedLayoutError, reading

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

# Values that a thread decodes at once, about.
_VALUES = 2**20
_SPARSE = {"csr_matrix": sparse.csr_matrix, "csc_matrix": sparse.csc_matrix}


def read_element(node: h5py.Dataset | h5py.Group) -> Any:
    """Read an element of an h5ad file, as ``anndata.io.read_elem`` does."""
    kind = _SPARSE.get(node.attrs.get("encoding-type"))
    if kind is not None:
        parts = tuple(read_element(node[name]) for name in ("data", "indices", "indptr"))
        return kind(parts, shape=tuple(node.attrs["shape"]))
    if (
        not isinstance(node, h5py.Dataset)
        or not node.size
        or node.ndim == 0
        or node.dtype.kind not in "iuf"
    ):
        return read_elem(node)
    values = np.empty(node.shape, node.dtype.newbyteorder("="))
    flat = values.reshape(-1)
    for begin, part in decode(node):
        flat[begin : begin + part.size] = part
    return values


def decode(dataset: h5py.Dataset) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the numbers of a dataset (of text of variable length the references to it) in parts,
    each with the position of its first value.
    """
    path = dataset.file.filename
    text = h5py.check_string_dtype(dataset.dtype)
    stored = TEXT_REFERENCE if text is not None and text.length is None else None
    with reading(path, dataset.name.lstrip("/")):
        try:
            array = hdf5_chunked_array(path, dataset.name, dataset, stored)
        except UnsupportedLayoutError as error:
            logger.info("%s: %s is read through h5py: %s", path, dataset.name, error)
            yield 0, dataset[()].reshape(-1)
            return
        dtype = array.dtype.newbyteorder("=")
        step = max(1, _VALUES // array.chunk_values) * array.chunk_values

        def read(i: int) -> tuple[int, np.ndarray]:
            begin = i * step
            end = min(begin + step, array.n_values)
            return begin, read_values(array, begin, end, dtype=dtype)

        yield from map_in_order(read, -(-array.n_values // step), workers=n_cores())
