"""Fixtures for tests of an operation: array types, and a counter of block loads.

A test with ``array_type`` runs once per type of X::

    def test_totals(array_type, count_dtype, counts, block_loads):
        x = array_type(counts.astype(count_dtype))
        ...

A test of the number of passes wraps its matrix first::

    x = block_loads.dask(counts, rows=7)         # Dask X of CSR blocks, every load is counted
    sa.pp.normalize_total(adata)
    assert block_loads.passes() == normalize_total.passes

Only the parity tests import scanpy.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from scipy import sparse

# A failing example must fail in each run; kernels compile on their first call.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("SCATLAS_HYPOTHESIS", "fixed"))
# Seed of the examples that weekly tests draw.
WEEK = int(time.time() // (7 * 24 * 3600))


def njit(function: Any = None, /, *, njit: Any = numba.njit, **options: Any) -> Any:
    """Numba's; scanpy's functions compile for one thread, which takes a seventh of the time."""
    theirs = getattr(function, "__module__", "").startswith("scanpy.")
    return njit(function, **options | ({"parallel": False} if theirs else {}))


numba.njit = njit

# umap-learn and pynndescent compile for up to a minute in each process, and keep none of it: one
# worker runs all files that call them.
COMPILE_LONGEST = (
    "tests/parity/test_embedding_vs_scanpy.py",
    "tests/parity/test_presets_vs_scanpy.py",
    "tests/parity/test_umap_vs_umap_learn.py",
    "tests/parity/test_ingest_vs_scanpy.py",
    "tests/unit/io/test_unusual_data.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow files first, the slowest before all: at the end all workers would wait for it."""
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int]:
        marks = {mark.name for mark in item.iter_markers()}
        if "slurm" in marks:
            return 0, 0
        slow = marks & {"slow", "workflow", "browser", "real"}
        return (1, 0) if slow else (2, -tests[item.path])

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave the modules out of each search for garbage, which took a sixth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker per file, and one for all files of `COMPILE_LONGEST`."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return COMPILE_LONGEST[0] if file in COMPILE_LONGEST else file

    return Scheduling(config, log)


ARRAY_TYPES = ("numpy", "csr", "csc", "dask-csr", "dask-dense")
DEFAULT_ROWS = 7  # rows per Dask block in tests: odd, and divides no matrix of the tests


def to_dense(x: Any) -> np.ndarray:
    """Any X of the fixture as a 2-D NumPy array with the same dtype."""
    if hasattr(x, "compute"):
        x = x.compute(scheduler="synchronous")
    return x.toarray() if sparse.issparse(x) else np.asarray(x)


def row_chunks(n_rows: int, rows: int) -> tuple[int, ...]:
    """Chunk lengths along the cells: `rows` each, fewer in the last chunk."""
    if n_rows == 0:
        return (0,)
    full, rest = divmod(n_rows, rows)
    return (rows,) * full + ((rest,) if rest else ())


