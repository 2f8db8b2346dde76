"""Pytest plugin that runs scanpy's tests with scatlas's functions.

`run.py` loads it into the process of scanpy's tests (never into scatlas's suite). Before pytest
collects the tests, the plugin replaces each public function of ``scanpy.pp``, ``scanpy.tl`` and
``scanpy.get`` by scatlas's function with the same name; scanpy's modules still use their functions.
``SCATLAS_COMPAT`` chooses the functions: ``scatlas``, or ``scanpy`` for a run without scatlas.
Functions record their calls, so tests without a call do not count.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import standins

PAIRS = [
    ("scanpy.preprocessing", "scatlas.pp"),
    ("scanpy.tools", "scatlas.tl"),
    ("scanpy.get", "scatlas.get"),
]
OUTCOMES: dict[str, dict[str, Any]] = {}


class _Calls:
    """Names of the substituted functions that the running test or its fixtures have called."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.heard = True

    def noted(self, name: str, function: Callable) -> Callable:
        """The function with a record of each call."""

        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if self.heard and name not in self.names:
                self.names.append(name)
            return function(*args, **kwargs)

        return noting

    def unheard(self, function: Callable) -> Callable:
        """A function that prepares data for several tests; its calls count for none of them."""

        @functools.wraps(function)
        def preparing(*args: Any, **kwargs: Any) -> Any:
            self.heard = False
            try:
                return function(*args, **kwargs)
            finally:
                self.heard = True

        return preparing


CALLS = _Calls()


def substituted() -> dict[str, tuple[Any, str, Callable]]:
    """scanpy's module, its function and scatlas's function, by name (``pp.scale``)."""
    found = {}
    for theirs, ours in PAIRS:
        scanpy_module, our_module = importlib.import_module(theirs), importlib.import_module(ours)
        for name in our_module.__all__:
            member = getattr(our_module, name)
            if inspect.isfunction(member) and hasattr(scanpy_module, name):
                found[f"{ours.removeprefix('scatlas.')}.{name}"] = (scanpy_module, name, member)
    # Flavors that scanpy has in another module.
    genes = found["pp.highly_variable_genes"][2]
    if "theta" in inspect.signature(genes).parameters:
        elsewhere = importlib.import_module("scanpy.experimental.pp")
        found["experimental.pp.highly_variable_genes"] = (elsewhere, genes.__name__, genes)
    return found


def _whole_cells(make: Callable) -> Callable:
    """Make a helper that halves both axes of Dask arrays halve the cells alone.

    scatlas refuses chunks along the genes, with a sentence that requests this change.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs).rechunk({1: -1})

    made.__name__ = make.__name__ if hasattr(make, "__name__") else "as_sparse_dask_array"
    return made


def pytest_configure(config: pytest.Config) -> None:
    """Replace the functions and the data before any test is imported."""
    import scanpy as sc
    from anndata.tests import helpers

    if not hasattr(helpers, "as_sparse_dask_array"):  # its name until anndata 0.12, and in scanpy
        helpers.as_sparse_dask_array = helpers.as_sparse_dask_matrix
    for name in ("as_dense_dask_array", "as_sparse_dask_array"):
        setattr(helpers, name, _whole_cells(getattr(helpers, name)))
    # scanpy marks tests for a plugin that repeats them; scatlas runs each once.
    config.addinivalue_line("markers", "flaky(reruns, reruns_delay): may fail now and then")
    sc.datasets.pbmc3k = standins.pbmc3k
    sc.datasets.pbmc3k_processed = standins.pbmc3k_processed
    ours = os.environ["SCATLAS_COMPAT"] == "scatlas"
    for label, (module, name, member) in substituted().items():
        function = member if ours else getattr(module, name)
        setattr(module, name, CALLS.noted(label, function))
    for name, of_several in (
        ("testing.scanpy._helpers.data", "_pbmc3k_normalized"),
        ("testing.scanpy._pytest.fixtures.data", "_prepare_pbmc_testdata"),
    ):
        module = importlib.import_module(name)
        setattr(module, of_several, CALLS.unheard(getattr(module, of_several)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of ``SCATLAS_COMPAT_ONLY``, a list of names, if it is given."""
    if only := os.environ.get("SCATLAS_COMPAT_ONLY"):
        wanted = {f"tests/{name}" for name in json.loads(Path(only).read_text())}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


@pytest.fixture(autouse=True)
def _same_numbers_on_each_run(request: pytest.FixtureRequest) -> None:
    """Seed NumPy's global generator by the name of the test, not by earlier tests."""
    np.random.seed(zlib.crc32(request.node.nodeid.encode()))  # noqa: NPY002 - it is theirs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    CALLS.names = []
    item.user_properties.append(("calls", CALLS.names))
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    told = OUTCOMES.setdefault(report.nodeid, {"outcome": "passed", "calls": [], "why": "", "s": 0})
    told["s"] += report.duration
    told["calls"] = sorted(dict(report.user_properties)["calls"])
    if hasattr(report, "wasxfail"):
        told["outcome"] = "xfailed" if report.skipped else "xpassed"
    elif report.outcome != "passed":
        told["outcome"] = report.outcome
        crash = getattr(report.longrepr, "reprcrash", None)
        told["why"] = crash.message if crash else str(report.longrepr)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(
        session.config, "workerinput"
    ):  # the process that starts the workers has all calls
        Path(os.environ["SCATLAS_COMPAT_RESULTS"]).write_text(json.dumps(OUTCOMES))
