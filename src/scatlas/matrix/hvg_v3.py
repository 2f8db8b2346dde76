"""Genes ranked by their variance relative to that expected from their mean, flavours seurat_v3: a
second pass takes the moments of counts above a bound per gene, fitted to all moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas import blocks
from scatlas._util.imports import from_extra
from scatlas._util.numbers import whole_number
from scatlas.errors import InputError
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.kernels.moments.moments_cpu import Moments

FLAVORS = ("seurat_v3", "seurat_v3_paper")
# Columns of a table that are written to var, in scanpy's order; the last one only with batches.
COLUMNS = (
    *("highly_variable", "highly_variable_rank", "means", "variances", "variances_norm"),
    "highly_variable_nbatches",
)
_N_TOP_GENES = 2000
# A quadratic fit needs this many genes; without genes scikit-misc ends the process.
_MIN_GENES_PER_FIT = 4


def check_options(n_top_genes: int | None, span: float) -> int:
    """Number of top genes; refuse a span out of range, and a missing scikit-misc."""
    with from_extra():
        import skmisc.loess  # noqa: F401

    n_top_genes = _N_TOP_GENES if n_top_genes is None else n_top_genes
    n_top_genes = whole_number(n_top_genes, "n_top_genes", least=1)
    if not 0 < span <= 1:
        raise InputError(f"span={span} must be above 0 and at most 1: it is a share of the genes")
    return n_top_genes


def normalized_variances(
    x: Any,
    moments: Moments,
    ranked: NDArray[np.bool_],
    codes: NDArray[np.int64] | None,
    batches: list[Any] | None,
    span: float,
    flavor: str,
) -> NDArray[np.float64]:
    """Variance of counts, clipped at a bound and divided by the spread, per group and gene."""
    from scatlas.kernels.moments.moments_cpu import clipped_squares

    spread = np.ones(moments.mean.shape)
    for at, (group, mean, var) in enumerate(
        zip(moments.groups, moments.mean, moments.var, strict=True)
    ):
        where = "" if batches is None else f" in batch {batches[group]!r}"
        spread[at] = _expected_spread(mean, var, ranked, span, flavor, where)
    n_cells = moments.n_cells[:, None]
    bounds = spread * np.sqrt(n_cells) + moments.mean
    above = _moments_above(x, bounds, moments.groups, codes)
    return clipped_squares(moments, above, bounds) / ((n_cells - 1) * spread**2)


def _moments_above(
    x: Any,
    bounds: NDArray[np.float64],
    groups: NDArray[np.int64],
    codes: NDArray[np.int64] | None,
) -> Moments:
    """Moments of the values above the bounds of their group and gene, in one pass."""
    from scatlas.kernels.moments import moments_cpu

    kernels = kernels_for("moments.moments", x)
    rows: tuple[NDArray[np.int64], ...] = ()
    if codes is not None:
        bounds_by_code = np.full((groups[-1] + 1, bounds.shape[1]), np.inf)
        bounds_by_code[groups] = bounds
        bounds = bounds_by_code
        # Cells without batch have the last code.
        rows = (np.where(codes > groups[-1], -1, codes),)

    def moments_above(block: Any, *codes: NDArray[np.int64]) -> Moments:
        return kernels.moments_above(block, bounds, *codes)

    return blocks.reduce(moments_above, moments_cpu.merge_in_place, x, *rows)


def _expected_spread(
    mean: NDArray[np.float64],
    var: NDArray[np.float64],
    ranked: NDArray[np.bool_],
    span: float,
    flavor: str,
    where: str,
) -> NDArray[np.float64]:
    """Standard deviation expected from a gene's mean; 1 for constant and unranked genes."""
    from skmisc.loess import loess

    varies = ranked & (var > 0)
    if (mean[varies] <= 0).any():
        raise InputError(f"genes have a mean below 0{where}: flavor={flavor!r} expects counts")
    n_genes = np.count_nonzero(varies)
    if int(n_genes * span + 1e-5) < _MIN_GENES_PER_FIT:  # as loess rounds
        remedy = "choose another flavor, or raise span" if n_genes else "give cells that differ"
        raise InputError(
            f"{n_genes} genes vary{where}, too few for flavor={flavor!r} with span={span}, whose "
            f"fits need at least {_MIN_GENES_PER_FIT} genes: {remedy}"
        )
    model = loess(np.log10(mean[varies]), np.log10(var[varies]), span=span, degree=2)
    try:
        model.fit()
    except ValueError as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InputError(
            f"loess cannot fit the variances of {n_genes} genes on their means{where} "
            f"({text.strip().rstrip('.')}): raise span={span}, or leave out genes that hardly any "
            "cell expresses with min_cells (config: qc.min_cells)"
        ) from error
    estimate = np.zeros(var.size)
    estimate[varies] = model.outputs.fitted_values
    return np.sqrt(10**estimate)
