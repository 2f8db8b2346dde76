"""Plates that hold the same cells, by a sample of their cells.

The smallest hashes of a set are a random sample of it (Broder, Compression and Complexity of
Sequences 1997). The hash of a cell is that of its name and its number of genes: wells give other
cells the same name. Of long barcodes the name says enough; CellBender changes the number of genes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from scatlas.io.chunks.encoded_text import EncodedText

    _Samples = dict[str, NDArray[np.uint64]]

# Hashes per plate, and genes per cell: empty droplets have fewer, and many have the same number.
_MAX_HASHES, _MIN_GENES = 4096, 10
# Share and number of the sampled cells that another plate has.
_SHARE, _MIN_CELLS = 0.9, 10
_BARCODE = re.compile("[ACGT]{14}")
_REMEDY = "remove one of the two from the plate sheet"
_MIX = np.uint64(0x9E3779B97F4A7C15)


class SharedCells:
    """Samples of the cells of all plates so far: 66 kB each."""

    def __init__(self) -> None:
        self._cells: _Samples = {}
        self._barcodes: _Samples = {}

    def add(self, plate: str, cells: Iterable[tuple[EncodedText, NDArray[np.integer]]]) -> None:
        """Add a plate: names and numbers of genes of its cells, in pieces."""
        for names, n_genes in cells:
            hashes, filled = names.hashes(), n_genes >= _MIN_GENES
            mixed = hashes ^ (n_genes.astype(np.uint64) * _MIX)
            _keep(self._cells, plate, mixed[filled])
            if len(names) and _BARCODE.search(names[:1].decode()[0]):
                _keep(self._barcodes, plate, hashes[filled])

    def sentences(self) -> dict[str, str]:
        """A sentence by the plate nearly all of whose cells another plate has."""
        said = {
            part: f"plate {part}: nearly all of its barcodes are on plate {whole}, too: if these "
            f"are the same cells, {_REMEDY}"
            for part, whole in _pairs(self._barcodes)
        }
        return said | {
            part: f"plate {part}: nearly all of its cells are on plate {whole}, too, with the same "
            f"names and numbers of genes: {_REMEDY}"
            for part, whole in _pairs(self._cells)
        }


def _keep(samples: _Samples, plate: str, hashes: NDArray[np.uint64]) -> None:
    before = samples.get(plate, np.empty(0, np.uint64))
    if before.size == _MAX_HASHES:  # sort the few that can be among the smallest
        hashes = hashes[hashes < before[-1]]
    samples[plate] = np.union1d(before, hashes)[:_MAX_HASHES]


def _pairs(samples: _Samples) -> list[tuple[str, str]]:
    """Plates nearly all of whose cells another plate has, each with that one."""
    plates, hashes = [*samples], [*samples.values()]
    if not plates:
        return []
    rows = np.repeat(np.arange(len(plates)), [sample.size for sample in hashes])
    distinct, columns = np.unique(np.concatenate(hashes), return_inverse=True)
    shape = len(plates), distinct.size
    held = sp.csr_matrix((np.ones(rows.size, np.int32), (rows, columns)), shape)
    shared = (held @ held.T).tocoo()
    inside = set()
    for part, whole, n in zip(shared.row, shared.col, shared.data, strict=True):
        other = hashes[whole]
        # Hashes above the largest of a full sample may be of the plate and not in the sample.
        upto = other[-1] if other.size == _MAX_HASHES else np.iinfo(np.uint64).max
        n_cells = np.searchsorted(hashes[part], upto, "right")
        if part != whole and n_cells >= _MIN_CELLS and n >= _SHARE * n_cells:
            inside.add((part, whole))
    # Of two equal plates the second is named.
    named = sorted(pair for pair in inside if pair[0] > pair[1] or pair[::-1] not in inside)
    return [(plates[part], plates[whole]) for part, whole in named]
