"""Which cells of a plate stay: a column query and bounds on the QC metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scatlas.errors import InputError
from scatlas.io import METRICS, open_tables, read_cells
from scatlas.workflow.config.values import query_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from scatlas.io.products.load_statistics import KeptCells
    from scatlas.io.tables.table import Table


def read_columns(store: Path, plate: str, names: list[str], *, key: str) -> pd.DataFrame:
    """Columns of obs of a plate, without the cells' names; ``key`` of the config names them."""
    with open_tables(store) as (obs, _):
        for column in names:
            if column not in obs.columns:
                raise InputError(
                    f"plate {plate} has no obs column {column!r}, which {key} names; it has "
                    f"{', '.join(obs.columns)}"
                )
        return obs.read(names, index=False)


# Bounds on a cell's metrics, which both ends include, in the order in which they take cells. JSON
# does not keep it.
BOUNDS = {
    "min_genes": ("n_genes_by_counts", np.greater_equal),
    "max_genes": ("n_genes_by_counts", np.less_equal),
    "min_counts": ("total_counts", np.greater_equal),
    "max_counts": ("total_counts", np.less_equal),
    "max_pct_mt": ("pct_counts_mt", np.less_equal),
}

# Rules on what is compared with the other cells of a group: metric, options of `is_outlier`. Of the
# mitochondrial share sc-best-practices.org drops 3 deviations, or more than 8 per cent: as points
# above the median they spare tissues whose usual share is higher.
DEVIATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "mads_genes": ("n_genes_by_counts", {"log": "log1p"}),
    "mads_counts": ("total_counts", {"log": "log1p"}),
    "mads_pct_mt": ("pct_counts_mt", {"nmads": 3.0, "min_diff": 8.0, "side": "higher"}),
}
# Of normal values, 5 deviations take 0.08% of a large group, 0.5% of 30 cells, and 6% of 5.
_MIN_GROUP = 30

# What pandas raises for text that is no query, or that these columns cannot answer.
_NOT_A_QUERY = (
    *(ArithmeticError, AttributeError, KeyError, NotImplementedError),
    *(SyntaxError, TypeError, ValueError),
)


def evaluate_filter(
    obs: pd.DataFrame, expression: str, *, source: Path | str, allow_none: bool = False
) -> np.ndarray:
    """Cells [cells] of which a query, as :meth:`pandas.DataFrame.query` takes it, is true; a gap
    does not pass. None is an error unless ``allow_none``; ``source`` is named in errors.
    """
    try:
        mask = obs.eval(expression, engine="python")
    except pd.errors.UndefinedVariableError as error:
        missing = str(error).split("'")[1]
        raise InputError(
            f"{source}: obs has no column '{missing}', which qc.filter ({expression}) asks for; "
            f"set qc.filter to null or use one of: {', '.join(map(str, obs.columns))}"
        ) from error
    except _NOT_A_QUERY as error:
        raise InputError(
            f"{source}: qc.filter ({expression}) cannot be evaluated over obs ({error}); write it "
            "as a pandas query such as pass_filter == 'full'"
        ) from error
    if isinstance(getattr(mask, "dtype", None), pd.BooleanDtype):
        mask = mask.fillna(value=False).to_numpy(bool)
    mask = np.asarray(mask)
    if mask.shape != (len(obs),) or mask.dtype != bool:
        raise InputError(
            f"{source}: qc.filter ({expression}) gives no true or false for each cell; write a "
            "comparison such as pass_filter == 'full'"
        )
    if not (mask.any() or allow_none):
        raise InputError(
            f"{source}: qc.filter ({expression}) keeps none of the {len(obs):,} cells; "
            "compare it with the values of that obs column"
        )
    return mask


def mitochondrial_bound(expression: str | None, max_pct_mt: float | None) -> str | None:
    """The setting that drops cells by their mitochondrial counts, in words; None if none does.
    ``pct_counts_mt`` of ``qc.filter`` is the new metric, not a column of the source.
    """
    if max_pct_mt is not None:
        return f"qc.max_pct_mt is {max_pct_mt:g}"
    mt_metrics = {metric for metric in METRICS if metric.endswith("_mt")}
    if expression and mt_metrics.intersection(query_columns(expression)):
        return f"qc.filter is {expression}"
    return None


def qc_filter(
    obs: pd.DataFrame,
    *,
    source: Path | str,
    filter: str | None = None,  # noqa: A002 - the config's key
    **bounds: float | None,
) -> tuple[np.ndarray, dict[str, int]]:
    """Which cells [cells] stay by :func:`evaluate_filter` and :data:`BOUNDS` on the metrics of
    :func:`scatlas.pp.calculate_qc_metrics` in ``obs``, and how many each rule took of those that
    the rules before it had left; none left is an error, which names ``source``.
    """
    passes_filter = evaluate_filter(obs, filter, source=source) if filter is not None else None
    keep = np.ones(len(obs), bool)
    removed = {}
    for rule, passed in passes_by_rule(obs, passes_filter, bounds).items():
        removed[rule] = int((keep & ~passed).sum())
        keep &= passed
    if not keep.any():
        taken = ", ".join(f"{rule} took {n:,}" for rule, n in removed.items())
        msg = f"{source}: no cell is left of {len(obs):,} ({taken}); loosen the bounds under qc"
        raise InputError(msg)
    return keep, removed


