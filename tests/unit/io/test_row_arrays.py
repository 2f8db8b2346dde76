"""Rows of matrices and lists on disk: the same as with zarr-python, in every layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from scatlas.errors import InputError
from scatlas.io.files.local_zarr import RowArray, open_rows

LAYOUTS = {
    "shards": {"chunks": (16, 7), "shards": (64, 7)},
    "chunks": {"chunks": (16, 7)},
    "dots": {"chunks": (16, 7), "chunk_key_encoding": {"name": "default", "separator": "."}},
    "one chunk": {"chunks": (1000, 7)},
    "cut columns": {"chunks": (16, 4)},
    "zarr 2": {"chunks": (16, 7)},
}


def values(dtype: str = "float32") -> np.ndarray:
    return (1000 * np.random.default_rng(0).normal(size=(150, 7))).astype(dtype)


def written(path: Path, layout: str, x: np.ndarray) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=2 if layout == "zarr 2" else 3)
    obsm = group.create_group("obsm")
    obsm.create_array("X_pca", shape=x.shape, dtype=x.dtype, **LAYOUTS[layout])[:] = x
    return path


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_what_zarr_python_reads(tmp_path: Path, layout: str, dtype: str):
    x = values(dtype)
    found = open_rows(written(tmp_path / "a.zarr", layout, x), "obsm/X_pca")
    assert isinstance(found, RowArray) == (layout not in ("cut columns", "zarr 2"))
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    for rows in (slice(0, 150), slice(10, 75), slice(149, 400), slice(64, 80), slice(30, 30)):
        np.testing.assert_array_equal(found[rows], x[rows])


@pytest.mark.parametrize("chunks", [{"chunks": (16,)}, {"chunks": (16,), "shards": (64,)}])
def test_a_list_is_what_zarr_python_reads(tmp_path: Path, chunks: dict[str, tuple[int]]):
    x = values("uint16")[:, 0]
    zarr.open_group(tmp_path / "a.zarr", mode="w").create_array("x", data=x, **chunks)
    found = open_rows(tmp_path / "a.zarr", "x")
    assert isinstance(found, RowArray)
    assert (found.shape, found.dtype, found.chunks) == (x.shape, x.dtype, (16,))
    for rows in (slice(0, 150), slice(10, 75), slice(149, 400), slice(30, 30)):
        np.testing.assert_array_equal(found[rows], x[rows])


def test_a_chunk_that_was_never_written_has_the_fill_value(tmp_path: Path):
    path = written(tmp_path / "a.zarr", "chunks", values())
    (path / "obsm/X_pca/c/1/0").unlink()
    assert not open_rows(path, "obsm/X_pca")[16:32].any()


def test_a_damaged_chunk_is_named(tmp_path: Path):
    path = written(tmp_path / "a.zarr", "shards", values())
    file = path / "obsm/X_pca/c/1/0"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"a\.zarr: obsm/X_pca, rows 64 to 149"):
        open_rows(path, "obsm/X_pca")[64:150]
