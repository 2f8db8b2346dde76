"""Cell names made unique across plates, without holding them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from scatlas.io.columns import Column

# The hashes are sorted one part at a time, by their highest bits.
_PARTS = 16


class UniqueNames:
    """Names of the cells of several plates, with a suffix where they occur on more than one.

    A name that occurs on several plates becomes ``{name}-{plate}`` on each of them, as
    ``anndata.concat(..., index_unique="-")`` names all cells. Where a cell bears that name
    already, it keeps it, and the renamed one gets a number as well, the first that is free, as
    ``AnnData.obs_names_make_unique`` does: ``{name}-{plate}-1``. All other cells keep their names.

    Names are compared by 64-bit hashes (SipHash with a fixed key), 16 bytes a cell in memory
    instead of a Python string each; one byte a cell stays. Each number takes 100 bytes more. Among
    100 million names two different ones share a hash with a probability of 3e-4; both would get
    their suffix then, which is harmless.

    Parameters
    ----------
    columns
        The names on each plate, as text; unique within a plate.

    Raises
    ------
    InputError
        A name occurs twice on one plate.
    """

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = dict(columns)
        sizes = [column.n_rows for column in self._columns.values()]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._changed = np.zeros(self._starts[-1], bool)
        self._numbered = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)
        hashes = np.empty(self._changed.size, np.uint64)
        self._hash(hashes, np.ones(hashes.size, bool))
        repeated = np.zeros(hashes.size, bool)
        for rows, first in self._shared(hashes):
            self._refuse_twins(rows, first)
            repeated[rows] = True
        self._changed = repeated
        if self.n_changed:
            self._hash(hashes, repeated)
            self._number(hashes)

    @property
    def n_changed(self) -> int:
        """Cells whose name has got a suffix."""
        return int(np.count_nonzero(self._changed))

    @property
    def n_numbered(self) -> int:
        """Cells whose name has got a number as well."""
        return self._numbers.size

    def of(self, plate: str, lo: int, hi: int) -> np.ndarray:
        """Names of rows ``lo`` to ``hi`` of a plate, ``object`` array of ``str``."""
        names = self._columns[plate].text(lo, hi)
        start = int(self._starts[list(self._columns).index(plate)])
        names[self._changed[start + lo : start + hi]] += f"-{plate}"
        first, last = np.searchsorted(self._numbered, [start + lo, start + hi])
        for row, number in zip(self._numbered[first:last], self._numbers[first:last], strict=True):
            names[row - start - lo] += f"-{number}"
        return names

    def _spans(self) -> Iterator[tuple[str, int, int, slice]]:
        """Plate, range of its rows, and where they are among all cells."""
        for start, (plate, column) in zip(self._starts, self._columns.items(), strict=False):
            for lo, hi in column.spans():
                yield plate, lo, hi, slice(int(start) + lo, int(start) + hi)

    def _hash(self, hashes: np.ndarray, wanted: np.ndarray) -> None:
        """Fill in the hashes of the wanted cells' present names."""
        for plate, lo, hi, cells in self._spans():
            rows = np.flatnonzero(wanted[cells])
            if rows.size:
                hashes[cells.start + rows] = _hashes(self.of(plate, lo, hi)[rows])

    def _shared(self, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Cells whose name another cell bears too, part by part.

        Yields
        ------
        Their rows, group by group, in each first the one that has its own name and then in order;
        and a mask of the first of each group.
        """
        part_of = np.empty(hashes.size, np.uint8)
        np.right_shift(hashes, np.uint64(60), out=part_of, casting="unsafe")
        for part in range(_PARTS):
            rows = np.flatnonzero(part_of == part)
            rows = rows[np.lexsort((self._changed[rows], hashes[rows]))]
            follows = np.zeros(rows.size, bool)
            follows[1:] = hashes[rows[1:]] == hashes[rows[:-1]]
            shared = follows.copy()
            shared[:-1] |= follows[1:]
            yield rows[shared], ~follows[shared]

    def _refuse_twins(self, rows: np.ndarray, first: np.ndarray) -> None:
        plates = np.searchsorted(self._starts, rows, side="right") - 1
        for at in np.flatnonzero(~first[1:] & (plates[1:] == plates[:-1])):
            plate = list(self._columns)[plates[at]]
            twins = rows[at : at + 2] - self._starts[plates[at]]
            # Of different names with one hash none is refused.
            name, other = (self._columns[plate].text(row, row + 1)[0] for row in twins.tolist())
            if name == other:
                msg = (
                    f"plate {plate}: the cell name {name!r} occurs more than once: "
                    "make the names of a plate's cells unique (AnnData.obs_names_make_unique)"
                )
                raise InputError(msg)

    def _number(self, hashes: np.ndarray) -> None:
        """Find numbers for the renamed cells whose new name is another's."""
        pending = np.zeros(hashes.size, bool)
        for rows, first in self._shared(hashes):
            pending[rows[~first]] = True
        if not pending.any():
            return
        hashes.sort()
        given: set[int] = set()
        numbers = []
        for plate, lo, hi, cells in self._spans():
            rows = np.flatnonzero(pending[cells])
            names = self.of(plate, lo, hi)[rows] if rows.size else ()
            for name in names:
                number = 1
                while (value := _hash_of(f"{name}-{number}")) in given or _holds(hashes, value):
                    number += 1
                given.add(value)
                numbers.append(number)
        self._numbered, self._numbers = np.flatnonzero(pending), np.array(numbers, np.int64)


def _hashes(names: np.ndarray) -> np.ndarray:
    return pd.util.hash_array(names, categorize=False)


def _hash_of(name: str) -> int:
    return int(_hashes(np.array([name], object))[0])


def _holds(ascending: np.ndarray, value: int) -> bool:
    at = int(np.searchsorted(ascending, np.uint64(value)))
    return at < ascending.size and int(ascending[at]) == value
