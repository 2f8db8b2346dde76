"""Cell names made unique across plates, without holding them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scatlas.io.columns import Column

# The hashes are sorted one part at a time, by their highest bits.
_PARTS = 16


class UniqueNames:
    """Names of the cells of several plates, with a suffix where they occur on more than one.

    A name that occurs on several plates becomes ``{name}-{plate}`` on each of them, as
    ``anndata.concat(..., index_unique="-")`` names all cells. Names are compared by 64-bit hashes
    (SipHash with a fixed key), 10 bytes a cell in memory instead of a Python string each. Among
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
        starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._starts = dict(zip(self._columns, starts, strict=False))
        # How many times the plate's name is appended to each cell's. Once is nearly always
        # enough; twice where "a-p2" is a cell of p1 and "a" one of p1 and p2.
        self._suffixes = np.zeros(starts[-1], np.uint8)
        while (repeated := self._repeated()).any():
            self._suffixes += repeated
            if self._suffixes.max() > 3:
                self._refuse(repeated)

    @property
    def n_changed(self) -> int:
        """Cells whose name has got a suffix."""
        return int(np.count_nonzero(self._suffixes))

    def of(self, plate: str, lo: int, hi: int) -> np.ndarray:
        """Names of rows ``lo`` to ``hi`` of a plate, ``object`` array of ``str``."""
        names = self._columns[plate].text(lo, hi)
        start = self._starts[plate]
        times = self._suffixes[start + lo : start + hi]
        for row in np.flatnonzero(times):
            names[row] += f"-{plate}" * int(times[row])
        return names

    def _repeated(self) -> np.ndarray:
        hashes = np.empty(self._suffixes.size, np.uint64)
        for plate, column in self._columns.items():
            start = self._starts[plate]
            for lo, hi in column.spans():
                names = self.of(plate, lo, hi)
                hashes[start + lo : start + hi] = pd.util.hash_array(names, categorize=False)
        found = np.zeros(hashes.size, bool)
        part_of = (hashes >> np.uint64(60)).astype(np.uint8)
        for part in range(_PARTS):
            rows = np.flatnonzero(part_of == part)
            _, inverse, counts = np.unique(hashes[rows], return_inverse=True, return_counts=True)
            found[rows[counts[inverse] > 1]] = True
        return found

    def _refuse(self, repeated: np.ndarray) -> None:
        row = int(np.flatnonzero(repeated)[0])
        plate = next(p for p in reversed(self._columns) if self._starts[p] <= row)
        at = row - int(self._starts[plate])
        name = self._columns[plate].text(at, at + 1)[0]
        msg = (
            f"plate {plate}: the cell name {name!r} occurs more than once: "
            "make the names of a plate's cells unique (AnnData.obs_names_make_unique)"
        )
        raise InputError(msg)
