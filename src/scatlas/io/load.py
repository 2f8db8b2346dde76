"""The only door in: validate a plate and store its counts in the canonical form, in one pass."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas.blocks import csr
from scatlas.compute.progress import meter
from scatlas.errors import InputError
from scatlas.genes import first_difference
from scatlas.io.ahead import read_ahead
from scatlas.io.frames import unique_names, writable
from scatlas.io.size import csr_blocks, parse_bytes
from scatlas.io.source import AGAIN, CountsSource, gene_names, open_counts
from scatlas.io.writer import CsrWriter
from scatlas.kernels.check_cpu import MAX_COUNT, Problem, check_counts
from scatlas.kernels.qc_cpu import QCPartial, qc_block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pandas as pd
    import scipy.sparse as sp

logger = logging.getLogger(__name__)

# The obs columns that load adds.
METRICS = ("total_counts", "n_genes_by_counts", "total_counts_mt", "pct_counts_mt")


class _Notices(list):
    """Facts that the user should know but that stop nothing: logged, and kept for the manifest."""

    def __init__(self, plate: str) -> None:
        super().__init__()
        self._plate = plate

    def add(self, notice: str) -> None:
        logger.info("plate %s: %s", self._plate, notice)
        self.append(notice)


def load_plate(
    source: Path | str,
    out: Path,
    *,
    plate: str,
    check_obs: Callable[[pd.DataFrame], object] | None = None,
    reference: Path | str | None = None,
    mt_prefix: str | None = "MT-",
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Validate a plate and write its counts and QC metrics as ``counts.zarr``.

    The counts are read once, in order, in row blocks whose size the budget bounds: one block is
    read while the one before is checked and the one before that is encoded. Layers, ``raw``,
    ``uns``, ``obsm`` and the other slots of the source are not carried over.

    Parameters
    ----------
    source
        h5ad file or Zarr store, local path or URL.
    out
        Store to write; it appears when it is complete, and not at all after an error.
    plate
        Name, for messages. A column ``plate`` of the source stays as it is.
    check_obs
        Called with ``obs`` as it will be stored, but for the metrics, before any count is read;
        it may raise `InputError`.
    reference
        AnnData file whose genes this plate must have, in the same order.
    mt_prefix
        Genes whose names begin with it are mitochondrial; None for no such genes.
    block_budget
        Memory for blocks in work, as ``"256MB"``.

    Returns
    -------
    ``plate``, ``n_cells``, ``n_genes``, ``n_values``, ``total_counts``, ``max_count``,
    ``n_empty_cells``, ``n_mt_genes``, ``n_unsorted_cells``, ``n_stored_zeros`` (int), and
    ``notices`` (list of str): what was mended on the way, each also logged.

    Notes
    -----
    The store holds ``X`` (CSR; sorted, no duplicates, no stored zeros), the source's ``obs`` and

    - ``obs['total_counts']``, ``obs['n_genes_by_counts']``, ``obs['total_counts_mt']``: int64,
      ``obs['pct_counts_mt']``: float64 in percent. An empty cell has NaN, which passes no bound.
    - ``var['mt']``: bool; ``var['n_cells_by_counts']``, ``var['total_counts']``: int64.

    Names and values are those of ``scanpy.pp.calculate_qc_metrics(qc_vars=['mt'])`` on integer
    counts, without its log1p columns.

    Raises
    ------
    InputError
        One sentence that names the file, the element and the mend.
    """
    budget = parse_bytes(block_budget)
    notices = _Notices(plate)
    with open_counts(source) as counts:
        path = counts.path
        _check_not_empty(path, counts.shape)
        obs, var = counts.obs(), counts.var()
        _check_genes(path, var.index, reference)
        counts.check_complete()
        obs = writable(unique_names(obs, notices.add), "obs", notices.add)
        var = writable(var, "var", notices.add)
        if check_obs is not None:
            check_obs(obs)
        mt = _mitochondrial(var.index, mt_prefix, notices)

        tally = _Tally()
        passed = meter(counts.shape[0])
        raw = read_ahead(_raw_blocks(counts, budget, notices))
        checked = read_ahead(_checked_blocks(raw, path, obs.index, var.index, mt))
        with CsrWriter(out, n_vars=counts.shape[1]) as writer, closing(checked), closing(passed):
            for block in checked:
                writer.append(block.counts)
                tally.add(block)
                passed.update(block.counts.shape[0])
            tally.tell(notices)
            writer.obs = _with(obs, _cell_metrics(tally.qc), "obs", notices)
            writer.var = _with(var, _gene_metrics(tally.qc, mt), "var", notices)
    return {
        "plate": plate,
        "n_cells": counts.shape[0],
        "n_genes": counts.shape[1],
        "n_values": tally.n_values,
        "total_counts": int(tally.qc.totals.sum()),
        "max_count": tally.max_count,
        "n_empty_cells": int((tally.qc.totals == 0).sum()),
        "n_mt_genes": int(mt.sum()),
        "n_unsorted_cells": tally.n_unsorted,
        "n_stored_zeros": tally.n_zeros,
        "notices": list(notices),
    }


