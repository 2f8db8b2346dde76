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
from scatlas.matrix.outliers import is_outlier
from scatlas.pp import calculate_qc_metrics
from scatlas.workflow.cell_filter import BOUNDS, drop_outliers, passes_by_rule

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


# Distance of the suggested bounds from the median of a plate, as `qc.mads`: 5 of sc-best-practices.
N_MADS = 5
# The bounds of fewer cells are uncertain by more than a tenth: they shape none, if others do.
MIN_CELLS = 100

# Unlike the others, by their medians, is a plate whose cells have a quarter of the genes, or
# numbers of genes that spread twice as far, or an upper bound on mitochondrial shares that is twice
# as high and 10 points higher. Plates that are sequenced more or less deeply are not unlike.
_FEW_GENES, _WIDE, _HIGH_MT, _MT_POINTS = 0.25, 2, 2, 10


def unlike_others(plates: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Plates whose cells look damaged beside those of most others, and how; none of fewer than
    three plates with 100 cells, and none where it would be half of them.
    """
    facts = {}
    for name, metrics in plates.items():
        if len(metrics) >= MIN_CELLS:
            _, genes = is_outlier(metrics["n_genes_by_counts"], log="log1p", to_sd=1.0)
            middle, spread = genes.loc["all", ["median", "mad"]]
            facts[name] = (np.expm1(middle), spread, min(100, _bounds_of(metrics)["max_pct_mt"]))
    usual = np.median([*facts.values()], axis=0) if len(facts) > 2 else (0, np.inf, np.inf)
    found: dict[str, list[str]] = {}
    for name, (genes, spread, mt) in facts.items():
        if genes < _FEW_GENES * usual[0]:
            found.setdefault(name, []).append(
                f"{genes:,.0f} genes per cell (usual: {usual[0]:,.0f})"
            )
        if spread > _WIDE * usual[1]:
            words = f"numbers of genes that spread {spread / usual[1]:.1f} times as far"
            found.setdefault(name, []).append(words)
        if mt > max(_HIGH_MT * usual[2], usual[2] + _MT_POINTS):
            words = f"mitochondrial shares up to {mt:.0f}% (usual: {usual[2]:.0f}%)"
            found.setdefault(name, []).append(words)
    return {name: ", ".join(words) for name, words in found.items() if 2 * len(found) < len(facts)}


def suggest_bounds(
    plates: Iterable[pd.DataFrame], *, with_mt: bool, n_genes: int, floors: bool = False
) -> dict[str, int]:
    """Bounds by their keys in the section ``qc``: the widest of all plates, none of which loses
    cells because it is sequenced less deeply. A plate's are those of `drop_outliers`, and a plate
    of few cells has none beside larger ones. ``floors``: no upper bounds on counts and genes.
    """
    tables = [metrics for metrics in plates if len(metrics)]
    large = [metrics for metrics in tables if len(metrics) >= MIN_CELLS]
    rows = pd.DataFrame([_bounds_of(metrics) for metrics in large or tables], columns=[*BOUNDS])
    bounds: dict[str, int] = {}
    for name in BOUNDS:
        is_lower = name.startswith("min")
        bound = rows[name].min() if is_lower else rows[name].max()
        most = {"max_genes": n_genes, "max_pct_mt": 100 * with_mt}.get(name, math.inf)
        if is_lower and bound >= 1:
            bounds[name] = _round(bound, math.floor)
        elif not is_lower and bound < most and not (floors and name != "max_pct_mt"):
            bounds[name] = int(min(most, _round(bound, math.ceil)))
    return bounds


def _bounds_of(metrics: pd.DataFrame) -> pd.Series:
    keep = np.ones(len(metrics), bool)
    return drop_outliers(metrics, keep, mads=N_MADS)[2].loc["all"]


def kept_by(metrics: pd.DataFrame, bounds: Mapping[str, Any]) -> tuple[np.ndarray, pd.DataFrame]:
    """Which cells the step `qc_filter` keeps with these bounds, bool [cells], and the narrower of
    them and of those by ``mads``, in a table of one row.
    """
    rules = passes_by_rule(metrics, None, bounds).values()
    keep = np.logical_and.reduce([np.ones(len(metrics), bool), *rules])
    if not (mads := bounds.get("mads")):
        return keep, pd.DataFrame()
    keep, _, table = drop_outliers(metrics, keep, mads=mads, limits=bounds)
    return keep, table


def _round(value: float, direction: Callable[[float], int]) -> int:
    """Two significant digits."""
    if value < 1:
        return max(0, direction(value))
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return int(direction(value / unit) * unit)
