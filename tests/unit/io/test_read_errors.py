"""Only bytes are damaged: other failures of a read are told as what they are."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import anndata as ad
import fsspec
import h5py
import numpy as np
import pyarrow.csv
import pytest
import scipy.sparse as sp
from numcodecs.errors import UnknownCodecError

from scatlas.errors import DiskError, InputError, MissingPackageError, ScatlasError, TooLargeError
from scatlas.io import load_plate, read_lazy
from scatlas.io.chunks import chunk_reader
from scatlas.io.files import hdf5_probe
from scatlas.io.files.listing import filesystem
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.counts_source import what_elements_hold
from scatlas.workflow.new_plates import FinishedAtlas, _stored_text

MATRIX = "%%MatrixMarket matrix coordinate integer general\n2 1 1\n1 1 3\n"
TEXTS = {"matrix.mtx": MATRIX, "genes.tsv": "i1\tG1\ni2\tG2\n", "barcodes.tsv": "AAA\n"}


@pytest.fixture
def plate(tmp_path: Path) -> Path:
    """An h5ad file, beside a text matrix."""
    x = sp.csr_matrix(np.arange(12, dtype=np.float32).reshape(4, 3) % 5)
    ad.AnnData(x).write_h5ad(tmp_path / "plate.h5ad", compression="gzip")
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "plate.h5ad"


def load(path: Path) -> None:
    load_plate(path, path.parent / "out.zarr", plate="p")


@pytest.mark.parametrize("element", ["uns/new", "obsm/new", "obs/new"])
def test_a_type_that_anndata_does_not_know_yet_is_no_damage(plate: Path, element: str) -> None:
    adata = ad.read_h5ad(plate)
    adata.uns["new"], adata.obsm["new"], adata.obs["new"] = np.ones(3), np.ones((4, 2)), np.ones(4)
    adata.write_h5ad(plate)
    with h5py.File(plate, "r+") as file:
        file[element].attrs["encoding-type"] = "of-tomorrow"
    with pytest.raises(InputError, match=r"does not know its type .*of-tomorrow") as told:
        read_lazy(plate)
    assert "damaged" not in str(told.value)
    assert str(told.value).endswith(": update the package anndata, or write the file without it")


# The function that fails, and a call that reaches it.
PLACES = {
    "load": (chunk_reader, "read_values", load),
    "read_lazy": (chunk_reader, "read_values", lambda path: read_lazy(path).X.compute()),
    "file": (h5py, "File", what_elements_hold),
    "first values": (h5py.Dataset, "__getitem__", what_elements_hold),
    "text of load": (pyarrow.csv, "read_csv", lambda path: load(path.parent)),
    "text of init": (pyarrow.csv, "read_csv", lambda path: what_elements_hold(path.parent)),
    "record of an atlas": (Path, "read_bytes", _stored_text),
    "atlas": (Path, "read_bytes", FinishedAtlas.open),
    "address": (fsspec, "url_to_fs", lambda path: filesystem(f"s3:/{path}")),
}
ERRORS = {
    "import": (ImportError("No module named 'deflate'"), MissingPackageError, "'deflate'"),
    "memory": (MemoryError(), TooLargeError, "give the job more memory"),
    "permission": (PermissionError(13, "Permission denied"), InputError, "no permission to read"),
    "disk": (OSError(errno.EIO, "Input/output error"), DiskError, "the system reports"),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", PLACES)
def test_other_errors_are_no_damage(
    plate: Path, monkeypatch: pytest.MonkeyPatch, place: str, kind: str
):
    owner, name, call = PLACES[place]
    kept, wanted, words = ERRORS[kind]
    # A new one: its traceback holds what was open, and ends with this test.
    error = type(kept)(*kept.args)

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises((ScatlasError, type(error))) as raised:
        call(plate)
    monkeypatch.undo()
    # A place may also leave an error as it is.
    assert raised.value is error or type(raised.value) is wanted
    assert raised.value is error or words in str(raised.value)
    assert "damaged" not in str(raised.value)
    assert "download" not in str(raised.value)


@pytest.mark.parametrize("damage", [OSError("inflate() failed"), OSError(errno.EINVAL, "Invalid")])
def test_what_a_decoder_refuses_is_damage(damage: OSError):
    with pytest.raises(InputError, match="the data are damaged"), reading("x.h5ad", "X"):
        raise damage


def test_a_codec_of_another_package_is_no_damage():
    error = UnknownCodecError("pcodec")
    with pytest.raises(MissingPackageError, match="pcodec"), reading("x.zarr", "X"):
        raise error


def test_a_missing_decoder_is_named(plate: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deflate", None)
    monkeypatch.setattr(chunk_reader, "run_decoder", lambda _: None)
    with pytest.raises(MissingPackageError, match=r"needs a package .*deflate"):
        load(plate)


def test_a_check_that_linux_kills_lacks_memory(plate: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hdf5_probe, "_wait", lambda child, _: os.waitpid(child, 0) and 9)
    with pytest.raises(TooLargeError, match="more memory than there is"):
        hdf5_probe.probe_structure(str(plate))
