"""Pytest plugin: scanpy's tests, with our functions in the places of scanpy's.

Loaded by `run.py` into the process that runs scanpy's tests (never into our own suite). Before they
are collected, each public function of ``scanpy.pp``, ``scanpy.tl`` and ``scanpy.get`` that we have
under the same name is replaced; scanpy's own modules go on using their own. ``SCATLAS_COMPAT``
says whose functions stand there: ``scatlas``, or ``scanpy`` to see what passes without us.
A function notes that it was called, so that tests which call none are left out of the count.
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
    """Names of the substituted functions that the running test, or a fixture of it, has called."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.heard = True

    def noted(self, name: str, function: Callable) -> Callable:
        """The function, noting each call."""

        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            if self.heard and name not in self.names:
                self.names.append(name)
            return function(*args, **kwargs)

        return noting

    def unheard(self, function: Callable) -> Callable:
        """A function that prepares data for several tests: no call is that of the first of them."""

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
    """By name, as ``pp.scale``: scanpy's module, the name in it, and our function."""
    found = {}
    for theirs, ours in PAIRS:
        scanpy_module, our_module = importlib.import_module(theirs), importlib.import_module(ours)
        for name in our_module.__all__:
            member = getattr(our_module, name)
            if inspect.isfunction(member) and hasattr(scanpy_module, name):
                found[f"{ours.removeprefix('scatlas.')}.{name}"] = (scanpy_module, name, member)
    # Flavors that scanpy has in another module, and we beside the others.
    genes = found["pp.highly_variable_genes"][2]
    if "theta" in inspect.signature(genes).parameters:
        elsewhere = importlib.import_module("scanpy.experimental.pp")
        found["experimental.pp.highly_variable_genes"] = (elsewhere, genes.__name__, genes)
    return found


def _whole_cells(make: Callable) -> Callable:
    """A maker of Dask arrays, which halves both axes, made to cut along the cells alone.

    We refuse an array that is cut along the genes, with a sentence that asks for just this.
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        return make(*args, **kwargs).rechunk({1: -1})

    made.__name__ = make.__name__ if hasattr(make, "__name__") else "as_sparse_dask_array"
    return made


def pytest_configure(config: pytest.Config) -> None:
    """Put the functions and the data in their places, before any test is imported."""
    import scanpy as sc
    from anndata.tests import helpers

    if not hasattr(helpers, "as_sparse_dask_array"):  # its name until anndata 0.12, and in scanpy
        helpers.as_sparse_dask_array = helpers.as_sparse_dask_matrix
    for name in ("as_dense_dask_array", "as_sparse_dask_array"):
        setattr(helpers, name, _whole_cells(getattr(helpers, name)))
    # scanpy marks tests for a plugin that repeats them; here each runs once.
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
    """Tests draw from NumPy's global generator: by their name, not by what ran before."""
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
    if not hasattr(session.config, "workerinput"):  # the process that starts the workers has all
        Path(os.environ["SCATLAS_COMPAT_RESULTS"]).write_text(json.dumps(OUTCOMES))
