"""Records for docs/fidelity.md, if SCATLAS_FIDELITY is set: what each comparison found.

A comparison is a call of NumPy's or pandas' ``testing`` that passed. It belongs to the public
function that the test called last.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
import pytest

import scatlas
from tests.parity import fidelity

CHECKS = [(np, "assert_allclose"), (np, "assert_array_equal"), (pd, "assert_frame_equal")]
ON_GRAPHS = ("pp.neighbors", "tl.umap", "tl.leiden")  # their X is not read


@pytest.fixture(scope="module", autouse=True)
def fidelity_of_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Write the comparisons of a file if all of its tests passed."""
    if "SCATLAS_FIDELITY" not in os.environ:
        yield
        return
    record: dict[str, dict[str, Any]] = {}
    failed = request.session.testsfailed
    with pytest.MonkeyPatch.context() as patch:
        for part, module in ((p, getattr(scatlas, p)) for p in ("pp", "tl", "get")):
            for name in module.__all__:
                function = getattr(module, name)
                seen = _watched(f"{part}.{name}", function, record)
                for there in (module, request.module):
                    if getattr(there, name, None) is function:
                        patch.setattr(there, name, seen)
        for library, name in CHECKS:
            check = _noted(getattr(library.testing, name), record)
            patch.setattr(library.testing, name, check)
        yield
    if request.session.testsfailed == failed:
        fidelity.write(request.path.name, record)


def _watched(name: str, function: Callable, record: dict[str, dict[str, Any]]) -> Callable:
    """`function`, whose calls put its entry at the end of the record."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        entry = record.pop(name, {"matrices": set(), "comparisons": 0, "largest": 0.0})
        record[name] = entry
        x = getattr(args[0], "X", None)
        if x is not None and name not in ON_GRAPHS:
            inner = getattr(x, "_meta", x)
            storage = getattr(inner, "format", "NumPy").upper().replace("NUMPY", "NumPy")
            entry["matrices"] |= {storage, x.dtype.name, *(["Dask"] if inner is not x else [])}
        return function(*args, **options)

    return call


def _noted(check: Callable, record: dict[str, dict[str, Any]]) -> Callable:
    """`check`, which also notes how far the values were from each other."""

    @wraps(check)
    def call(ours: Any, theirs: Any, *args: Any, **options: Any) -> None:
        check(ours, theirs, *args, **options)
        if record and np.asarray(theirs).dtype != bool:
            entry = record[next(reversed(record))]
            entry["comparisons"] += 1
            entry["largest"] = max(entry["largest"], fidelity.difference(ours, theirs))

    return call
