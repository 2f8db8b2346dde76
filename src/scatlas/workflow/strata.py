"""Which cells are sampled: at random, or at least some of each stratum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.errors import InputError
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.tables.column import Column, ColumnCodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

# Cells whose strata are ranked at a time: 8 bytes each for ranks, order and keys.
_CELLS_AT_ONCE = 2**20


def choose_cells(
    n_cells: int,
    wanted: int,
    seed: int,
    *,
    strata: NDArray[np.int32] | None = None,
    min_cells: int = 50,
) -> NDArray[np.int64]:
    """Draw ``wanted`` of ``n_cells`` at random without replacement: their row numbers, ascending;
    first ``min_cells`` of each stratum, if given. Memory beyond ``strata`` grows with the sample.
    """
    rng = np.random.default_rng(seed)
    if wanted == n_cells:
        return np.arange(n_cells)
    if strata is None:
        return np.sort(rng.choice(n_cells, size=wanted, replace=False))
    n_strata = int(strata.max(initial=-1)) + 1
    # In blocks: bincount copies its input as int64.
    sizes = sum(
        (np.bincount(block, minlength=n_strata) for block in _blocks(strata)),
        np.zeros(n_strata, np.int64),
    )
    needed = np.minimum(sizes, min_cells)
    if needed.sum() > wanted:
        raise InputError(
            f"{np.count_nonzero(sizes):,} strata with at least {min_cells:,} cells each, or all "
            f"that they have, need {needed.sum():,} cells, but the sample has {wanted:,}: raise "
            "subset.n_cells, lower subset.min_cells, or name fewer columns in subset.by"
        )
    ranks = [
        np.arange(size) if size == need else np.sort(rng.choice(size, size=need, replace=False))
        for size, need in zip(sizes, needed, strict=True)
    ]
    first = _cells_of_ranks(strata, sizes, ranks)
    # Numbers of cells among those that are not chosen, turned into numbers among all cells: plus
    # the chosen cells before each.
    rest = np.sort(rng.choice(n_cells - len(first), size=wanted - len(first), replace=False))
    rest += np.searchsorted(first - np.arange(len(first)), rest, side="right")
    return np.sort(np.concatenate([first, rest]))


def _blocks(strata: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    for lo in range(0, len(strata), _CELLS_AT_ONCE):
        yield strata[lo : lo + _CELLS_AT_ONCE]


def _cells_of_ranks(
    strata: NDArray[np.int32], sizes: NDArray[np.int64], ranks: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Cells with the given ranks (in storage order) within their strata, ascending."""
    starts = np.cumsum(sizes) - sizes
    # Positions of the cells if all cells were sorted by stratum.
    wanted = np.concatenate([start + rank for start, rank in zip(starts, ranks, strict=True)])
    following = starts.copy()  # position of the next cell of each stratum
    found, lo = [np.empty(0, np.int64)], 0
    for block in _blocks(strata):
        order = np.argsort(block, kind="stable")
        counts = np.bincount(block, minlength=len(sizes))
        before = np.cumsum(counts) - counts
        positions = np.arange(len(block)) + np.repeat(following - before, counts)
        found.append(lo + order[np.isin(positions, wanted, assume_unique=True)])
        following += counts
        lo += len(block)
    return np.sort(np.concatenate(found))


def read_strata(path: Path, by: Sequence[str], *, most: int) -> NDArray[np.int32]:
    """Stratum of each cell of an AnnData Zarr store, numbered from 0: the combinations of values of
    the obs columns ``by``, at most ``most``. Cells without a value are a stratum, too.
    """
    obs = open_with_zarr_python(path)["obs"]
    strata = np.zeros(0, np.int32)
    for name in by:
        if name not in obs.attrs["column-order"]:
            raise InputError(
                f"{path}: obs has no column {name!r}, which subset.by names: there are "
                f"{', '.join(obs.attrs['column-order'])}"
            )
        column = Column.open(path, obs, name)
        strata = strata if strata.size else np.zeros(column.n_rows, np.int32)
        if not _split_strata(strata, ColumnCodes.open(column, most=most), most):
            raise InputError(
                f"{path}: {', '.join(by)}, which subset.by names, have more than {most:,} "
                "combinations of values, the number of cells of the sample: name columns with "
                "fewer values"
            )
    return strata


def _split_strata(strata: NDArray[np.int32], codes: ColumnCodes | None, most: int) -> bool:
    """Split strata by the values of one more column, in place; False if there are too many."""
    if codes is None:
        return False

    def combinations() -> Iterator[tuple[slice, NDArray[np.int64]]]:
        n_codes = len(codes.names) + 1  # the last: no value
        for lo, hi in codes.column.spans(wide=True):
            block = strata[lo:hi].astype(np.int64) * n_codes
            yield slice(lo, hi), block + codes.read(lo, hi) % n_codes

    found = np.empty(0, np.int64)
    for _, block in combinations():
        found = np.union1d(found, block)
        if len(found) > most:
            return False
    for rows, block in combinations():
        strata[rows] = np.searchsorted(found, block)
    return True
