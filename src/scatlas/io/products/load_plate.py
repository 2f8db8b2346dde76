"""Validate a plate and store its counts in the canonical form, in one pass."""

from __future__ import annotations

import logging
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scatlas._util.numbers import parse_bytes
from scatlas.blocks import map_in_order, with_progress
from scatlas.columns import first_difference
from scatlas.errors import InputError
from scatlas.io.files.anndata_checks import check_not_empty
from scatlas.io.files.cell_files import BY_TYPE, ListColumns
from scatlas.io.files.checksums import values_digest
from scatlas.io.files.read_errors import REMEDY
from scatlas.io.matrices.counts_source import gene_names, open_counts
from scatlas.io.matrices.csr_writer import CsrWriter, in_place
from scatlas.io.products.load_statistics import (
    HOW_TO_ROUND,
    KeptCellMoments,
    LoadStatistics,
    RoundedValues,
)
from scatlas.io.tables.genes import mitochondrial_genes, why_bound_cannot_act
from scatlas.io.tables.table import GENE_METRICS, METRICS
from scatlas.kernels import COUNT_DTYPES
from scatlas.kernels.counts.check_cpu import MAX_COUNT, CheckedCounts, Problem, check_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Generator, Iterable
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    import pandas as pd

    from scatlas.io.matrices.source import CountsSource, Sample
    from scatlas.io.products.load_statistics import KeptCells
    from scatlas.io.tables.table import Table

logger = logging.getLogger(__name__)


class _Notices(list[str]):
    """Facts that the user should know but that stop nothing: logged, and kept for the manifest."""

    def __init__(self, plate: str) -> None:
        super().__init__()
        self._plate = plate

    def add(self, notice: str) -> None:
        logger.info("plate %s: %s", self._plate, notice)
        self.append(notice)

    def add_new(self, notices: Iterable[str]) -> None:
        """Log those that are not known yet."""
        for notice in notices:
            if notice not in self:
                self.add(notice)

    def add_first(self, notice: str | None) -> None:
        """Log a notice that becomes known late, if any, and put it before the others."""
        if notice:
            self.add(notice)
            self.insert(0, self.pop())


