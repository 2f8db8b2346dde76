"""What every format of plates gives: cells, genes, and counts in blocks of cells."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from scatlas.compute.threads import DEFAULT_BUDGET
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import check_not_empty
from scatlas.io.files.cell_files import BY_TYPE, ListColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd
    import scipy.sparse as sp
    from numpy.typing import NDArray

    from scatlas.io.matrices.layout import StoredMatrix
    from scatlas.io.tables.table import Table

# What an element holds, in words.
COUNTS, EXPECTED = "holds raw counts", "holds expected counts"
# Of a plate, this many blocks of at most 1 MB tell what the counts are, evenly spaced.
_N_BLOCKS, _BUDGET = 24, 8_000_000


class Sample(NamedTuple):
    """The cells of one plate: the column that names the plates, and the plate's name there."""

    by: str
    name: str


class Wanted(NamedTuple):
    """What to read at a path, see :func:`scatlas.io.open_counts`."""

    counts: str = "X"
    scratch: Path | None = None
    sample: Sample | None = None
    lists: ListColumns = BY_TYPE


class CountsSource(Protocol):
    """Counts of a plate, opened for reading by blocks of cells; a context manager.

    Made by :func:`scatlas.io.open_counts`. Each part is read when it is requested.
    """

    path: str
    _wanted: Wanted
    _stack: ExitStack
    _notices: list[str]

    def __init__(self, path: str, wanted: Wanted) -> None:
        self.path, self._wanted = path, wanted
        self._stack, self._notices = ExitStack(), []

    @cached_property
    def _folder(self) -> Path:
        """Folder for converted parts, without those of a run that was killed."""
        if self._wanted.scratch:
            shutil.rmtree(self._wanted.scratch, ignore_errors=True)
        folder = self._wanted.scratch or Path(mkdtemp(prefix="scatlas-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    @property
    def matrix(self) -> StoredMatrix:
        """How the counts are stored."""

    @property
    def shape(self) -> tuple[int, int]:
        """Cells, genes."""

    def elements(self) -> dict[str, str | InputError]:
        """What each element holds, see :func:`what_elements_hold`."""

    def table(self, name: str) -> Table:
        """``obs`` or ``var`` of the counts, left on disk; ``var`` has only genes."""

    def refuse_elements(self) -> None:
        """Refuse any other element than X, for files with one matrix."""
        if self._wanted.counts != "X":
            raise InputError(
                f"{self.path}: these files have one matrix and no {self._wanted.counts}: write X "
                "in the column 'counts' of the plate sheet"
            )

    def blocks(
        self, budget: int, notify: Callable[[str], object]
    ) -> tuple[list[tuple[int, int]], Callable[[int], sp.csr_matrix]]:
        """Cut the counts into row blocks for one pass, with ``budget`` bytes in flight.

        Returns ``(first, stop)`` rows of each block, and a function that reads a block by its
        number, whose indices are not checked; ``notify`` is told if the matrix is converted.
        """

    def check_unchanged(self) -> None:
        """Refuse local files that were changed since they were opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def notices(self) -> list[str]:
        """Sentences about what is left out or changed, so far."""
        return self._notices

    def genes(self) -> pd.Index:
        """Names of the genes of a plate that has cells."""
        check_not_empty(self.path, (self.table("obs").n_rows, self.table("var").n_rows))
        return self.table("var").index()

    def some_blocks(self, notify: Callable[[str], object]) -> Iterator[sp.csr_matrix]:
        """Blocks of all parts of the plate, by which to know it."""
        in_blocks = self.matrix.format in ("csr", "transposed", "lists")
        cut, read = self.blocks(_BUDGET if in_blocks else DEFAULT_BUDGET, notify)
        chosen = np.unique(np.linspace(0, len(cut) - 1, _N_BLOCKS).astype(int))
        return map(read, chosen.tolist())

    def path_of(self, row: int) -> str:  # noqa: ARG002
        """File of a cell, for messages."""
        return self.path

    def check_complete(self) -> None:
        """Refuse a Zarr store that has lost files; of other formats this was seen before."""
        return

    def others_with_counts(self) -> list[str]:
        """Other elements whose first values are whole numbers, as ``source.counts`` names them."""
        held = {**self.elements(), self._wanted.counts: ""}
        names = [name for name, words in held.items() if words == COUNTS]
        return sorted(names, key=lambda name: (name == "X", name))

    def plates(self, by: str) -> dict[str, int] | None:  # noqa: ARG002
        """Plates and their numbers of cells from metadata alone; None if obs has to be read."""
        return None

    def genes_per_cell(self) -> NDArray[np.int64] | None:
        """Stored genes of each cell, int64 [cells]; None if the counts have to be read for them."""
        return None

    def is_ordered(self, by: str, n_plates: int) -> bool:  # noqa: ARG002
        """Whether each plate can be read on its own."""
        return False
