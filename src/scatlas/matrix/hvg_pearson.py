"""Genes ranked by the variance of their Pearson residuals: the flavour pearson_residuals. Residuals
of zeros follow from the totals of cells and genes, which have few different values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.numbers import whole_number
from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments
    from scatlas.kernels.moments.pearson_cpu import PearsonModel

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


def check_options(n_top_genes: int | None, theta: float, clip: float | None) -> int:
    """Number of top genes; refuse options that are missing or out of range."""
    if n_top_genes is None:
        raise InputError(f"flavor={FLAVOR!r} ranks genes and has no cutoffs: give n_top_genes")
    n_top_genes = whole_number(n_top_genes, "n_top_genes", least=1)
    if not theta > 0:
        raise InputError(f"theta={theta} must be above 0")
    if clip is not None and not clip >= 0:
        raise InputError(f"clip={clip} must not be negative")
    return n_top_genes


def residual_variances(
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
    from scatlas.kernels.moments.pairs_cpu import means_and_deviations, pair_sum
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
        raise InputError(f"genes or cells have a total below 0: flavor={FLAVOR!r} expects counts")
    for group in groups:
        if model.groups[group] == 0:
            where = "" if batches is None else f" of batch {batches[group]!r}"
            raise InputError(f"all cells{where} are empty: there is nothing to rank genes by")

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
            pair = pair_sum(*zeros.T[i : i + 2], *nonzero.sums[at].T[i : i + 2])
            sums[at, :, i : i + 2] = np.column_stack(pair)
    n = n_cells[:, None].astype(np.float64)
    total, total_low, squares, squares_low = np.moveaxis(sums, 2, 0)
    return means_and_deviations(total, total_low, squares, squares_low, n)[1] / n


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
