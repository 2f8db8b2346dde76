"""One gene of all cells, from the gene-major copy beside an atlas."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.io.files.anndata_file import Store
from scatlas.io.files.checksums import checksum
from scatlas.io.files.listing import filesystem
from scatlas.io.files.read_errors import reading
from scatlas.io.products.gene_copy import NAME, SOURCE_CHECKSUM

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class GeneCopy:
    """A gene-major copy, opened."""

    path: str
    shape: tuple[int, int]  # cells, genes
    _data: Any
    _cells: Any
    _indptr: Any

    def read(self, gene: int) -> NDArray[Any]:
        """Values of a gene, by its number, for all cells: ``[n_cells]``, the type of X."""
        with reading(self.path, f"gene {gene} of X"):
            begin, end = (int(offset) for offset in self._indptr[gene : gene + 2])
            values = np.zeros(self.shape[0], self._data.dtype)
            values[self._cells[begin:end]] = self._data[begin:end]
        return values


def find_gene_copy(atlas: Store) -> GeneCopy | str:
    """Open the gene-major copy beside an atlas, or another store with its X; or the reason why
    there is none, as a part of a sentence.
    """
    path = _path_beside(atlas.path)
    if atlas.kind != "zarr":
        return f"{atlas.path} is no Zarr store"
    if not _is_store(path):
        return f"{path} does not exist"
    return _open(atlas, Store.find(path))


@lru_cache(maxsize=16)
def _open(atlas: Store, copy: Store) -> GeneCopy | str:
    """Open a copy after a check that it is of this X; the stamps in both change with the files."""
    with atlas.open() as root:
        shape = tuple(root["X"].attrs["shape"])
    with copy.open() as root, reading(copy.path, "X"):
        x = root["X"]
        is_same = tuple(x.attrs["shape"]) == shape and (
            # Of a store at an address, the checksum would need a request for each chunk.
            atlas.is_url or x.attrs[SOURCE_CHECKSUM] == checksum(Path(atlas.path) / "X")
        )
        if not is_same:
            return f"{copy.path} is the copy of another X"
        return GeneCopy(copy.path, (shape[0], shape[1]), x["data"], x["indices"], x["indptr"])


def _path_beside(atlas: str) -> str:
    if "://" in atlas:
        return f"{atlas.rstrip('/').rpartition('/')[0]}/{NAME}"
    return str(Path(atlas).absolute().parent / NAME)


def _is_store(path: str) -> bool:
    if "://" not in path:
        return Path(path, "zarr.json").is_file()
    files, inner = filesystem(path)
    with reading(path, "the address"):
        return bool(files.exists(f"{inner}/zarr.json"))
