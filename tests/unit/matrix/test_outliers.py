"""Cells unlike the others, beside R's calls and bounds and a plain reference."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import median_abs_deviation

from scatlas.errors import InputError
from scatlas.matrix.outliers import is_outlier

# Case of R's isOutlier: column of the cells, options; "batch" and "keep" name further columns.
CASES = {
    "total_log_lower": ("total", {"log": "log2", "side": "lower"}),
    "total_log_both": ("total", {"log": "log2"}),
    "total_plain": ("total", {}),
    "total_log_batch": ("total", {"log": "log2", "groups": "batch"}),
    "percent_higher": ("percent", {"side": "higher"}),
    "percent_higher_batch": ("percent", {"side": "higher", "groups": "batch"}),
    "mad_zero": ("mono", {}),
    "mad_zero_min_diff": ("mono", {"min_diff": 5}),
    "log_min_diff": ("total", {"log": "log2", "side": "lower", "nmads": 2, "min_diff": 1}),
    "median_zero_log": ("sparse", {"log": "log2", "side": "lower"}),
    "missing": ("miss", {"side": "higher", "groups": "batch"}),
    "subset_not_shared": ("total", {"log": "log2", "groups": "batch", "mask": "keep"}),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_and_bounds_are_those_of_scuttle(case: str) -> None:
    folder = Path(os.environ.get("SCATLAS_TEST_DATA", ""), "../refs/isoutlier").resolve()
    if "SCATLAS_TEST_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("there are no results of R: SCATLAS_TEST_DATA/../refs/isoutlier")
    cells, calls, limits = (
        pd.read_csv(folder / f"{name}.tsv.gz", sep="\t", index_col=0, float_precision="round_trip")
        for name in ("cells", "calls", "thresholds")
    )
    column, options = CASES[case]
    given = {k: cells[v] if v in ("batch", "keep") else v for k, v in options.items()}
    found, bounds = is_outlier(cells[column], **given)
    limits = limits[limits["case"] == case].set_index("batch")[["lower", "higher"]]
    np.testing.assert_allclose(bounds[["lower", "higher"]].loc[limits.index], limits, rtol=1e-12)
    said = calls[case].astype(str)
    np.testing.assert_array_equal(found, said == "True")
    # R's NA: no value, or no bound.
    none = bounds[["lower", "higher"]].isna().any(axis=1)
    group = cells["batch"] if "groups" in options else pd.Series("all", cells.index)
    np.testing.assert_array_equal(said == "nan", cells[column].isna() | group.map(none))


@pytest.mark.parametrize("seed", range(5))
def test_calls_are_those_of_sc_best_practices(seed: int) -> None:
    """Its ``is_outlier``, with SciPy's deviation, which is not scaled."""
    values = np.round(np.exp(7 + 0.5 * np.random.default_rng(seed).standard_t(3, 500)))
    logs = np.log1p(values)
    middle, reach = np.median(logs), 5 * median_abs_deviation(logs)
    found, bounds = is_outlier(values, nmads=5, log="log1p", to_sd=1)
    np.testing.assert_array_equal(found, (logs < middle - reach) | (logs > middle + reach))
    assert found.any()
    np.testing.assert_allclose(bounds["higher"], np.expm1(middle + reach), rtol=1e-12)


def test_one_cell_is_no_outlier_and_cells_without_a_group_have_no_bounds() -> None:
    groups = pd.Categorical(["a"] * 5 + ["one", None], categories=["one", "a", "empty"])
    found, bounds = is_outlier([1, 2, 2, 3, 90, 1e6, 1e6], groups)
    assert found.tolist() == [False] * 4 + [True, False, False]
    assert bounds.loc["one", ["lower", "higher", "mad", "n"]].tolist() == [1e6, 1e6, 0, 1]
    assert bounds.loc["empty"].isna().tolist() == [True] * 4 + [False]
    with pytest.raises(InputError, match="groups has 1 entries for 2 values: give one"):
        is_outlier([1, 2], ["a"])
