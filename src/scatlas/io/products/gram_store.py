"""Store of a plate's Gram statistics, ``gram.zarr``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.local_zarr import open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.zarr_writer.elements import ARRAY, DICT, consolidate, create_group
from scatlas.io.zarr_writer.sharded_array import ShardedArray, encoding_pool

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

# Values of the triangle to read at once: 32 MB of float64.
_VALUES_AT_ONCE = 2**22
# Rows of the triangle to write at once: a call per row would take longer than the encoding.
_ROWS_AT_ONCE = 32


class _GramStats(Protocol):
    sums: NDArray[np.float64]
    gram: NDArray[np.float64]


def write_gram(path: Path | str, *, n_cells: int, n_genes: int, stats: _GramStats | None) -> None:
    """Write the Gram statistics of a plate; atomic.

    The store is a mapping in AnnData's encoding of ``sums`` (float64 [n_genes]) and ``triangle``
    (float64 [n_genes * (n_genes + 1) / 2], the upper triangle of ``X.T @ X`` row by row), both
    absent for a plate whose statistics are not worth storing.

    Parameters
    ----------
    path
        Store to write.
    n_cells, n_genes
        Shape of the plate's selected counts.
    stats
        Sums of the genes and of their products; None to store the shape alone.

    Raises
    ------
    InputError
        A sum is not finite.
    """
    if stats is not None and not np.isfinite([stats.sums, np.diagonal(stats.gram)]).all():
        raise InputError("X holds nan, inf or values too large for sums of float64 products")
    with atomic_path(path) as partial, encoding_pool() as pool:
        create_group(partial, {**DICT, "n_cells": n_cells, "n_genes": n_genes})
        if stats is not None:
            with ShardedArray(partial / "sums", np.float64, pool, attributes=ARRAY) as sums:
                sums.append(stats.sums)
            with ShardedArray(partial / "triangle", np.float64, pool, attributes=ARRAY) as packed:
                for first in range(0, n_genes, _ROWS_AT_ONCE):
                    rows = enumerate(stats.gram[first : first + _ROWS_AT_ONCE], first)
                    packed.append(np.concatenate([row[gene:] for gene, row in rows]))
        consolidate(partial)


@dataclass(frozen=True)
class StoredGram:
    """Gram statistics of a plate in a store of :func:`write_gram`.

    Attributes
    ----------
    n_cells, n_genes
        Shape of the plate's selected counts.
    has_matrix
        Whether the statistics are stored, not the shape alone.
    """

    path: Path
    n_cells: int
    n_genes: int
    has_matrix: bool
    _root: Any

    @classmethod
    def open(cls, path: Path) -> StoredGram:
        """Open a store; InputError if it is damaged or holds something else."""
        with reading(str(path), "Gram statistics"):
            root = open_store(path)
            n_cells, n_genes = (int(root.attrs[name]) for name in ("n_cells", "n_genes"))
            has_matrix = "triangle" in root
            if has_matrix:
                sizes = root["sums"].shape[0], root["triangle"].shape[0]
                if sizes != (n_genes, n_genes * (n_genes + 1) // 2):
                    msg = f"{path}: Gram statistics of {n_genes} genes with {sizes} values"
                    raise InputError(msg)
        return cls(path, n_cells, n_genes, has_matrix, root)

    def add_to(self, sums: NDArray[np.float64], upper: NDArray[np.float64]) -> None:
        """Add the stored statistics, in bounded memory: to the sums ``[n_genes]``, and to the upper
        triangle of ``[n_genes, n_genes]``.
        """
        with reading(str(self.path), "Gram statistics"):
            sums += self._root["sums"][:]
            triangle = self._root["triangle"]
            first = offset = 0
            while first < self.n_genes:
                rows = max(1, _VALUES_AT_ONCE // (self.n_genes - first))
                stop = min(first + rows, self.n_genes)
                lengths = self.n_genes - np.arange(first, stop)
                ends = offset + np.cumsum(lengths)
                values = triangle[offset : int(ends[-1])]
                parts = np.split(values, ends[:-1] - offset)
                for gene, part in zip(range(first, stop), parts, strict=True):
                    upper[gene, gene:] += part
                first, offset = stop, int(ends[-1])
