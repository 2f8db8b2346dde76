"""Lazy arrays protect their file from writes of this process, and notice those of others."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anndata as ad
import h5py
import hdf5plugin
import numpy as np
import pytest
import scipy.sparse as sp
from dask.base import tokenize

import scatlas as sa
from scatlas.errors import InputError
from scatlas.io.files import anndata_file
from scatlas.io.matrices.lazy import values_alone
from tests.helpers.files import n_open


def some_adata(seed: int = 0, shape: tuple[int, int] = (300, 40)) -> ad.AnnData:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(1.0, shape).astype(np.float32)
    layers = {"dense": counts * 2, "csc": sp.csc_matrix(counts)}
    return ad.AnnData(sp.csr_matrix(counts), layers=layers, obsm={"side": rng.random((300, 100))})


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_not_searched() -> Iterator[None]:
    """A search for garbage takes half a second with the objects of all modules and other tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An h5ad file, after closing the files of other tests; another process loads its filter."""
    gc.collect()
    some_adata().write_h5ad(tmp_path / "a.h5ad", compression=hdf5plugin.FILTERS["zstd"])
    return tmp_path / "a.h5ad"


def in_another_process(code: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | env, check=False
    )


def handles_of(path: Path) -> list[anndata_file.OpenFile]:
    """Handles of a file: other tests of this process may still hold files of theirs."""
    inode = anndata_file._inode_and_stamp(str(path))[0]
    return [file for file in anndata_file._OPEN_FILES if file._inode == inode]


def writes(path: Path) -> list:
    other = some_adata(1)
    return [
        lambda: other.write_h5ad(path),
        lambda: h5py.File(path, "w"),
        lambda: h5py.File(path, "a"),
        lambda: h5py.File(path, "r+"),
    ]


# Lazy objects of a file, which keep it open.
READERS = {
    "all": lambda path: sa.read_lazy(path, block_budget="200kB"),
    "X": lambda path: sa.read_lazy(path).X,
    "dense layer": lambda path: sa.read_lazy(path).layers["dense"],
    "side array": lambda path: sa.read_lazy(path, block_budget="200kB").obsm["side"],
    "matrix": lambda path: sa.io.read_matrix(path, compact=True)[0],
    "rows of X": lambda path: sa.read_lazy(path).X[10:20],
    "view": lambda path: sa.read_lazy(path)[10:20],
    "logarithms": lambda path: sa.pp.log1p(sa.read_lazy(path), copy=True).X,
    "delayed": lambda path: sa.read_lazy(path).X.to_delayed(),
    "values": lambda path: values_alone(sa.read_lazy(path).X),
}


@pytest.mark.parametrize("name", READERS)
def test_this_process_cannot_write_to_what_it_reads_lazily(name: str, path: Path) -> None:
    before = path.read_bytes()
    lazy = READERS[name](path)
    gc.collect()
    for write in writes(path):
        with pytest.raises(OSError, match="already open"):
            write()
        assert path.read_bytes() == before
    del lazy
    gc.collect()
    assert not handles_of(path)
    writes(path)[0]()
    assert path.read_bytes() != before


def test_writing_an_adata_over_its_own_file(path: Path) -> None:
    lazy = sa.read_lazy(path)
    with pytest.raises(OSError, match="already open"):
        lazy.write_h5ad(path)
    expected = some_adata()
    assert (lazy.X.compute() != expected.X).nnz == 0
    np.testing.assert_array_equal(lazy.layers["dense"].compute(), expected.layers["dense"])
    # The alternative in the documentation.
    sa.pp.log1p(lazy)
    with sa.io.atomic_path(path) as new:
        lazy.write_h5ad(new)
    again = sa.read_lazy(path)
    np.testing.assert_allclose(again.X.compute().toarray(), np.log1p(expected.X.toarray()))
    with pytest.raises(InputError, match="has changed since it was opened"):
        lazy.X.compute()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="only Linux lists open files")
def test_files_are_closed_with_the_last_array(path: Path) -> None:
    many = [sa.read_lazy(path) for _ in range(20)]
    assert n_open(path) == 1, "HDF5 opens a file once"
    assert many[0].X.compute().sum() > 0
    one = many[7].X
    del many
    gc.collect()
    assert n_open(path) == 1
    del one
    gc.collect()
    assert n_open(path) == 0
    memory = sa.read_lazy(path).to_memory()
    gc.collect()
    assert n_open(path) == 0
    memory.write_h5ad(path)


def test_nothing_stays_open_for_a_file_that_cannot_be_read(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["obs"].attrs["_index"]
    for _ in range(3):
        with pytest.raises(InputError):
            sa.read_lazy(path)
    gc.collect()
    assert not handles_of(path)
    some_adata().write_h5ad(path)


def test_pickled_arrays_are_read_by_other_processes(path: Path, tmp_path: Path) -> None:
    lazy, again = sa.read_lazy(path), sa.read_lazy(path)
    arrays = [lazy.X, lazy.layers["dense"]]
    for x, y in zip(arrays, (again.X, again.layers["dense"]), strict=True):
        assert (x.name, tokenize(x)) == (y.name, tokenize(y)), "whatever is open"
    del again, x, y
    (tmp_path / "arrays").write_bytes(pickle.dumps(arrays))
    code = (
        "import pickle, sys; arrays = pickle.load(open(sys.argv[1], 'rb'));"
        "print(arrays[0].name, *[float(x.compute().sum()) for x in arrays])"
    )
    done = in_another_process(code, tmp_path / "arrays")
    total = float(some_adata().X.sum())
    assert done.stdout.split() == [lazy.X.name, str(total), str(2 * total)], done.stderr
    # A pickled copy does not keep the file open.
    del lazy, arrays
    gc.collect()
    arrays = pickle.loads((tmp_path / "arrays").read_bytes())
    assert not handles_of(path)
    assert [float(x.compute().sum()) for x in arrays] == [total, 2 * total]


WRITE = """
import sys, anndata, numpy as np
anndata.AnnData(np.full((300, 40), 7, "f4")).write_h5ad(sys.argv[1])
"""


def test_another_process_cannot_change_it_in_place(path: Path) -> None:
    before = path.read_bytes()
    lazy = sa.read_lazy(path)
    code = "import sys, h5py; h5py.File(sys.argv[1], 'r+')['X'].attrs['new'] = 1"
    locked = in_another_process(code, path, HDF5_USE_FILE_LOCKING="TRUE")
    assert "unable to lock file" in locked.stderr
    assert path.read_bytes() == before
    assert lazy.X.compute().sum() > 0


@pytest.mark.parametrize("locking", ["TRUE", "FALSE"])
def test_what_another_process_empties_is_noticed(path: Path, locking: str) -> None:
    """HDF5 truncates before it takes the lock: no protection, but no wrong values either."""
    lazy = sa.read_lazy(path)
    done = in_another_process(WRITE, path, HDF5_USE_FILE_LOCKING=locking)
    assert (done.returncode == 0) == (locking == "FALSE")
    for x in (lazy.X, lazy.layers["dense"]):
        with pytest.raises(InputError, match="has changed since it was opened: open it again"):
            x.compute()
    if locking == "FALSE":
        # The old file is still open, but the reader does not confuse the two.
        again = sa.read_lazy(path)
        np.testing.assert_array_equal(again.X.compute(), np.full((300, 40), 7))
    else:
        assert path.stat().st_size == 0