class _Block(NamedTuple):
    """A checked block: canonical counts, their metrics, cells sorted, stored zeros dropped."""

    counts: sp.csr_matrix
    qc: QCPartial
    n_unsorted: int
    n_zeros: int


@dataclass
class _Tally:
    """What the pass over the blocks adds up."""

    parts: list[QCPartial] = field(default_factory=list)
    n_values: int = 0
    max_count: int = 0
    n_unsorted: int = 0
    n_zeros: int = 0

    @property
    def qc(self) -> QCPartial:
        """Metrics of all cells and genes so far."""
        return self.parts[0]

    def add(self, block: _Block) -> None:
        """Count a block that follows those before."""
        self.parts = [QCPartial.merge([*self.parts, block.qc])]
        self.n_values += block.counts.nnz
        self.max_count = max(self.max_count, int(block.counts.data.max(initial=0)))
        self.n_unsorted += block.n_unsorted
        self.n_zeros += block.n_zeros

    def tell(self, notices: _Notices) -> None:
        """Say what was mended, and what is odd."""
        if self.n_unsorted:
            notices.add(f"X/indices of {self.n_unsorted:,} cells were not sorted: sorted")
        if self.n_zeros:
            notices.add(f"X held {self.n_zeros:,} stored zeros: dropped")
        n_empty = int((self.qc.totals == 0).sum())
        if n_empty:
            notices.add(f"{n_empty:,} cells have no counts")


def _check_not_empty(path: str, shape: tuple[int, int]) -> None:
    for n, name, frame in zip(shape, ("cells", "genes"), ("obs", "var"), strict=True):
        if n == 0:
            msg = f"{path}: {frame} is empty, the plate has no {name}: take it off the plate sheet"
            raise InputError(msg)


def _check_genes(path: str, names: pd.Index, reference: Path | str | None) -> None:
    """Refuse genes that are named twice or differ from the reference plate's."""
    names = names.astype(str)
    if not names.is_unique:
        second = int(np.flatnonzero(names.duplicated())[0])
        first = int(np.flatnonzero(names == names[second])[0])
        msg = (
            f"{path}: the gene name {names[second]!r} stands twice in var (genes {first} and "
            f"{second}): make the names unique (adata.var_names_make_unique()), alike on all plates"
        )
        raise InputError(msg)
    if reference is None:
        return
    differing = first_difference(names, gene_names(reference))
    if differing is None:
        return
    here, there = (repr(n) if n is not None else "missing" for n in differing[1:])
    msg = (
        f"{path}: gene {differing.at} of var is {here}, but {there} on {reference}: give all "
        "plates the same genes in the same order, or set 'genes: intersect' in the config"
    )
    raise InputError(msg)


