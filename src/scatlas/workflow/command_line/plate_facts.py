"""What one plate's file holds: cells, genes, the place of its counts, metrics of some cells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pandas as pd

from scatlas.compute.threads import DEFAULT_BUDGET
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import check_not_empty
from scatlas.io.files.text_matrix import TextMatrix
from scatlas.io.matrices.counts_source import open_counts
from scatlas.io.matrices.find_counts import COUNTS, EXPECTED, what_elements_hold
from scatlas.io.matrices.matrix_market import first_cells
from scatlas.io.matrices.parquet_source import ParquetSource
from scatlas.io.tables.mitochondrial import find_mitochondrial, mitochondrial_genes
from scatlas.io.tables.table import Table, open_tables
from scatlas.pp import calculate_qc_metrics

if TYPE_CHECKING:
    import scipy.sparse as sp

    from scatlas.io.files.cell_files import CellFiles
    from scatlas.io.matrices.parquet_source import Sample
    from scatlas.io.tables.mitochondrial import Mitochondrial

# Of a file, this many blocks of at most 1 MB are read, evenly spaced.
_N_BLOCKS, _BUDGET = 24, 8_000_000
# Cells of a plate whose metrics are kept.
_MAX_CELLS = 5_000
# Unfiltered matrices of droplets: most barcodes have fewer genes than EMPTY_GENES. Bounds are then
# suggested from those with DROPLET_GENES, or a fifth of the genes of the Nth best if that is less.
_EMPTY_GENES, _DROPLET_GENES, _NTH = 10, 100, 20


@dataclass(frozen=True)
class PlateFacts:
    """Facts of one plate.

    Attributes
    ----------
    counts
        Where the counts are, as ``source.counts`` names it.
    fractional
        ``round`` if they are expected counts, else ``refuse``, as ``source.fractional``.
    n_mt, mt_prefix, gene_names
        Number of mitochondrial genes, the prefix of their names, and the column of var with these
        names, or None for the index.
    min_genes
        Genes of a cell at least, of an unfiltered matrix; else 0.
    metrics
        Columns ``total_counts``, ``n_genes_by_counts``, ``pct_counts_mt`` (NaN for empty cells) of
        some cells.
    notices
        Sentences for the user.
    """

    name: str
    path: str
    n_cells: int
    n_genes: int
    counts: str
    fractional: str
    n_mt: int
    mt_prefix: str
    gene_names: str | None
    min_genes: int
    metrics: pd.DataFrame
    notices: list[str]


def read_facts(
    name: str, path: str, release: tuple[CellFiles, Sample] | None = None
) -> tuple[PlateFacts, pd.Index]:
    """Read the facts of a plate, and the names of its genes, in bounded memory.

    Parameters
    ----------
    name, path
        Of the plate.
    release
        Parquet files of which the plate is a part, and which part.

    Raises
    ------
    InputError
        The file cannot be read, or holds no counts.
    """
    counts, fractional = ("X", "refuse") if release else _find_counts(path)
    notices: list[str] = []
    if fractional == "round":
        notices.append(
            f"{counts} holds expected counts, which are fractional: they will be rounded"
        )
    if not release and (text := TextMatrix.find(path)):
        with TemporaryDirectory(prefix="scatlas-") as folder:
            found, block, n_cells = first_cells(text, Path(folder))
            var = Table.open(path, found.root, "var")
            if found.gene_of_feature is not None:
                block = block[:, found.gene_of_feature >= 0]
            genes, (mt, mask) = var.index(), _mitochondrial(var)
            notices += found.notices
        metrics = _metrics(block, mask)
    else:
        with ParquetSource(*release) if release else open_counts(path, counts) as source:
            var, n_cells = source.table("var"), source.shape[0]
            genes, (mt, mask) = var.index(), _mitochondrial(var)
            in_blocks = source.matrix.format in ("csr", "transposed", "lists")
            budget = _BUDGET if in_blocks else DEFAULT_BUDGET
            _, cut, read = source.blocks(budget, notices.append)
            chosen = np.unique(np.linspace(0, len(cut) - 1, _N_BLOCKS).astype(int))
            metrics = pd.concat([_metrics(read(i), mask) for i in chosen.tolist()])
            notices += source.notices
    check_not_empty(path, (n_cells, len(genes)))
    metrics, min_genes, unfiltered = _without_empty(metrics)
    notices += unfiltered
    if mt.others:
        notices.append(
            f"names of mitochondrial genes begin with {mt.prefix}, but also with "
            f"{' and '.join(mt.others)}: qc.mt_prefix takes one of them, so these do not count"
        )
    facts = PlateFacts(
        *(name, path, n_cells, len(genes)),
        counts=counts,
        fractional=fractional,
        n_mt=mt.n,
        mt_prefix=mt.prefix,
        gene_names=mt.column,
        min_genes=min_genes,
        metrics=metrics,
        notices=notices,
    )
    return facts, genes


def _find_counts(path: str) -> tuple[str, str]:
    """Where the counts are, and what to do with fractional ones."""
    held = what_elements_hold(path)
    for kind, fractional in ((COUNTS, "refuse"), (EXPECTED, "round")):
        if found := [name for name, words in held.items() if words == kind]:
            return found[0], fractional
    check_not_empty(path, _shape(path))
    if isinstance(error := held.get("X"), InputError):
        raise error
    seen = ", ".join(
        f"{name} {'cannot be read' if isinstance(words, InputError) else words}"
        for name, words in held.items()
    )
    seen = seen or "there is no X, no raw and no layer"
    msg = f"{path}: no element holds raw counts: {seen}; give a file with raw counts"
    raise InputError(msg)


def _shape(path: str) -> tuple[int, int]:
    """Cells and genes of a plate."""
    with open_tables(path) as (obs, var):
        return obs.n_rows, var.n_rows


def _mitochondrial(var: Table) -> tuple[Mitochondrial, np.ndarray]:
    found = find_mitochondrial(var)
    return found, mitochondrial_genes(var, found.prefix, found.column)


def _metrics(block: sp.csr_matrix, mt: np.ndarray) -> pd.DataFrame:
    """Metrics of the cells of a block."""
    adata = ad.AnnData(block, var=pd.DataFrame({"mt": mt}, index=np.arange(mt.size).astype(str)))
    calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, log1p=False, inplace=True)
    return adata.obs[["total_counts", "n_genes_by_counts", "pct_counts_mt"]]


def _without_empty(metrics: pd.DataFrame) -> tuple[pd.DataFrame, int, list[str]]:
    """Metrics of at most 5,000 cells; of an unfiltered matrix, of those that may be cells."""
    genes = metrics["n_genes_by_counts"].to_numpy()
    share = float((genes < _EMPTY_GENES).mean()) if len(metrics) else 0.0
    min_genes, notices = 0, []
    if 0.5 < share < 1:
        many = np.sort(genes)[-_NTH:][0] // 5
        min_genes = int(np.clip(many, _EMPTY_GENES, _DROPLET_GENES))
        metrics = metrics[genes >= min_genes]
        notices.append(
            f"{100 * share:.0f}% of the barcodes have fewer than {_EMPTY_GENES} genes: this matrix "
            "is not filtered; give the filtered one, or keep qc.min_genes"
        )
    step = -(-len(metrics) // _MAX_CELLS) or 1
    return metrics.iloc[::step].reset_index(drop=True), min_genes, notices
