"""docs/fidelity.md is what the parity tests recorded, of every function that scanpy has, too."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tests.compat.migration import shared_functions
from tests.parity import fidelity


def test_the_page_is_up_to_date() -> None:
    assert fidelity.PAGE.read_text() == fidelity.page(), (
        "run python -m tests.parity.fidelity --page"
    )


def test_each_function_of_scanpy_has_a_record() -> None:
    record = fidelity.records()[0]
    silent = {name for name in shared_functions() if not fidelity.entries(record, name)}
    assert silent <= fidelity.NOT_COMPARED
    assert all((fidelity.ROOT / "tests/parity" / file).exists() for file in record["files"])


def test_differences_are_relative_to_the_largest_value() -> None:
    a, b = np.array([1.0, np.nan, -4.5, np.inf]), np.array([1.5, np.nan, -4.0, np.inf])
    assert fidelity.difference(a, b) == 0.125
    tables = (pd.DataFrame({"name": list("xyzu"), "value": values}) for values in (a, b))
    assert fidelity.difference(*tables) == 0.125
    assert fidelity.difference([3.0], 0) == 3
