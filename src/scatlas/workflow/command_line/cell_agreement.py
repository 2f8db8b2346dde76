"""Names and numbers of genes of the cells of a plate, without a pass over its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.matrices.counts_source import find_source
from scatlas.io.matrices.source import Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray


def stored_cells(path: str, counts: str) -> Iterator[tuple[EncodedText, NDArray[np.int64]]]:
    """Cells of a plate for :class:`scatlas.io.tables.cell_names.SharedCells`.

    Only rows of CSR have their numbers beside the counts. Of other plates nothing is known before
    they are loaded; the step `concat_on_disk` compares all.
    """
    with find_source(path, Wanted(counts)) as source:
        if (n_genes := source.genes_per_cell()) is None:
            return
        obs = source.table("obs")
        for lo, hi in obs.spans():
            yield EncodedText.encode(obs.names(lo, hi)), n_genes[lo:hi]
