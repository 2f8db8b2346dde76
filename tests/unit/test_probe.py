"""The child process that looks at an HDF5 file first."""

from __future__ import annotations

import os
import re
import signal

import h5py
import numpy as np
import pytest

from scatlas.errors import InputError
from scatlas.io import probe as module
from scatlas.io.probe import probe


@pytest.fixture
def path(tmp_path) -> str:
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w") as file:
        file.create_dataset("X/data", data=np.arange(100.0), chunks=(10,), compression="gzip")
        file["X"].attrs["shape"] = [10, 10]
    return str(path)


def test_a_sound_file_passes(path):
    probe(path)


@pytest.mark.parametrize(
    ("walk", "message"),
    [
        (lambda _: os.kill(os.getpid(), signal.SIGSEGV), r"crashes (SIGSEGV) on the structure"),
        (lambda _: [None for _ in iter(int, 1)], "goes in circles in the structure"),
    ],
)
def test_what_kills_the_child_is_a_damaged_file(path, monkeypatch, walk, message):
    monkeypatch.setattr(module, "_walk", walk)
    monkeypatch.setattr(module, "_SECONDS", 1)
    with pytest.raises(InputError, match=re.escape(message)):
        probe(path)


def test_errors_in_the_child_are_left_to_the_parent(path, monkeypatch, capfd):
    def fail(path):
        raise OSError

    monkeypatch.setattr(module, "_walk", fail)
    probe(path)
    assert capfd.readouterr() == ("", "")