def _mitochondrial(names: pd.Index, prefix: str | None, notices: _Notices) -> np.ndarray:
    """Mask of the mitochondrial genes, bool [genes]."""
    if not prefix:
        return np.zeros(len(names), bool)
    mt = np.asarray(names.astype(str).str.startswith(prefix), dtype=bool)
    if not mt.any():
        notices.add(f"no gene name begins with {prefix!r}: mitochondrial counts are all zero")
    return mt


def _raw_blocks(
    counts: CountsSource, budget: int, notices: _Notices
) -> Iterator[tuple[int, sp.csr_matrix]]:
    """Yield the row blocks of X as stored, each with the number of its first cell."""
    if counts.matrix.format == "csr":
        for first, stop in csr_blocks(counts.indptr, budget):
            yield first, counts.read_rows(first, stop)
        return
    whole = counts.convert(budget)
    notices.add(f"X was stored as {counts.matrix.format}: converted to CSR")
    for first, stop in csr_blocks(whole.indptr, budget):
        yield first, whole[first:stop]


def _checked_blocks(
    raw: Iterator[tuple[int, sp.csr_matrix]],
    path: str,
    cells: pd.Index,
    genes: pd.Index,
    mt: np.ndarray,
) -> Iterator[_Block]:
    """Yield the blocks checked and in canonical form."""
    with closing(raw):
        for first, block in raw:
            checked = check_counts(block)
            if checked.problem:
                raise InputError(_sentence(path, checked.problem, first, cells, genes))
            counts = csr(checked.counts, checked.indices, checked.indptr, len(genes))
            qc = qc_block(counts, mt[None, :])
            yield _Block(counts, qc, checked.n_unsorted, checked.n_zeros)


def _sentence(path: str, problem: Problem, first: int, cells: pd.Index, genes: pd.Index) -> str:
    """Say which cell and gene hold what is no count, and what to do."""
    row = first + problem.row
    cell = f"cell {row} ({cells[row]!r})"
    if problem.kind == "out_of_range":
        return (
            f"{path}: X/indices of {cell} hold {problem.index}, but there are {len(genes)} genes, "
            f"0 to {len(genes) - 1}: {AGAIN}"
        )
    gene = f"gene {problem.index} ({genes[problem.index]!r})"
    if problem.kind == "duplicate":
        return (
            f"{path}: X/indices of {cell} hold {gene} twice: add the values up "
            "(adata.X.sum_duplicates()) if they are parts of one count, and write the file again"
        )
    if problem.kind == "too_large":
        wrong = f"{int(problem.value)}, above {MAX_COUNT}"
    elif problem.kind in ("nan", "infinite"):
        wrong = f"{problem.value}, which is no count"
    else:
        wrong = f"{problem.value:.10g}, a {problem.kind} value"
    return (
        f"{path}: X holds {wrong}, at {cell}, {gene}: "
        "give raw counts, not normalised or scaled values"
    )


def _cell_metrics(qc: QCPartial) -> dict[str, np.ndarray]:
    totals, mt = qc.totals, qc.masked[:, 0]
    with np.errstate(invalid="ignore"):  # 0/0 in empty cells: NaN, as in scanpy
        share = mt / totals * 100
    return dict(zip(METRICS, (totals, qc.n_genes, mt, share), strict=True))


def _gene_metrics(qc: QCPartial, mt: np.ndarray) -> dict[str, np.ndarray]:
    return {"mt": mt, "n_cells_by_counts": qc.n_cells, "total_counts": qc.gene_totals}


def _with(
    frame: pd.DataFrame, columns: dict[str, np.ndarray], name: str, notices: _Notices
) -> pd.DataFrame:
    """Frame with these columns added, telling which of its own they replace."""
    replaced = [column for column in columns if column in frame.columns]
    if replaced:
        notices.add(f"{name} had columns {', '.join(replaced)}: replaced by new values")
    return frame.assign(**columns)
