"""Names and numbers of genes of the cells of a plate, without a pass over its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices.counts_source import open_counts
from scatlas.io.matrices.parquet_source import ParquetSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


def stored_cells(path: str, counts: str) -> Iterator[tuple[EncodedText, NDArray[np.int64]]]:
    """Cells of a plate for :class:`scatlas.io.tables.shared_cells.SharedCells`.

    Only rows of CSR have their numbers beside the counts. Of other plates nothing is known before
    they are loaded; the step `concat_on_disk` compares all.
    """
    if TextMatrix.find(path):
        return
    with open_counts(path, counts) as source:
        if isinstance(source, ParquetSource) or source.matrix.format != "csr":
            return
        n_genes, obs = np.diff(source.indptr), source.table("obs")
        for lo, hi in obs.spans():
            yield EncodedText.encode(obs.names(lo, hi)), n_genes[lo:hi]
