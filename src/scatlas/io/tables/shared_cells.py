"""Plates that hold the same cells, by a sample of their cells.

The smallest hashes of a set are a random sample of it, and those of two sets are the same cells
where these are shared (Broder, Compression and Complexity of Sequences 1997). The hash of a cell is
that of its name and its number of genes: wells of a plate and barcodes of a whitelist give other
cells the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from scatlas.io.chunks.encoded_text import EncodedText

# Hashes per plate, and genes per cell: empty droplets have fewer, and many have the same number.
_MAX_HASHES, _MIN_GENES = 4096, 10
# Share and number of the sampled cells that another plate has.
_SHARE, _MIN_CELLS = 0.9, 10
_MIX = np.uint64(0x9E3779B97F4A7C15)


class SharedCells:
    """Samples of the cells of all plates so far: 33 kB each."""

    def __init__(self) -> None:
        self._samples: dict[str, NDArray[np.uint64]] = {}

    def add(self, plate: str, cells: Iterable[tuple[EncodedText, NDArray[np.integer]]]) -> None:
        """Add a plate: names and numbers of genes of its cells, in pieces."""
        sample = np.empty(0, np.uint64)
        for names, n_genes in cells:
            hashes = names.hashes() ^ (n_genes.astype(np.uint64) * _MIX)
            sample = np.union1d(sample, hashes[n_genes >= _MIN_GENES])[:_MAX_HASHES]
        self._samples[plate] = sample

    def pairs(self) -> list[tuple[str, str]]:
        """Plates nearly all of whose cells another plate has, each with that one."""
        samples = [*self._samples.values()]
        if not samples:
            return []
        rows = np.repeat(np.arange(len(samples)), [sample.size for sample in samples])
        hashes, columns = np.unique(np.concatenate(samples), return_inverse=True)
        shape = len(samples), hashes.size
        held = sp.csr_matrix((np.ones(rows.size, np.int32), (rows, columns)), shape)
        shared = (held @ held.T).tocoo()
        inside = set()
        for part, whole, n in zip(shared.row, shared.col, shared.data, strict=True):
            other = samples[whole]
            # Hashes above the largest of a full sample may be of the plate and not in the sample.
            upto = other[-1] if other.size == _MAX_HASHES else np.iinfo(np.uint64).max
            n_cells = np.searchsorted(samples[part], upto, "right")
            if part != whole and n_cells >= _MIN_CELLS and n >= _SHARE * n_cells:
                inside.add((part, whole))
        plates = [*self._samples]
        # Of two equal plates the second is named.
        named = sorted(pair for pair in inside if pair[0] > pair[1] or pair[::-1] not in inside)
        return [(plates[part], plates[whole]) for part, whole in named]

    def sentences(self) -> dict[str, str]:
        """A sentence by the plate that is in another."""
        return {
            part: f"plate {part}: nearly all of its cells are on plate {whole}, too, with the same "
            "names and numbers of genes: remove one of the two from the plate sheet"
            for part, whole in self.pairs()
        }