class BlockLoads:
    """Dask arrays that count the loads of each block, with any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[int, int]] = Counter()
        self._blocks: dict[int, list[Any]] = {}
        self._before: dict[int, list[np.ndarray]] = {}

    def _load(self, array: int, block: int) -> Any:
        with self._lock:
            self._counts[array, block] += 1
        # The object of the list itself, as for a persisted X: assert_unchanged() finds a step that
        # writes into it.
        return self._blocks[array][block]

    def dask(self, x: Any, rows: int | None = None) -> Any:
        """`x` (NumPy or SciPy sparse) as a Dask array with row chunks and counted loads."""
        import dask
        import dask.array as da

        x = x.tocsr() if sparse.issparse(x) else np.asarray(x)
        chunks = row_chunks(x.shape[0], DEFAULT_ROWS if rows is None else rows)
        bounds = np.concatenate([[0], np.cumsum(chunks)]).astype(int)
        array = len(self._blocks)
        spans = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
        self._blocks[array] = [x[lo:hi].copy() for lo, hi in spans]
        self._before[array] = [to_dense(block).copy() for block in self._blocks[array]]
        meta = type(x)((0, 0), dtype=x.dtype) if sparse.issparse(x) else np.empty((0, 0), x.dtype)
        load = dask.delayed(self._load, pure=False)
        parts = [
            da.from_delayed(load(array, i), shape=(hi - lo, x.shape[1]), dtype=x.dtype, meta=meta)
            for i, (lo, hi) in enumerate(spans)
        ]
        return da.concatenate(parts, axis=0)

    def per_block(self) -> list[int]:
        """Loads of every block of all arrays, in order."""
        with self._lock:
            return [
                self._counts[array, i]
                for array, blocks in self._blocks.items()
                for i in range(len(blocks))
            ]

    def passes(self) -> int:
        """Number of loads, asserting that it is the same for all blocks."""
        loads = self.per_block()
        assert len(set(loads)) == 1, f"blocks were loaded unequally often: {loads}"
        return loads[0]

    def reset(self) -> None:
        """Set the number of loads to zero."""
        with self._lock:
            self._counts.clear()

    def assert_unchanged(self) -> None:
        """Check that no step has written into a block."""
        for array, blocks in self._blocks.items():
            for i, block in enumerate(blocks):
                message = f"block {i} of array {array} was written to"
                np.testing.assert_array_equal(to_dense(block), self._before[array][i], message)


@dataclass(frozen=True)
class ArrayType:
    """Converts a NumPy or SciPy matrix to one type of X with the same dtype."""

    name: str
    loads: BlockLoads

    @property
    def is_dask(self) -> bool:
        return self.name.startswith("dask")

    @property
    def is_sparse(self) -> bool:
        return self.name in {"csr", "csc", "dask-csr"}

    def __call__(self, x: Any, *, rows: int | None = None) -> Any:
        """A new X without shared memory with `x`; `rows` is the height of Dask blocks."""
        x = sparse.csr_matrix(x) if not sparse.issparse(x) else x.tocsr()
        match self.name:
            case "numpy":
                return x.toarray()
            case "csr":
                return x.copy()
            case "csc":
                return x.tocsc()
            case "dask-csr":
                return self.loads.dask(x, rows)
            case "dask-dense":
                return self.loads.dask(x.toarray(), rows)
        raise ValueError(self.name)


@pytest.fixture
def block_loads() -> BlockLoads:
    """A new counter of block loads, which ``array_type`` of the same test uses."""
    return BlockLoads()


@pytest.fixture(params=ARRAY_TYPES)
def array_type(request: pytest.FixtureRequest, block_loads: BlockLoads) -> ArrayType:
    """Every type of X that an operation takes."""
    return ArrayType(request.param, block_loads)


@pytest.fixture(params=["dask-csr", "dask-dense"])
def dask_type(request: pytest.FixtureRequest, block_loads: BlockLoads) -> ArrayType:
    """Dask types of X, for tests of laziness and passes."""
    return ArrayType(request.param, block_loads)


@pytest.fixture(params=["int32", "uint16", "float32", "float64"])
def count_dtype(request: pytest.FixtureRequest) -> np.dtype:
    """Dtypes of users' counts."""
    return np.dtype(request.param)


def simulate(
    n_cells: int = 60, n_genes: int = 50, *, seed: int = 0, density: float = 0.3
) -> sparse.csr_matrix:
    """Sparse over-dispersed int32 counts; cells 3 and 20 (if it exists) and gene 5 are empty."""
    rng = np.random.default_rng(seed)
    mean = rng.gamma(0.6, 4.0, size=n_genes)[None, :] * rng.gamma(4, 0.25, size=n_cells)[:, None]
    counts = rng.poisson(mean) * (rng.random((n_cells, n_genes)) < density)
    counts[[i for i in (3, 20) if i < n_cells]] = 0
    counts[:, min(5, n_genes - 1)] = 0
    return sparse.csr_matrix(counts.astype(np.int32))


def annotate(x: Any, *, mt: int = 4, n_batches: int = 3) -> Any:
    """An AnnData around `x`: named cells and genes, ``var['mt']``, ``obs['batch']``."""
    import anndata as ad

    n_cells, n_genes = x.shape
    obs = pd.DataFrame(
        {"batch": pd.Categorical([f"b{i % n_batches}" for i in range(n_cells)])},
        index=[f"cell{i}" for i in range(n_cells)],
    )
    names = [f"{'MT-' if j < mt else ''}gene{j}" for j in range(n_genes)]
    var = pd.DataFrame({"mt": np.arange(n_genes) < mt}, index=names)
    return ad.AnnData(X=x, obs=obs, var=var)


@pytest.fixture
def counts() -> sparse.csr_matrix:
    """60 cells x 50 genes of int32 counts with empty cells and an empty gene."""
    return simulate()


@pytest.fixture
def make_adata() -> Any:
    """``make_adata(x, mt=4, n_batches=3)``: AnnData with names, ``var['mt']``, ``obs['batch']``."""
    return annotate


@pytest.fixture
def make_counts() -> Any:
    """``make_counts(n_cells, n_genes, seed=, density=) -> csr_matrix[int32]``."""
    return simulate


@pytest.fixture
def dense() -> Any:
    """``dense(x) -> np.ndarray`` of any X of the fixture."""
    return to_dense


@pytest.fixture(scope="session")
def plates_dir() -> Path:
    """Folder of the real plates (``mixology/*.h5ad``), or a skip with instructions."""
    root = os.environ.get("SCATLAS_TEST_DATA")
    if not root:
        pytest.skip("set SCATLAS_TEST_DATA to the folder that holds mixology/*.h5ad")
    folder = Path(root) / "mixology"
    if not folder.is_dir():
        pytest.fail(f"SCATLAS_TEST_DATA is set, but {folder} is not there")
    return folder
