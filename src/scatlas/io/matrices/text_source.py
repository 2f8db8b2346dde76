"""Counts of a matrix in Matrix Market's text format, with its lists of cells and genes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from scatlas.io.files.anndata_file import Store
from scatlas.io.matrices.find_counts import kind_of_values
from scatlas.io.matrices.matrix_market import convert_matrix_market, first_cells, first_values
from scatlas.io.matrices.source import CountsSource, Wanted
from scatlas.io.matrices.store_source import StoreSource
from scatlas.io.tables.text_lists import write_text_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import scipy.sparse as sp

    from scatlas.errors import InputError
    from scatlas.io.files.text_matrix import TextMatrix
    from scatlas.io.tables.converted_tables import Tables


class TextSource(StoreSource):
    """Counts of a text matrix, written once to a store in a scratch folder when they are read."""

    def __init__(self, files: TextMatrix, wanted: Wanted) -> None:
        CountsSource.__init__(self, files.path, wanted)
        self._files = files

    @cached_property
    def _root(self) -> Any:
        self.refuse_elements()
        convert_matrix_market(self._files, self._folder, self._stored_shape)
        self._store = Store.find(self._folder)
        return self._store.open_on(self._stack)

    def _find_tables(self, counts: str) -> Tables:  # noqa: ARG002
        return write_text_tables(self._files, self._folder)

    def elements(self) -> dict[str, str | InputError]:
        """What the one matrix holds."""
        return {"X": kind_of_values(first_values(self._files))}

    def genes_per_cell(self) -> None:
        """Not known before the text is read."""

    def some_blocks(self, notify: Callable[[str], object]) -> Iterator[sp.csr_matrix]:  # noqa: ARG002
        """The first cells alone: the text is read up to them."""
        cells = first_cells(self._files, self._stored_shape)
        yield self._genes_of(cells, (0, cells.shape[0]))