def load_plate(
    source: Path | str,
    out: Path,
    *,
    plate: str,
    counts_in: str = "X",
    sample: Sample | None = None,
    lists: ListColumns = BY_TYPE,
    fractional: Literal["refuse", "round"] = "refuse",
    check_obs: Callable[[Table], object] | None = None,
    reference: Path | str | None = None,
    reference_counts_in: str = "X",
    mt_prefix: str | None = "MT-",
    gene_names: str | None = None,
    mt_bound: str | None = None,
    kept_cells: Callable[[Table], KeptCells] | None = None,
    moments: Path | None = None,
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Validate a plate and write its counts and QC metrics as ``counts.zarr``.

    The counts are read once, in row blocks whose size the budget bounds: several threads read,
    check and sum one block each, while those before are encoded in order. The tables are checked
    and written beside them. Layers, ``raw``, ``uns``, ``obsm`` and the other slots of the source
    are not carried over.

    Parameters
    ----------
    source
        h5ad file or Zarr store, local path or URL.
    out
        Store to write; it appears when it is complete, and not at all after an error.
    plate
        Name, for messages. A column ``plate`` of the source stays as it is.
    counts_in
        Where the counts are: ``"X"``, ``"raw"`` (``raw.X``, with the genes of ``raw.var``) or
        ``"layers/NAME"``. The store has them as X.
    sample
        Of Parquet files that hold several plates, the one to load.
    lists
        Of Parquet files, the column of gene tokens, beside which ``counts_in`` is that of the
        counts; else both are told by their types.
    fractional
        ``"round"`` rounds expected counts, which are fractional, as :func:`numpy.rint` does;
        ``"refuse"`` is an error.
    check_obs
        Called with ``obs`` as it will be stored, but for the metrics, before any count is read;
        it reads the columns that it needs, and may raise `InputError`.
    reference
        AnnData file whose genes this plate must have, in the same order.
    reference_counts_in
        Where its counts are.
    mt_prefix
        Genes whose names begin with it are mitochondrial; None for no such genes.
    gene_names
        Column of ``var`` that holds these names; None for its index.
    mt_bound
        Bound on mitochondrial counts of a later step, in words (``"qc.max_pct_mt is 5"``). It drops
        nothing here, but a plate without mitochondrial genes, where it could not act, is refused.
    kept_cells
        Called as `check_obs`; returns which cells of a block a later step will keep
        (:data:`scatlas.io.products.load_statistics.KeptCells`).
    moments
        File to write, with the moments per gene of these cells
        (:func:`scatlas.io.products.load_statistics.write_moments`). Only with `kept_cells`.
    block_budget
        Memory for the blocks in flight, as ``"256MB"``.

    Returns
    -------
    ``plate``, ``n_cells``, ``n_genes``, ``n_values``, ``total_counts``, ``max_count``,
    ``n_empty_cells``, ``n_mt_genes``, ``n_unsorted_cells``, ``n_stored_zeros`` (int),
    ``values_digest`` (:func:`scatlas.io.files.checksums.values_digest` of the store), and
    ``notices`` (list of str): corrections of the input, each also logged. With
    ``fractional="round"`` also ``n_rounded_values`` and ``n_rounded_counts``: how many values were
    fractional, and the counts that they became.

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
    scratch = out.with_name(f".{out.name}.source")
    with open_counts(source, counts_in, scratch=scratch, sample=sample, lists=lists) as counts:
        path = counts.path
        check_not_empty(path, counts.shape)
        obs, var = counts.table("obs"), counts.table("var")
        notices.add_new(counts.notices)
        counts.check_complete()
        genes = var.index()
        _check_unique(path, genes)
        if reference is not None:
            _check_same_genes(path, genes, reference, reference_counts_in)
        obs = obs.storable(notices.add)
        as_given, var = var, var.storable(notices.add)
        if check_obs is not None:
            check_obs(obs)
        mt = _mitochondrial(as_given, mt_prefix, gene_names, mt_bound, notices)
        of_kept = KeptCellMoments(kept_cells(obs)) if kept_cells else None
        tally = LoadStatistics(counts.shape[1], of_kept)
        rounded = RoundedValues(rounds=fractional == "round")
        due = counts.matrix.n_values if counts.matrix.format in ("csr", "csc") else 0
        checked = partial(_checked_blocks, counts, budget, obs, genes, mt, tally, notices, rounded)
        with (
            CsrWriter(out, n_vars=counts.shape[1], n_values=due) as writer,
            obs.writing(writer.folder / "obs", deferred_columns=METRICS) as finish_obs,
            var.writing(writer.folder / "var", deferred_columns=GENE_METRICS) as finish_var,
            closing(checked(writer.pool)) as blocks,
        ):
            for block in blocks:
                finish_obs.check()  # not after hours
                writer.append_checked(block.counts, block.indices, block.highest)
                writer.append_rows(tally.add(block))
            notices.add_new(counts.notices)  # some become known with the values
            tally.tell(counts.matrix.key, notices.add, rounded)
            cell_metrics, gene_metrics = tally.cell_metrics(), tally.gene_metrics(mt)
            _note_replaced("obs", obs.columns, cell_metrics, notices)
            _note_replaced("var", var.columns, gene_metrics, notices)
            finish_obs(cell_metrics)
            notices.add_first(obs.renamed())
            finish_var(gene_metrics)
            counts.check_unchanged()  # the tables may have been read after the last block
            writer.obs = writer.var = in_place
    if of_kept and moments:
        of_kept.write(moments, cell_metrics["total_counts"])
    return {
        "plate": plate,
        "n_cells": counts.shape[0],
        "n_genes": counts.shape[1],
        "n_values": tally.n_values,
        "total_counts": tally.total,
        "max_count": tally.max_count,
        "n_empty_cells": tally.n_empty,
        "n_mt_genes": int(mt.sum()),
        "n_unsorted_cells": tally.n_unsorted,
        "n_stored_zeros": tally.n_zeros,
        "values_digest": values_digest(out),
        **rounded.facts(),
        "notices": list(notices),
    }


def _check_unique(path: str, names: pd.Index) -> None:
    if not names.is_unique:
        second = int(np.flatnonzero(names.duplicated())[0])
        first = int(np.flatnonzero(names == names[second])[0])
        raise InputError(
            f"{path}: the gene name {names[second]!r} stands twice in var (genes {first} and "
            f"{second}): make the names unique (adata.var_names_make_unique()), alike on all plates"
        )


def _check_same_genes(path: str, names: pd.Index, reference: Path | str, counts_in: str) -> None:
    try:
        wanted = gene_names(reference, counts_in)
    except InputError as error:
        # The reference plate's own `load` is refused, and later steps compare the genes, too.
        logger.info("%s: its genes are not compared with those of another plate: %s", path, error)
        return
    differing = first_difference(names, wanted)
    if differing is None:
        return
    here, there = (repr(n) if n is not None else "missing" for n in differing[1:])
    raise InputError(
        f"{path}: gene {differing.at} of var is {here}, but {there} on {reference}: give all "
        "plates the same genes in the same order, or set 'genes: intersect' (or union) in the "
        "config"
    )


def _mitochondrial(
    var: Table, prefix: str | None, column: str | None, bound: str | None, notices: _Notices
) -> np.ndarray:
    """Mask of the mitochondrial genes, bool [genes]."""
    if not prefix:
        return np.zeros(var.n_rows, bool)
    mt = mitochondrial_genes(var, prefix, column)
    if not mt.any():
        if bound is not None:
            raise InputError(f"{var.path}: {why_bound_cannot_act(var, prefix, column, bound)}")
        notices.add(f"no gene name begins with {prefix!r}: mitochondrial counts are all zero")
    return mt


def _checked_blocks(
    counts: CountsSource,
    budget: int,
    cells: Table,
    genes: pd.Index,
    mt: np.ndarray,
    tally: LoadStatistics,
    notices: _Notices,
    rounded: RoundedValues,
    pool: ThreadPoolExecutor,
) -> Generator[CheckedCounts]:
    """Yield the row blocks of X checked and in canonical form, several in the making at once."""
    cut, raw = counts.blocks(budget, notices.add)
    # The width that blocks so far needed; which they are does not show in the result.
    width = np.dtype(COUNT_DTYPES[0])

    def checked(i: int) -> CheckedCounts:
        nonlocal width
        block = check_counts(rounded(raw(i)), mt, dtype=width)
        width = max(width, block.counts.dtype)
        if block.problem:
            raise InputError(_sentence(counts, block.problem, cut[i][0], cells, genes))
        tally.add_genes(i, cut[i][0], block)
        return block

    blocks = map_in_order(checked, len(cut), pool=pool)
    return with_progress(blocks, [stop - first for first, stop in cut])


def _sentence(
    counts: CountsSource, problem: Problem, first: int, cells: Table, genes: pd.Index
) -> str:
    """Say which cell and gene hold what is no count, and what to do."""
    row = first + problem.row
    path, key = counts.path_of(row), counts.matrix.key
    cell = f"cell {row} ({cells.name_of(row)!r})"
    if problem.kind == "out_of_range":
        return (
            f"{path}: {key}/indices of {cell} hold {problem.gene_index}, but there are "
            f"{len(genes)} genes, 0 to {len(genes) - 1}: {REMEDY}"
        )
    gene = f"gene {problem.gene_index} ({genes[problem.gene_index]!r})"
    if problem.kind == "duplicate":
        return (
            f"{path}: {key}/indices of {cell} hold {gene} twice: add the values up "
            "(adata.X.sum_duplicates()) if they are parts of one count, and write the file again"
        )
    if problem.kind == "too_large":
        wrong = f"{int(problem.value)}, above {MAX_COUNT}"
    elif problem.kind in ("nan", "infinite"):
        wrong = f"{problem.value}, which is no count"
    else:
        wrong = f"{problem.value:.10g}, a {problem.kind} value"
    return (
        f"{path}: {key} holds {wrong}, at {cell}, {gene}: "
        f"give raw counts, not normalised or scaled values{_elsewhere(counts, problem.kind)}"
    )


def _elsewhere(counts: CountsSource, kind: str) -> str:
    """Say which other element holds whole numbers, and which line of the config takes it."""
    other = next(iter(counts.others_with_counts()), None)
    if other is None:
        return f"; {HOW_TO_ROUND}" if kind == "fractional" else ""
    return (
        f"; {other} holds whole numbers: write 'source: {{counts: {other}}}' in the config, or "
        f"{other} in a column 'counts' of the plate sheet"
    )


def _note_replaced(
    name: str, columns: Container[str], metrics: Iterable[str], notices: _Notices
) -> None:
    replaced = [metric for metric in metrics if metric in columns]
    if replaced:
        notices.add(f"{name} had columns {', '.join(replaced)}: replaced by new values")
