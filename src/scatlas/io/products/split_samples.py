"""One file of many samples, divided into one store per sample in one pass."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from scatlas._util.numbers import parse_bytes
from scatlas.blocks import map_in_order, with_progress
from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.cell_files import BY_TYPE, ListColumns
from scatlas.io.matrices.counts_source import find_source, open_counts
from scatlas.io.matrices.layout import check_indices
from scatlas.io.zarr_writer.elements import CSR, create_group, finish_store
from scatlas.io.zarr_writer.shard_files import RawArray
from scatlas.kernels import gene_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import scipy.sparse as sp

    from scatlas.io.matrices.source import CountsSource
    from scatlas.io.tables.table import Table

logger = logging.getLogger(__name__)


def list_samples(source: Path | str, by: str) -> dict[str, int]:
    """Samples of a file with their numbers of cells, in the order of their first cells.

    Parameters
    ----------
    source
        h5ad file or Zarr store, or Parquet files of a release.
    by
        Column of ``obs`` that names the sample of each cell.

    Raises
    ------
    InputError
        There is no such column, or a cell has no sample.
    """
    with find_source(source) as found:
        if (plates := found.plates(by)) is not None:
            return plates
        names, codes = _samples(found.table("obs"), by)
        return dict(zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True))


def split_samples(
    source: Path | str,
    stores: Mapping[str, Path],
    *,
    by: str,
    counts_in: str = "X",
    lists: ListColumns = BY_TYPE,
    block_budget: str | int = "256MB",
) -> dict[str, int]:
    """Write one store per sample of a file.

    The counts are decoded once, in row blocks whose size the budget bounds. The cells of a sample
    may be anywhere in the file. Values are written as they are found, unchecked and uncompressed:
    the stores are sources of :func:`scatlas.io.load_plate` and are meant to be deleted after it,
    which writes the same bytes as for a file of the sample alone.

    Parameters
    ----------
    source
        h5ad file or Zarr store.
    stores
        Store to write by sample, of exactly the samples of the file (:func:`list_samples`). Each
        has X (CSR, in the file's type of values, 6 to 10 bytes per value), ``obs`` without unused
        categories, and ``var``.
    by
        Column of ``obs`` that names the sample of each cell.
    counts_in, lists
        Where the counts are, see :func:`scatlas.io.load_plate`.
    block_budget
        Memory for the blocks in flight, as ``"256MB"``. One column of ``obs`` comes on top.

    Returns
    -------
    ``n_samples``, ``n_cells``, ``n_values``.

    Raises
    ------
    InputError
        The file is damaged, or its samples are not those of ``stores``.
    """
    budget = parse_bytes(block_budget)
    scratch = min(stores.values()).parent / ".split.source"
    with (
        open_counts(source, counts_in, scratch=scratch, lists=lists) as counts,
        ExitStack() as stack,
    ):
        obs, var = counts.table("obs"), counts.table("var")
        counts.check_complete()
        names, codes = _samples(obs, by)
        if set(names) != set(stores):
            other = min(set(names) ^ set(stores))
            msg = f"{source}: obs[{by!r}] has other samples now, {other!r} the first: run again"
            raise InputError(msg)
        folders = [stack.enter_context(atomic_path(stores[name])) for name in names]
        order = np.argsort(codes, kind="stable")
        groups = np.split(order, np.cumsum(np.bincount(codes))[:-1])
        for table, name, own in ((obs, "obs", groups), (var, "var", None)):
            storable = table.storable(logger.info, unique_names=False)
            storable.write_groups([folder / name for folder in folders], own)
        n_values = split_matrix(counts, folders, codes, budget)
        counts.check_unchanged()
    return {"n_samples": len(names), "n_cells": len(codes), "n_values": n_values}


def split_matrix(
    counts: CountsSource, folders: Sequence[Path], codes: np.ndarray, budget: int
) -> int:
    """Divide rows by ``codes``, in one pass, into stores without compression; number of values."""
    cut, read = counts.blocks(budget, logger.info)
    arrays = [_Arrays.create(folder / "X", counts) for folder in folders]

    def divided(i: int) -> list[_Piece]:
        block = read(i)
        first, stop = cut[i]
        check_indices(
            counts.path, counts.matrix.key, block.indices, counts.shape[1],
            f"cells {first} to {stop - 1}",
        )  # fmt: skip
        return list(_pieces(block, codes[first:stop]))

    rows = [stop - first for first, stop in cut]
    with closing(with_progress(map_in_order(divided, len(cut)), rows)) as blocks:
        for pieces in blocks:
            for piece in pieces:
                arrays[piece.sample].append(piece)
    n_cells = np.bincount(codes, minlength=len(folders)).tolist()
    for folder, own, n in zip(folders, arrays, n_cells, strict=True):
        own.close()
        create_group(folder / "X", {**CSR, "shape": [n, counts.shape[1]]})
        finish_store(folder)
    return sum(own.n_values for own in arrays)


class _Piece(NamedTuple):
    """Values of consecutive rows of one sample."""

    sample: int
    data: np.ndarray
    indices: np.ndarray
    lengths: np.ndarray


@dataclass
class _Arrays:
    """Arrays of X of one sample that are being written."""

    data: RawArray
    indices: RawArray
    indptr: RawArray
    n_values: int = 0

    @classmethod
    def create(cls, folder: Path, counts: CountsSource) -> _Arrays:
        new = cls(
            data=RawArray(folder / "data", counts.matrix.dtype),
            indices=RawArray(folder / "indices", gene_dtype(counts.shape[1])),
            indptr=RawArray(folder / "indptr", np.dtype(np.int64)),
        )
        new.indptr.append(np.zeros(1, np.int64))
        return new

    def append(self, piece: _Piece) -> None:
        self.data.append(piece.data)
        self.indices.append(piece.indices)
        self.indptr.append(self.n_values + np.cumsum(piece.lengths))
        self.n_values += len(piece.data)

    def close(self) -> None:
        for array in (self.data, self.indices, self.indptr):
            array.close()


def _samples(obs: Table, by: str) -> tuple[list[str], np.ndarray]:
    """Names of the samples in the order of their first cells, and of each cell its number."""
    if by not in obs.columns:
        columns = ", ".join(obs.columns) or "no columns"
        raise InputError(f"{obs.path}: obs has no column {by!r} (plates.by); it has {columns}")
    if obs.n_rows == 0:
        raise InputError(f"{obs.path} has no cells, so no samples: check the file")
    codes, found = pd.factorize(pd.Series(obs.columns[by].take()))
    names = [str(name) for name in found]
    missing = (codes < 0) | np.isin(codes, [i for i, name in enumerate(names) if not name.strip()])
    if missing.any():
        first = int(np.flatnonzero(missing)[0])
        raise InputError(
            f"{obs.path}: obs[{by!r}] has no value for {int(missing.sum()):,} cells, the first is "
            f"cell {first} ({obs.name_of(first)!r}): give each cell its sample, or remove the cells"
        )
    return names, codes.astype(np.int32)


def _pieces(block: sp.csr_matrix, codes: np.ndarray) -> Iterator[_Piece]:
    """Divide a row block by sample; the rows of a sample keep their order."""
    order = np.argsort(codes, kind="stable")
    data, indices, indptr = block.data, block.indices, block.indptr.astype(np.int64)
    lengths = np.diff(indptr)[order]
    if (np.diff(order) != 1).any():
        ends = np.cumsum(lengths)
        taken = np.repeat(indptr[:-1][order] - (ends - lengths), lengths) + np.arange(ends[-1])
        data, indices = data[taken], indices[taken]
        indptr = np.concatenate([[0], ends])
    samples, firsts = np.unique(codes[order], return_index=True)
    for sample, first, stop in zip(samples, firsts, [*firsts[1:], len(codes)], strict=True):
        values = slice(indptr[first], indptr[stop])
        yield _Piece(int(sample), data[values], indices[values], lengths[first:stop])
