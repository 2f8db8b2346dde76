"""What one plate's file holds: cells, genes, counts; and the bounds that its metrics suggest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anndata as ad
import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io.matrices.counts_source import find_source, gene_names, what_elements_hold
from scatlas.io.matrices.source import COUNTS, EXPECTED, Wanted
from scatlas.io.tables.genes import find_mitochondrial, mitochondrial_genes
from scatlas.pp import calculate_qc_metrics
from scatlas.workflow.cell_filter import qc_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import scipy.sparse as sp

    from scatlas.io.matrices.source import CountsSource
    from scatlas.io.tables.genes import Mitochondrial
    from scatlas.io.tables.table import Table

# Cells of a plate whose metrics are kept.
_MAX_CELLS = 5_000
# Unfiltered matrices of droplets: most barcodes have fewer genes than EMPTY_GENES. Bounds are then
# suggested from those with DROPLET_GENES, or a fifth of the genes of the Nth best if that is less.
_EMPTY_GENES, _DROPLET_GENES, _NTH = 10, 100, 20


@dataclass(frozen=True)
class PlateFacts:
    """Facts of one plate."""

    name: str
    path: str
    n_cells: int
    n_genes: int
    counts: str  # where they are, as `source.counts` names it
    fractional: str  # `round` for expected counts, else `refuse`
    n_mt: int  # mitochondrial genes
    mt_prefix: str  # of their names
    gene_names: str | None  # column of var with these names; None for the index
    min_genes: int  # of a cell, of an unfiltered matrix; else 0
    # Columns total_counts, n_genes_by_counts, pct_counts_mt (NaN for empty cells) of some cells.
    metrics: pd.DataFrame
    notices: list[str]  # sentences for the user


def read_facts(
    name: str, path: str, source: CountsSource | None = None
) -> tuple[PlateFacts, pd.Index]:
    """Read the facts of a plate, or of its part ``source``, and its genes, in bounded memory."""
    counts, fractional = ("X", "refuse") if source else _find_counts(path)
    notices: list[str] = []
    if fractional == "round":
        notices.append(
            f"{counts} holds expected counts, which are fractional: they will be rounded"
        )
    with source or find_source(path, Wanted(counts)) as plate:
        genes, (mt, mask) = plate.genes(), _mitochondrial(plate.table("var"))
        blocks = plate.some_blocks(notices.append)
        metrics = pd.concat([_metrics(block, mask) for block in blocks])
        notices += plate.notices
        n_cells = plate.shape[0]
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
    gene_names(path)  # refuses a plate without cells or genes
    if isinstance(error := held.get("X"), InputError):
        raise error
    seen = ", ".join(
        f"{name} {'cannot be read' if isinstance(words, InputError) else words}"
        for name, words in held.items()
    )
    seen = seen or "there is no X, no raw and no layer"
    raise InputError(f"{path}: no element holds raw counts: {seen}; give a file with raw counts")


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


# Distance of the bounds from the median, as in scater's isOutlier (McCarthy et al. 2017).
N_MADS = 3.0
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
_TO_SD = 1.4826
# A smaller bound on mitochondrial counts, in per cent, would drop good cells of clean plates.
_MIN_PCT_MT = 5

# Bounds of each metric: lower, upper.
BOUNDS: dict[str, tuple[str | None, str]] = {
    "n_genes_by_counts": ("min_genes", "max_genes"),
    "total_counts": ("min_counts", "max_counts"),
    "pct_counts_mt": (None, "max_pct_mt"),
}
_PERCENT = "pct_counts_mt"


def suggest_bounds(plates: Iterable[pd.DataFrame], *, with_mt: bool) -> dict[str, int]:
    """Bounds by their keys in the section ``qc``: the widest of all plates, none of which loses
    cells because it is sequenced less deeply. A plate's are at `N_MADS` median absolute deviations
    from its median of ``log(1 + x)``, or of the percentages, whose logarithms spread too much.
    """
    ranges: dict[str, list[tuple[float, float]]] = {column: [] for column in BOUNDS}
    for metrics in plates:
        for column, found in ranges.items():
            values = metrics[column].to_numpy(np.float64)
            values = values[np.isfinite(values)]
            if values.size:
                found.append(_range(values, is_percent=column == _PERCENT))
    if not with_mt:
        del ranges[_PERCENT]
    bounds = {}
    for column, found in ranges.items():
        low, high = BOUNDS[column]
        lower = _round(min((lower for lower, _ in found), default=0), math.floor)
        upper = max((upper for _, upper in found), default=math.inf)
        if low and lower > 0:
            bounds[low] = lower
        if math.isfinite(upper):
            bounds[high] = _round(upper, math.ceil)
    return bounds


def _range(values: np.ndarray, *, is_percent: bool) -> tuple[float, float]:
    """Bounds of one metric of a plate; 0 and infinity stand for none."""
    scaled = values if is_percent else np.log1p(values)
    middle = float(np.median(scaled))
    reach = N_MADS * _TO_SD * float(np.median(np.abs(scaled - middle)))
    if is_percent:
        upper = max(middle + reach, _MIN_PCT_MT)
        return 0.0, upper if upper < 100 else math.inf
    if reach == 0:  # most cells have the same value
        return 0.0, math.inf
    return math.expm1(middle - reach), math.expm1(middle + reach)


def kept_by(metrics: pd.DataFrame, bounds: Mapping[str, Any]) -> np.ndarray:
    """Which cells the step `qc_filter` keeps with these bounds, bool [cells]."""
    if metrics.empty:
        return np.zeros(0, bool)
    return qc_filter(metrics, source="the cells seen", **bounds)[0]


def _round(value: float, direction: Callable[[float], int]) -> int:
    """Two significant digits."""
    if value < 1:
        return max(0, direction(value))
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return int(direction(value / unit) * unit)
