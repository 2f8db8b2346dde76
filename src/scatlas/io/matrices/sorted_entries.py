"""Entries of a matrix in any order, written as CSR in bounded memory."""

from __future__ import annotations

import shutil
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from scatlas.io.zarr_writer.elements import create_group
from scatlas.io.zarr_writer.raw_array import RawArray

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    # Gene, cell and value of some entries.
    Entries = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]

_DTYPES: dict[str, np.dtype] = {
    "data": np.dtype(np.float64),
    "indices": np.dtype(np.int32),
    "cells": np.dtype(np.int32),
}


def write_csr(folder: Path, n_cells: int, blocks: Iterable[Entries]) -> None:
    """Write the entries as ``X`` of a store, those of a cell in the order of the blocks, which are
    merged if they do not follow each other, in memory for two blocks and twice the disk.
    """
    create_group(folder / "X", {})
    scratch = folder / "blocks"
    arrays = {name: RawArray(scratch / name, dtype) for name, dtype in _DTYPES.items()}
    lengths = np.zeros(n_cells, np.int64)
    starts, last, in_order = [0], -1, True
    for genes, cells, values in blocks:
        if (np.diff(cells) < 0).any():
            order = np.argsort(cells, kind="stable")
            genes, cells, values = genes[order], cells[order], values[order]
        first, previous, last = cells[0], last, cells[-1]
        in_order &= bool(first >= previous)
        lengths[first : last + 1] += np.bincount(cells - first)
        for name, piece in (("data", values), ("indices", genes), ("cells", cells)):
            arrays[name].append(piece)
        starts.append(starts[-1] + len(cells))
    for array in arrays.values():
        array.close()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indptr = RawArray(folder / "X" / "indptr", np.dtype(np.int64))
    indptr.append(offsets)
    indptr.close()
    if in_order:
        for name in ("data", "indices"):
            (scratch / name).rename(folder / "X" / name)
    else:
        _merge(folder / "X", arrays, starts, offsets)
    shutil.rmtree(scratch)


def _merge(
    x: Path, blocks: dict[str, RawArray], starts: list[int], offsets: NDArray[np.int64]
) -> None:
    """Gather the entries of some cells from all blocks, sort them, and go on to the next cells."""
    n_values = starts[-1]
    most = int(np.diff(starts).max())
    # Ranges of cells with about as many values as a block.
    edges = np.unique(np.searchsorted(offsets, [*range(0, n_values, most), n_values]))
    bounds = [
        begin + np.searchsorted(blocks["cells"].read(begin, end), edges)
        for begin, end in pairwise(starts)
    ]
    out = {name: RawArray(x / name, _DTYPES[name]) for name in ("data", "indices")}
    for begins, ends in pairwise(np.transpose(bounds)):
        pieces = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
        cells = np.concatenate([blocks["cells"].read(*piece) for piece in pieces])
        order = np.argsort(cells, kind="stable")
        for name, array in out.items():
            array.append(np.concatenate([blocks[name].read(*piece) for piece in pieces])[order])
    for array in out.values():
        array.close()
