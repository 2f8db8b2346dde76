"""Genes ranked by the variance of their Pearson residuals: the flavour pearson_residuals.

Two passes over the counts, whatever the number of batches: totals of cells and genes, then the
residuals of nonzero counts. The residuals of zeros follow from the totals, which have far fewer
different values than there are cells.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import whole_number
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for
from scatlas.matrix.hvg_dispersion import ranked_genes
from scatlas.matrix.hvg_ranks import (
    mask_codes,
    median_rank,
    pool_groups,
    select_groups,
    select_top,
)

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments
    from scatlas.kernels.moments.pearson_cpu import PearsonModel

    _BlockResult = tuple[Moments, list[NDArray[Any]], bool]

FLAVOR = "pearson_residuals"
# Columns of a table that are written to var, in scanpy's order; nbatches, intersection: of batches.
COLUMNS = (
    *("means", "variances", "residual_variances", "highly_variable_rank"),
    *("highly_variable_nbatches", "highly_variable_intersection", "highly_variable"),
)
# Genes whose zeros a thread sums in one call.
_GENES_AT_ONCE = 256
# Values whose terms, of 32 bytes, a thread holds on a GPU at once: 0.5 GB.
_GPU_VALUES_AT_ONCE = 2**24


def hvg_table(
    x: Any,
    names: pd.Index,
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    *,
    cell_mask: NDArray[np.bool_] | None = None,
    n_top_genes: int | None = None,
    theta: float = 100,
    clip: float | None = None,
    check_values: bool = True,
    min_cells: int | None = None,
    genes: NDArray[np.bool_] | None = None,
) -> pd.DataFrame:
    """Table of :func:`highly_variable_genes`, flavour pearson_residuals, with scanpy's columns.

    Arguments are those of :func:`scatlas.matrix.hvg_v3.hvg_table` and of
    :func:`highly_variable_genes`.
    """
    import pandas as pd

    from scatlas.matrix.gene_moments import check_finite_moments

    if n_top_genes is None:
        msg = f"flavor={FLAVOR!r} ranks genes and has no cutoffs: give n_top_genes"
        raise InputError(msg)
    n_top_genes = whole_number(n_top_genes, "n_top_genes", least=1)
    if not theta > 0:
        msg = f"theta={theta} must be above 0"
        raise InputError(msg)
    if clip is not None and not clip >= 0:
        msg = f"clip={clip} must not be negative"
        raise InputError(msg)
    codes = mask_codes(codes, cell_mask)
    moments, totals, are_counts = _moments_and_totals(x, codes, check=check_values)
    if not are_counts:
        msg = f"`flavor={FLAVOR!r}` expects raw count data, but non-integers were found."
        warnings.warn(msg, stacklevel=4)
    check_finite_moments(moments, names, f"counts for flavor={FLAVOR!r}")
    total = pool_groups(moments)
    ranked = ranked_genes(total.expressed[0], min_cells, genes)
    moments = select_groups(moments, moments.groups < (1 if batches is None else len(batches)))
    variances = _residual_variances(x, moments, totals, codes, batches, theta, clip)
    variances[:, ~ranked] = np.nan

    rank, n_batches = median_rank(variances, ranked, n_top_genes)
    table = pd.DataFrame({"means": total.mean[0], "variances": total.var[0]}, index=names)
    table["residual_variances"] = np.mean(variances, axis=0)
    table["highly_variable_rank"] = rank
    if batches is not None:
        table["highly_variable_nbatches"] = n_batches
        table["highly_variable_intersection"] = n_batches == len(variances)
    keys = np.where(np.isnan(rank), np.inf, rank), -n_batches
    table["highly_variable"] = select_top(keys, ranked, n_top_genes)
    return table


def _moments_and_totals(
    x: Any, codes: NDArray[np.int64] | None, *, check: bool
) -> tuple[Moments, NDArray[np.float64], bool]:
    """Moments per group, total per cell, whether all values are counts (if checked); one pass."""
    from scatlas.kernels.moments import moments_cpu

    count_kernels = kernels_for("moments.count_moments", x)
    clip_kernels = kernels_for("moments.clipped_moments", x)
    row_sums = kernels_for("counts.qc", x).row_sums

    def block_moments(block: Any, *codes: NDArray[np.int64]) -> _BlockResult:
        are_counts = not check or clip_kernels.holds_counts(block)
        return count_kernels.moments_of_counts(block, *codes), [row_sums(block)], are_counts

    def combine(parts: list[_BlockResult]) -> _BlockResult:
        moments, totals, are_counts = zip(*parts, strict=True)
        # In place: new lists would take time quadratic in the number of blocks.
        for part in totals[1:]:
            totals[0].extend(part)
        return moments_cpu.merge_in_place(moments), totals[0], all(are_counts)

    rows = () if codes is None else (codes,)
    moments, totals, are_counts = blocks.reduce(block_moments, combine, x, *rows)
    return moments, np.concatenate(totals).astype(np.float64), are_counts


def _residual_variances(
    x: Any,
    moments: Moments,
    totals: NDArray[np.float64],
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    theta: float,
    clip: float | None,
) -> NDArray[np.float64]:
    """Variance (over n) of the clipped residuals of each group and gene."""
    from scatlas.kernels.moments import moments_cpu
    from scatlas.kernels.moments.pearson_cpu import PearsonModel

    groups, n_cells = moments.groups, moments.n_cells
    shape = int(groups[-1]) + 1, x.shape[1]
    model = PearsonModel(np.zeros(shape), np.zeros(shape[0]), np.zeros(shape[0]), float(theta))
    model.genes[groups] = moments.sums[..., 0]
    model.groups[groups] = moments.sums[..., 0].sum(axis=1)
    model.clips[groups] = np.sqrt(n_cells) if clip is None else clip
    codes = None if codes is None else np.where(codes < shape[0], codes, -1)
    used_totals = totals if codes is None else totals[codes >= 0]
    if (model.genes < 0).any() or (used_totals < 0).any():
        msg = f"genes or cells have a total below 0: flavor={FLAVOR!r} expects counts"
        raise InputError(msg)
    for group in groups:
        if model.groups[group] == 0:
            where = "" if batches is None else f" of batch {batches[group]!r}"
            msg = f"all cells{where} are empty: there is nothing to rank genes by"
            raise InputError(msg)

    kernels = kernels_for("moments.pearson", x)
    rows = (totals,) if codes is None else (totals, codes)

    def sums_of_nonzeros(block: Any, *rows: NDArray[Any]) -> Moments:
        n = block.shape[0]
        n_values = block.data.size if blocks.is_sparse(block) else block.size
        if not kind_of(block).gpu or n_values <= _GPU_VALUES_AT_ONCE or n < 2:
            totals, *codes = rows
            return kernels.sums_of_nonzeros(block, totals, model, *codes)
        halves = slice(0, n // 2), slice(n // 2, n)
        parts = ((blocks.view(block, half), *(row[half] for row in rows)) for half in halves)
        return moments_cpu.merge_in_place([sums_of_nonzeros(*part) for part in parts])

    nonzero = blocks.reduce(sums_of_nonzeros, moments_cpu.merge_in_place, x, *rows)
    sums = np.empty_like(nonzero.sums)
    for at, group in enumerate(groups):
        group_totals = totals if codes is None else totals[codes == group]
        zeros = _sums_of_zeros(x, model, int(group), *np.unique(group_totals, return_counts=True))
        for i in (0, 2):  # the sum of residuals and that of their squares, each a pair
            pair = moments_cpu.pair_sum(*zeros.T[i : i + 2], *nonzero.sums[at].T[i : i + 2])
            sums[at, :, i : i + 2] = np.column_stack(pair)
    n = n_cells[:, None].astype(np.float64)
    total, total_low, squares, squares_low = np.moveaxis(sums, 2, 0)
    return moments_cpu.means_and_deviations(total, total_low, squares, squares_low, n)[1] / n


def _sums_of_zeros(
    x: Any, model: PearsonModel, group: int, totals: NDArray[np.float64], n_cells: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Sums as if all counts of a group were zeros, computed once per different total of genes."""
    gene_totals, inverse = np.unique(model.genes[group], return_inverse=True)
    kernels = kernels_for("moments.pearson", x)
    gpu = kind_of(x).gpu
    step = gene_totals.size if gpu else _GENES_AT_ONCE

    def sum_slice(i: int) -> NDArray[np.float64]:
        part = model._replace(
            genes=gene_totals[None, i * step : (i + 1) * step],
            groups=model.groups[[group]],
            clips=model.clips[[group]],
        )
        return kernels.sums_of_zeros(part, 0, totals, n_cells)

    if gpu:
        return sum_slice(0)[inverse]
    return np.concatenate(list(blocks.map_in_order(sum_slice, -(-gene_totals.size // step))))[
        inverse
    ]