def drop_outliers(
    obs: Mapping[str, Any],
    keep: np.ndarray,
    *,
    mads: float,
    groups: pd.Categorical | None = None,
    limits: Mapping[str, float | None] | None = None,
) -> tuple[np.ndarray, dict[str, int], pd.DataFrame]:
    """Which of the cells ``keep`` [cells] stay if those unlike the others of their group leave, how
    many each rule of :data:`DEVIATIONS` took of those that the rules before it had left, and a row
    per group (``"all"`` without ``groups``) with its ``cells`` of ``keep``, those ``kept``, and the
    keys of :data:`BOUNDS`: the narrower of its bounds and of ``limits``, NaN for none.

    Counts and genes are compared on both sides, as ``log(1 + x)`` and with median absolute
    deviations as they are, like ``is_outlier`` of sc-best-practices.org (scuttle's are 1.4826 times
    as long). The mitochondrial share has an upper bound alone, 3 deviations and at least 8 points
    above the median. Only the cells ``keep`` shape bounds. A group of fewer than 30 cells has none,
    nor has a metric without spread; an empty cell, which has no share, leaves.
    """
    from scatlas.matrix.outliers import is_outlier

    if groups is None:
        groups = pd.Categorical.from_codes(np.zeros(len(keep), np.int8), ["all"])
    groups = groups.rename_categories(str)
    passed, removed = keep, {}
    table: dict[str, pd.Series] = {}
    for rule, (metric, own) in DEVIATIONS.items():
        values = np.asarray(obs[metric], np.float64)
        options: dict[str, Any] = {"nmads": mads, "to_sd": 1.0, "mask": keep}
        outside, found = is_outlier(values, groups, **options | own)
        none = found.index[(found["n"] < _MIN_GROUP) | ((found["mad"] == 0) & ("log" in own))]
        found.loc[none, ["lower", "higher"]] = np.nan
        if none.size:
            outside &= ~groups.isin(none)
        if "log" not in own:
            outside |= np.isnan(values)
        removed[rule] = int((passed & outside).sum())
        passed = passed & ~outside
        name = rule.removeprefix("mads_")
        table |= {f"min_{name}": found["lower"], f"max_{name}": found["higher"]}
    bounds = pd.DataFrame(index=found.index)
    for column, cells in {"cells": keep, "kept": passed}.items():
        counts = pd.Series(groups[cells].astype(object)).value_counts()
        bounds[column] = counts.reindex(bounds.index, fill_value=0)
    for name, (_, compare) in BOUNDS.items():
        narrower = np.fmin if compare is np.less_equal else np.fmax
        bounds[name] = narrower(table[name], np.array((limits or {}).get(name), np.float64))
    return passed, removed, bounds


def passes_by_rule(
    obs: Mapping[str, Any], passes_filter: np.ndarray | None, bounds: Mapping[str, float | None]
) -> dict[str, np.ndarray]:
    """Mask [cells] of each rule of :func:`qc_filter`, in the order in which they take cells."""
    rules = {} if passes_filter is None else {"filter": passes_filter}
    for name, (metric, compare) in BOUNDS.items():
        if (bound := bounds.get(name)) is not None:
            # An empty cell has no percentage (NaN) and does not pass, as with a mask in scanpy.
            rules[name] = compare(np.asarray(obs[metric]), bound)
    return rules


def kept_by_bounds(bounds: Mapping[str, Any], source: str) -> Callable[[Table], KeptCells]:
    """``kept_cells`` of :func:`scatlas.io.load_plate`: cells that :func:`qc_filter` will keep,
    block by block. A filter that reads QC metrics has to decide each cell alone.
    """
    limits = dict(bounds)
    expression = limits.pop("filter")
    asked = query_columns(expression) if expression else []

    def prepare(obs: Table) -> KeptCells:
        frame = obs.for_query(name for name in asked if name not in METRICS)
        passes_on_plate = None
        if expression and not set(asked).intersection(METRICS):
            passes_on_plate = evaluate_filter(frame, expression, source=source)

        def keep(first: int, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
            n_cells = metrics["total_counts"].size
            rows = slice(first, first + n_cells)
            passes = None if passes_on_plate is None else passes_on_plate[rows]
            if expression and passes_on_plate is None:
                cells = frame.iloc[rows].assign(**metrics)
                passes = evaluate_filter(cells, expression, source=source, allow_none=True)
            rules = passes_by_rule(metrics, passes, limits).values()
            return np.logical_and.reduce([np.ones(n_cells, bool), *rules])

        return keep

    return prepare


def frequent_genes(n_cells: np.ndarray, least: int, *, source: Path | str) -> np.ndarray:
    """Genes [genes] that at least ``least`` cells express, of the cells that express each, like
    ``min_cells`` of :func:`scanpy.pp.filter_genes`; none is an error, which names ``source``.
    """
    frequent = np.asarray(n_cells) >= least
    if not frequent.any():
        raise InputError(
            f"{source}: no gene is expressed in {least:,} cells (at most in "
            f"{int(np.max(n_cells, initial=0)):,}), which qc.drop_rare_genes asks for: lower it"
        )
    return frequent


def doublet_columns(table: Path | None, rows: np.ndarray) -> dict[str, np.ndarray]:
    if table is None:
        return {}
    found = read_cells(table, ["doublet_score", "predicted_doublet"])
    return {name: column.to_numpy()[rows] for name, column in found.items()}
