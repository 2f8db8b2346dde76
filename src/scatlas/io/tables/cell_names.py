"""Names of cells: made unique without holding them all, and plates that hold the same cells.

The smallest hashes of a set are a random sample of it (Broder, Compression and Complexity of
Sequences 1997). The hash of a cell is that of its name and its number of genes: wells give other
cells the same name. Of long barcodes the name says enough; CellBender changes the number of genes.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp

from scatlas.blocks import map_in_order
from scatlas.compute.threads import n_cores
from scatlas.errors import InputError
from scatlas.io.chunks.encoded_text import EncodedText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from scatlas.io.tables.column import Column

    _Samples = dict[str, NDArray[np.uint64]]

# The hashes are sorted one part at a time, by their highest bits.
_PARTS = 16
# Each takes up to 3 bytes per cell of all plates.
_PARTS_AT_ONCE = 4
# Hashes per plate, and genes per cell: empty droplets have fewer, and many have the same number.
_MAX_HASHES, _MIN_GENES = 4096, 10
# Share and number of the sampled cells that another plate has.
_SHARE, _MIN_CELLS = 0.9, 10
_BARCODE = re.compile("[ACGT]{14}")
_REMEDY = "remove one of the two from the plate sheet"
_MIX = np.uint64(0x9E3779B97F4A7C15)


class UniqueNames:
    """Names of the cells of several plates, unique on each, with a suffix where they repeat.

    A repeated name becomes ``{name}-{plate}`` on each plate but ``keep``, as ``anndata.concat``
    has it, with the first free number if that is taken. 64-bit hashes are compared, 16 bytes per
    cell in memory; one byte per cell stays. Among 100 million names two different ones share a
    hash with a probability of 3e-4; both would get their suffix then, which is harmless.
    """

    def __init__(self, columns: Mapping[str, Column], *, keep: str | None = None) -> None:
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
            self._check_distinct_cells(rows, first)
            repeated[rows] = True
        if keep is not None:
            plate = list(self._columns).index(keep)
            repeated[self._starts[plate] : self._starts[plate + 1]] = False
        self._changed = repeated
        if self.n_changed:
            self._hash(hashes, repeated)
            self._number(hashes)

    @property
    def n_changed(self) -> int:
        return int(np.count_nonzero(self._changed))

    @property
    def n_numbered(self) -> int:
        """Number of cells whose name got a number as well."""
        return self._numbers.size

    def read(self, plate: str, lo: int, hi: int) -> EncodedText:
        encoded = self._columns[plate].encoded_text(lo, hi)
        start = int(self._starts[list(self._columns).index(plate)])
        changed = self._changed[start + lo : start + hi]
        if not changed.any():
            return encoded
        renamed = encoded.with_suffix(f"-{plate}", changed)
        return _append_numbers(renamed, start + lo, self._numbered, self._numbers)

    def _spans(self) -> Iterator[tuple[str, int, int, slice]]:
        """Plate, range of its rows, and where they are among all cells."""
        for start, (plate, column) in zip(self._starts, self._columns.items(), strict=False):
            for lo, hi in column.spans():
                yield plate, lo, hi, slice(int(start) + lo, int(start) + hi)

    def _hash(self, hashes: np.ndarray, wanted: np.ndarray) -> None:
        """Fill in the hashes of the wanted cells' present names."""
        spans = list(self._spans())

        def fill(i: int) -> None:
            plate, lo, hi, cells = spans[i]
            rows = np.flatnonzero(wanted[cells])
            if rows.size:
                hashes[cells.start + rows] = self.read(plate, lo, hi).hashes()[rows]

        deque(map_in_order(fill, len(spans), workers=n_cores()), maxlen=0)

    def _shared(self, hashes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield rows grouped by name, the original first, and a mask of each group's first row."""
        part_of = np.empty(hashes.size, np.uint8)
        np.right_shift(hashes, np.uint64(60), out=part_of, casting="unsafe")

        def find(part: int) -> tuple[np.ndarray, np.ndarray]:
            rows = np.flatnonzero(part_of == part)
            own = hashes[rows]
            # Most names are unique: sorting the values alone takes a tenth of the time.
            rows = rows[np.isin(own, _duplicates(np.sort(own)))]
            rows = rows[np.lexsort((self._changed[rows], hashes[rows]))]
            first = np.ones(rows.size, bool)
            first[1:] = hashes[rows[1:]] != hashes[rows[:-1]]
            return rows, first

        yield from map_in_order(find, _PARTS, workers=min(n_cores(), _PARTS_AT_ONCE))

    def _check_distinct_cells(self, rows: np.ndarray, first: np.ndarray) -> None:
        plates = np.searchsorted(self._starts, rows, side="right") - 1
        for at in np.flatnonzero(~first[1:] & (plates[1:] == plates[:-1])):
            plate = list(self._columns)[plates[at]]
            duplicates = rows[at : at + 2] - self._starts[plates[at]]
            # Different names with the same hash are not refused.
            name, other = (
                self._columns[plate].text(row, row + 1)[0] for row in duplicates.tolist()
            )
            if name == other:
                raise InputError(
                    f"plate {plate}: the cell name {name!r} occurs more than once: "
                    "make the names of a plate's cells unique (AnnData.obs_names_make_unique)"
                )

    def _number(self, hashes: np.ndarray) -> None:
        """Find numbers for renamed cells whose new name another cell has."""
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
            names = self.read(plate, lo, hi)[rows].decode() if rows.size else ()
            for name in names:
                number = 1
                while (value := _hash_of(f"{name}-{number}")) in given or _holds(hashes, value):
                    number += 1
                given.add(value)
                numbers.append(number)
        self._numbered, self._numbers = np.flatnonzero(pending), np.array(numbers, np.int64)


class NumberedNames:
    """Row names, made unique as ``anndata.utils.make_index_unique`` does (``A-1``). Duplicates are
    searched on first use, or while :meth:`stored` yields the names, in 9 bytes per row.
    """

    def __init__(
        self, names: Callable[[int, int], EncodedText], spans: list[tuple[int, int]]
    ) -> None:
        self._names = names
        self._spans = spans
        self._found: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def is_known(self) -> bool:
        return self._found is not None

    @property
    def n_changed(self) -> int:
        return self._numbered()[0].size

    def read(self, lo: int, hi: int) -> EncodedText:
        return _append_numbers(self._names(lo, hi), lo, *self._numbered())

    def stored(self) -> Iterator[EncodedText]:
        """Names without numbers, one range at a time; finds the duplicates on the way."""
        hashes = np.empty(self._spans[-1][1] if self._spans else 0, np.uint64)
        for lo, hi in self._spans:
            names = self._names(lo, hi)
            hashes[lo:hi] = names.hashes()
            yield names
        hashes.sort()
        shared = _duplicates(hashes)
        del hashes
        none = np.empty(0, np.int64)
        self._found = self._number(shared) if shared.size else (none, none)

    def _numbered(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows that get a number, ascending, and their numbers."""
        if self._found is None:
            for _ in self.stored():
                pass
        assert self._found is not None, "the last range numbers the names"
        return self._found

    def _number(self, shared: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the numbers; ``shared`` are hashes of more than one row, ascending."""
        spans = self._spans
        seen: dict[str, int] = {}  # name: position among the duplicate names, or -1 so far
        rows, bases = array("q"), array("q")
        repeats: dict[str, set[int]] = {}  # name: numbers at the end of other rows' names
        for lo, hi in spans:
            encoded = self._names(lo, hi)
            names, own = encoded.decode(), encoded.hashes()
            at = np.minimum(np.searchsorted(shared, own), shared.size - 1)
            for row in np.flatnonzero(shared[at] == own):
                name = names[row]
                if name not in seen:
                    seen[name] = -1
                    continue
                if seen[name] < 0:
                    seen[name] = len(repeats)
                    repeats[name] = set()
                rows.append(lo + int(row))
                bases.append(seen[name])
        for lo, hi in spans if repeats else ():
            for name in self._names(lo, hi).decode():
                base, _, number = name.rpartition("-")
                # A row number has ASCII digits, without a leading zero.
                if base in repeats and re.fullmatch("[1-9][0-9]{0,17}", number):
                    repeats[base].add(int(number))
        last = [0] * len(repeats)
        taken = list(repeats.values())
        numbers = np.empty(len(rows), np.int64)
        for i, base in enumerate(bases):
            last[base] += 1
            while last[base] in taken[base]:
                last[base] += 1
            numbers[i] = last[base]
        return np.array(rows, np.int64), numbers


def _duplicates(ascending: np.ndarray) -> np.ndarray:
    """Values of a sorted array that equal the value before them."""
    return ascending[1:][ascending[1:] == ascending[:-1]]


def _append_numbers(
    names: EncodedText, lo: int, rows: np.ndarray, numbers: np.ndarray
) -> EncodedText:
    """Names of rows from ``lo`` on, those that have a number with it."""
    first, last = np.searchsorted(rows, [lo, lo + len(names)])
    if first == last:
        return names
    texts = names.decode()
    for row, number in zip(rows[first:last], numbers[first:last], strict=True):
        texts[row - lo] += f"-{number}"
    return EncodedText.encode(texts)


def _hash_of(name: str) -> int:
    return int(EncodedText.encode(np.array([name], object)).hashes()[0])


def _holds(ascending: np.ndarray, value: int) -> bool:
    at = int(np.searchsorted(ascending, np.uint64(value)))
    return at < ascending.size and int(ascending[at]) == value


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
