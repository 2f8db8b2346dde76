"""What a path is and what is in it: the one list of the formats of plates."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from scatlas.io.files.anndata_file import Store
from scatlas.io.files.cell_files import BY_TYPE, CellFiles, ListColumns
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices.parquet_source import ParquetSource
from scatlas.io.matrices.source import CountsSource, Sample, Wanted
from scatlas.io.matrices.store_source import StoreSource, TextSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from scatlas.errors import InputError

# What finds the files at a path, and what reads them, in the order of asking; the last finder
# refuses all that is no plate.
FORMATS: tuple[tuple[Callable[[str], Any], Callable[[Any, Wanted], CountsSource]], ...] = (
    (CellFiles.find, ParquetSource),
    (TextMatrix.find, TextSource),
    (Store.find, StoreSource),
)


def find_source(path: Path | str, wanted: Wanted = Wanted()) -> CountsSource:  # noqa: B008
    """Find what a path is; its parts are checked when they are read."""
    found = ((source, find(str(path))) for find, source in FORMATS)
    return next(source(files, wanted) for source, files in found if files)


def open_counts(
    path: Path | str,
    counts: str = "X",
    *,
    scratch: Path | None = None,
    sample: Sample | None = None,
    lists: ListColumns = BY_TYPE,
) -> CountsSource:
    """Open the counts of a plate and check their structure.

    Parameters
    ----------
    path
        h5ad file or Zarr store (v2 or v3), a local path or a URL that fsspec opens; or files of
        Cell Ranger, Loom, Matrix Market or Parquet.
    counts
        Where they are: ``"X"``, ``"raw"`` (``raw.X``, with the genes of ``raw.var``) or
        ``"layers/NAME"``.
    scratch
        Folder for a matrix in Matrix Market's format, which is text, in a form that can be read by
        ranges of cells, and for the tables of Parquet files. It is removed when the source is
        closed.
    sample
        Of Parquet files, take the cells of this plate alone.
    lists
        Of Parquet files, the column of tokens, beside which ``counts`` is that of counts.

    Returns
    -------
    The source; close it, or use it in a ``with``.

    Raises
    ------
    InputError
        The file does not exist, is no AnnData file, is truncated, has no such element, or its
        parts do not agree with each other or with ``obs`` and ``var``.
    """
    with ExitStack() as stack:
        source = stack.enter_context(find_source(path, Wanted(counts, scratch, sample, lists)))
        _ = source.matrix, source.shape  # checks them
        stack.pop_all()
    return source


def gene_names(path: Path | str, counts: str = "X") -> pd.Index:
    """Gene names of a plate that has cells, without reading counts."""
    with find_source(path, Wanted(counts)) as source:
        return source.genes()


def what_elements_hold(path: Path | str) -> dict[str, str | InputError]:
    """What the elements of a plate hold by their first values, or the error of reading them.

    Names are those of ``source.counts``, ``X`` first, of Cell Ranger the genome with most cells.
    Of :data:`EXPECTED` counts at least a tenth are whole; of normalised values hardly any is.
    """
    with find_source(path) as source:
        return source.elements()
