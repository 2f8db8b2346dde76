"""Elements of h5ad files are those of anndata; a disk that fails once leaves no whole file."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata.io import read_elem, write_elem

from scatlas.compute.threads import use_threads
from scatlas.io.files import hdf5_writing
from scatlas.io.files.hdf5_writing import read_element, write_h5ad
from tests.helpers.h5ad_trees import assert_as_anndata_writes

PARTS = ("X", "obs", "var", "layers", "obsm", "obsp", "uns")


def adata() -> ad.AnnData:
    rng = np.random.default_rng(0)
    new = ad.AnnData(sp.random(200, 50, 0.3, format="csr", dtype=np.float32, rng=rng))
    new.obs["plate"] = np.array(["p", "q"])[np.arange(200) % 2]
    new.obs["share"] = rng.random(200)
    new.obs["kept"] = pd.array([True, False, None, True] * 50, dtype="boolean")
    new.obsm["X_pca"] = rng.random((200, 10)).astype(np.float32)
    new.uns["pca"] = {"variance": rng.random(10), "params": {"zero_center": True}}
    return new


def assert_equal(found: Any, expected: Any) -> None:
    """Compare an AnnData or an element of it, of sparse matrices the stored parts."""
    if isinstance(expected, ad.AnnData):
        parts = [getattr(found, n) for n in PARTS], [getattr(expected, n) for n in PARTS]
    elif isinstance(expected, Mapping):
        parts = [found[name] for name in expected], expected.values()
    elif sp.issparse(expected):
        assert (found.format, found.shape) == (expected.format, expected.shape)
        names = ("data", "indices", "indptr")
        parts = (
            [getattr(found, name) for name in names],
            [getattr(expected, name) for name in names],
        )
    elif isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)
        return
    else:
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)
        return
    for one, other in zip(*parts, strict=True):
        assert_equal(one, other)


def test_it_is_what_anndata_writes(tmp_path: Path):
    first, second = adata(), adata()
    write_h5ad(tmp_path / "ours.h5ad", first)
    second.write_h5ad(tmp_path / "theirs.h5ad", compression="gzip")
    ours, theirs = (ad.read_h5ad(tmp_path / f"{name}.h5ad") for name in ("ours", "theirs"))
    assert_equal(ours, theirs)
    assert_as_anndata_writes(tmp_path / "ours.h5ad", tmp_path / "again.h5ad")
    first.raw = first  # written where there is one
    write_h5ad(tmp_path / "raw.h5ad", first)
    assert_as_anndata_writes(tmp_path / "raw.h5ad", tmp_path / "again.h5ad")


def large() -> ad.AnnData:
    """Arrays that threads compress, or store with a checksum."""
    rng = np.random.default_rng(1)
    new = ad.AnnData(sp.random(3001, 200, 0.2, format="csr", dtype=np.float32, rng=rng))
    new.X.data = np.round(4 * new.X.data)
    new.layers["csc"] = new.X.tocsc()
    new.obsm["X_pca"] = rng.normal(size=(3001, 50)).astype(np.float32)
    new.obsm["flags"] = rng.random((3001, 50)) < 0.1
    new.obsp["distances"] = sp.csr_array(sp.random(3001, 3001, 0.01, format="csr", rng=rng))
    new.uns["wide"] = np.arange(400_000).reshape(2, -1)
    return new


def test_text_of_many_values_stays_text(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(hdf5_writing, "_MOST_CATEGORIES", 50)
    text = {"few": ["b", "a"] * 50, "half": [f"{i // 2}" for i in range(100)]}
    text["many"] = [f"{max(i, 1)}" for i in range(100)]  # one value twice
    names = pd.Index([f"c{i}" for i in range(100)])
    adata = ad.AnnData(np.ones((100, 1), np.float32), obs=pd.DataFrame(text, index=names))
    write_h5ad(tmp_path / "x.h5ad", adata)
    found = ad.read_h5ad(tmp_path / "x.h5ad").obs
    assert list(found["few"].cat.categories) == ["a", "b"]
    assert list(found["half"].cat.categories) == [f"{i}" for i in range(50)]
    assert not isinstance(found["many"].dtype, pd.CategoricalDtype)
    assert [list(found[name]) for name in text] == list(text.values())


def test_large_arrays_are_what_anndata_writes_with_any_threads(tmp_path: Path):
    for threads in (1, 3):
        with use_threads(threads):
            write_h5ad(tmp_path / f"{threads}.h5ad", large())
    assert (tmp_path / "1.h5ad").read_bytes() == (tmp_path / "3.h5ad").read_bytes()
    ours, theirs = ad.read_h5ad(tmp_path / "1.h5ad"), large()
    assert_equal(ours, theirs)
    assert_as_anndata_writes(tmp_path / "1.h5ad", tmp_path / "theirs.h5ad")
    with h5py.File(tmp_path / "1.h5ad") as own:
        assert own["X/data"].compression == own["obsm/flags"].compression == "gzip"
        assert own["obsm/X_pca"].compression_opts == 0
        assert own["X/data"].maxshape == (None,)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("persistent", [False, True])
def test_no_failed_write_goes_unnoticed(tmp_path: Path, monkeypatch, code: int, persistent: bool):
    write_some = hdf5_writing._ErrorRecordingFile._write_some
    disk = SimpleNamespace(count=0, nth=0)

    def write(file, data: memoryview) -> int:
        disk.count += 1
        if disk.count == disk.nth or (persistent and disk.count > disk.nth > 0):
            raise OSError(code, os.strerror(code))
        return write_some(file, data[: max(1, len(data) // 2)])  # as little as a system call may

    monkeypatch.setattr(hdf5_writing._ErrorRecordingFile, "_write_some", write)
    write_h5ad(tmp_path / "whole.h5ad", adata())
    n_writes = disk.count
    assert n_writes > 20
    for nth in [*range(1, 60), *range(60, n_writes + 1, 37), n_writes]:
        disk.count, disk.nth = 0, nth
        with pytest.raises(OSError, match=os.strerror(code)) as raised:
            write_h5ad(tmp_path / "failed.h5ad", adata())
        assert raised.value.errno == code


# -- reading -------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
ELEMENTS = {
    "csr": sp.random(700, 300, 0.2, format="csr", dtype=np.float32, rng=RNG),
    "csc": sp.random(700, 300, 0.2, format="csc", rng=RNG),
    "matrix": RNG.random((900, 7)),
    "counts": RNG.integers(0, 99, 5000).astype(np.uint16),
    "bool": RNG.random(5000) < 0.5,
    "empty": np.empty((0, 3), np.float32),
    "text": np.array(["a", "bc"] * 50, dtype=object),
    "scalar": np.float64(3.5),
}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}, {"compression": "lzf"}], ids=str)
def test_elements(tmp_path: Path, monkeypatch, name: str, options: dict):
    monkeypatch.setattr(hdf5_writing, "_VALUES", 2000)  # several parts
    with h5py.File(tmp_path / "x.h5ad", "w") as file:
        write_elem(file, name, ELEMENTS[name], dataset_kwargs=options if name != "scalar" else {})
        found, expected = read_element(file[name]), read_elem(file[name])
        assert type(found) is type(expected)
        assert_equal(found, expected)


def test_chunks_of_part_of_a_row(tmp_path: Path):
    x = RNG.random((500, 6))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(100, 3), compression="gzip")
        file["x"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        np.testing.assert_array_equal(read_element(file["x"]), x)
