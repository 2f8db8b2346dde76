"""Elements of h5ad files that threads decode are those of anndata."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from anndata.io import read_elem, write_elem

from scatlas.io.files import hdf5_writing
from scatlas.io.files.hdf5_writing import read_element

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
        if sp.issparse(expected):
            assert found.shape == expected.shape
            pairs = [
                (getattr(found, k), getattr(expected, k)) for k in ("data", "indices", "indptr")
            ]
        else:
            pairs = [(found, expected)]
        for a, b in pairs:
            assert np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_array_equal(a, b)


def test_chunks_of_part_of_a_row(tmp_path: Path):
    x = RNG.random((500, 6))
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(100, 3), compression="gzip")
        file["x"].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        np.testing.assert_array_equal(read_element(file["x"]), x)
