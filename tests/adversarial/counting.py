"""Functions of counts: totals, filters, normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

import scatlas as sa
from scatlas.elements import named_layers
from scatlas.matrix.select_normalize import select_and_log_normalize
from scatlas.matrix.size_factors import cell_totals, size_factors
from tests.adversarial.judge import Function, refuse
from tests.adversarial.matrices import Values, values


def held_by_another(adata: AnnData) -> AnnData:
    """Another AnnData with the same matrix object, for calls that change theirs."""
    layers = named_layers(adata)
    return AnnData(adata.X, obs=adata.obs.copy(), var=adata.var.copy(), layers=layers)


def exact_sums(dense: np.ndarray, axis: int) -> np.ndarray:
    """Sums of whole numbers as Python integers, of others in long double."""
    if dense.dtype.kind in "iub":
        sums = np.asarray(dense.astype(object).sum(axis=axis), dtype=object)
        refuse(any(abs(int(total)) >= 2**63 for total in sums), "a total that int64 does not hold")
        return sums.astype(np.int64)
    return dense.astype(np.longdouble).sum(axis=axis).astype(np.float64)


def totals_of_counts(dense: np.ndarray) -> np.ndarray:
    """Totals of the cells, which must be those of counts."""
    totals = exact_sums(dense, 1)
    refuse(not (np.isfinite(totals).all() and (totals >= 0).all()), "totals that no counts have")
    return totals


# -- metrics -------------------------------------------------------------------------------------


def _qc(adata: AnnData) -> dict[str, Any]:
    options = {"qc_vars": ["mt"], "percent_top": _tops(adata.n_vars), "log1p": False}
    obs, var = sa.pp.calculate_qc_metrics(adata, **options)
    adata = held_by_another(adata)
    sa.pp.calculate_qc_metrics(adata, inplace=True, **options)
    pd.testing.assert_frame_equal(adata.obs[obs.columns], obs)
    pd.testing.assert_frame_equal(adata.var[var.columns], var)
    return {"obs": obs, "var": var}


def _qc_of_raw(adata: AnnData) -> dict[str, Any]:
    """The same of ``raw``, whose genes have another order than those of the AnnData around it."""
    around = AnnData(np.zeros(adata.shape), obs=adata.obs.copy(), var=adata.var[::-1].copy())
    around.raw = AnnData(adata.X, obs=adata.obs[[]], var=adata.var[[]])
    options = {"qc_vars": ["mt"], "percent_top": _tops(adata.n_vars), "log1p": False}
    obs, var = sa.pp.calculate_qc_metrics(around, use_raw=True, **options)
    sa.pp.calculate_qc_metrics(around, use_raw=True, inplace=True, **options)
    pd.testing.assert_frame_equal(around.var[var.columns], var[::-1])
    return {"obs": obs, "var": var}


def _tops(n_genes: int) -> tuple[int, ...]:
    return tuple({1, n_genes}) if n_genes else ()


def _qc_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense
    totals, of_genes = exact_sums(x, 1), exact_sums(x, 0)
    mt = exact_sums(x[:, bare.var["mt"].to_numpy(bool)], 1)
    obs = {
        "n_genes_by_counts": (x != 0).sum(axis=1),
        "total_counts": totals,
    }
    ordered = -np.sort(-x.astype(np.float64), axis=1)
    for n in _tops(x.shape[1]):
        obs[f"pct_counts_in_top_{n}_genes"] = ordered[:, :n].sum(axis=1) / totals * 100
    obs |= {"total_counts_mt": mt, "pct_counts_mt": mt / totals * 100}
    n_cells = (x != 0).sum(axis=0)
    var = {
        "n_cells_by_counts": n_cells,
        "mean_counts": of_genes / np.int64(x.shape[0]),
        "pct_dropout_by_counts": (1 - n_cells / np.int64(x.shape[0])) * 100,
        "total_counts": of_genes,
    }
    return {"obs": obs, "var": var}


# -- filters -------------------------------------------------------------------------------------


def _filters(axis: str) -> Any:
    name, other = ("cells", "genes") if axis == "obs" else ("genes", "cells")
    function = getattr(sa.pp, f"filter_{name}")

    def call(adata: AnnData) -> dict[str, Any]:
        results: dict[str, Any] = {}
        for bound in (f"min_{other}", "max_counts"):
            keep, number = function(adata, **{bound: 3}, inplace=False)
            kept = function(adata, **{bound: 3}, copy=True)
            mine = held_by_another(adata)
            function(mine, **{bound: 3})
            assert list(getattr(mine, f"{axis}_names")) == list(getattr(kept, f"{axis}_names"))
            results[f"keep {bound}"], results[f"number {bound}"] = keep, number
            results[f"X {bound}"] = mine.X
        return results

    return call


def _filtered(axis: str) -> Any:
    other = "genes" if axis == "obs" else "cells"

    def expected(values: Values, bare: AnnData) -> dict[str, Any]:
        x, along = values.dense, 1 if axis == "obs" else 0
        numbers = {f"min_{other}": (x > 0).sum(axis=along), "max_counts": exact_sums(x, along)}
        results: dict[str, Any] = {}
        for bound, number in numbers.items():
            keep = number >= 3 if bound.startswith("min") else number <= 3
            results[f"keep {bound}"], results[f"number {bound}"] = keep, number
            results[f"X {bound}"] = x[keep] if axis == "obs" else x[:, keep]
        return results

    return expected


# -- normalisation -------------------------------------------------------------------------------


def _normalized(adata: AnnData) -> dict[str, Any]:
    made = sa.pp.normalize_total(adata, inplace=False)
    mine = held_by_another(adata)
    sa.pp.normalize_total(mine, key_added="factor")
    np.testing.assert_array_equal(mine.obs["factor"].to_numpy(), np.asarray(made["norm_factor"]))
    copy = sa.pp.normalize_total(adata, copy=True)
    return {"X": mine.X, "copy": copy.X, "factors": mine.obs["factor"].to_numpy()}


def _normalized_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense
    totals = totals_of_counts(x)
    refuse(not (totals > 0).any(), "no cell has counts")
    factors = totals / np.median(totals[totals > 0])
    scaled = x / np.where(factors == 0, 1, factors)[:, None]
    return {"X": scaled, "copy": scaled, "factors": factors}


def _normalized_to_target(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.pp.normalize_total(mine, target_sum=100.0)
    return {"X": mine.X}


def _to_target_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    totals = totals_of_counts(values.dense)
    return {"X": values.dense / np.where(totals == 0, 1, totals / 100.0)[:, None]}


def _without_dominant(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    options = {"exclude_highly_expressed": True, "max_fraction": 0.4, "target_sum": 10.0}
    sa.pp.normalize_total(mine, **options)
    return {"X": mine.X}


def _without_dominant_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = values.dense
    totals = totals_of_counts(x)
    dominant = (x > (totals * 0.4)[:, None]).any(axis=0)
    totals = totals_of_counts(x[:, ~dominant])
    return {"X": x / np.where(totals == 0, 1, totals / 10.0)[:, None]}


def _logged(adata: AnnData) -> dict[str, Any]:
    mine = held_by_another(adata)
    sa.pp.log1p(mine)
    return {
        "X": mine.X,
        "matrix": sa.pp.log1p(adata.X),
        "base 2": sa.pp.log1p(adata.X, base=2),
        "copy": sa.pp.log1p(adata, copy=True).X,
    }


def _logged_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    x = np.log1p(values.dense.astype(np.float64))
    return {"X": x, "matrix": x, "base 2": x / np.log(2), "copy": x}


def _cell_totals(adata: AnnData) -> dict[str, Any]:
    return {"totals": cell_totals(adata.X)}


def _size_factors(adata: AnnData) -> dict[str, Any]:
    factors, target = size_factors(cell_totals(adata.X))
    return {"factors": factors, "target": target}


def _size_factors_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    factors = _normalized_expected(values, bare)["factors"]
    totals = exact_sums(values.dense, 1)
    return {"factors": factors, "target": np.median(totals[totals > 0])}


def _cut(adata: AnnData) -> dict[str, Any]:
    totals = np.arange(adata.n_obs) % 4.0
    totals[totals == 3] = np.nan
    genes = np.arange(adata.n_vars)[::-2]
    return {"X": select_and_log_normalize(adata.X, genes, size_factors=totals)}


def _cut_expected(values: Values, bare: AnnData) -> dict[str, Any]:
    factors = np.arange(values.shape[0]) % 4.0
    x = values.dense[factors < 3][:, ::-2]
    factors = factors[factors < 3]
    return {"X": np.log1p(x / np.where(factors == 0, 1, factors)[:, None])}


# For at most 12 numbers: one rounding of float64 each, and that of the quotient.
SUMS = {"rtol": 4e-15, "why": "a few roundings of float64"}
# Values stored as float32 are rounded once.
STORED = {"rtol": 3e-7, "why": "one rounding of float32"}
ZERO_COUNTS = ("Some cells have zero counts",)
NO_NEGATIVE = values(kinds=("counts", "huge", "negative", "nonfinite"))

FUNCTIONS = {
    "pp.calculate_qc_metrics": Function(_qc, _qc_expected, **SUMS),
    "pp.calculate_qc_metrics of raw": Function(_qc_of_raw, _qc_expected, **SUMS),
    "pp.filter_cells": Function(_filters("obs"), _filtered("obs"), **SUMS),
    "pp.filter_genes": Function(_filters("var"), _filtered("var"), **SUMS),
    "pp.normalize_total": Function(
        _normalized, _normalized_expected, lazy=("X", "copy"), warns=ZERO_COUNTS, **STORED
    ),
    "pp.normalize_total to a target": Function(
        _normalized_to_target, _to_target_expected, lazy=("X",), warns=ZERO_COUNTS, **STORED
    ),
    "pp.normalize_total without dominant genes": Function(
        _without_dominant, _without_dominant_expected, lazy=("X",), warns=ZERO_COUNTS, **STORED
    ),
    "pp.log1p": Function(
        _logged, _logged_expected, lazy=("X", "matrix", "base 2", "copy"), **STORED
    ),
    "pp.cell_totals": Function(
        _cell_totals,
        lambda values, _: {"totals": exact_sums(values.dense, 1)},
        **SUMS,
    ),
    "pp.size_factors": Function(_size_factors, _size_factors_expected, **SUMS),
    "pp.select_and_log_normalize": Function(_cut, _cut_expected, lazy=("X",), **STORED),
}
