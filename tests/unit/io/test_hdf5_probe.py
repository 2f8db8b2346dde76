"""The child process that checks the structure of an HDF5 file."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pytest
from numba.core.compiler_lock import global_compiler_lock

from scatlas.errors import InputError
from scatlas.io.files import hdf5_probe
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.hdf5_probe import probe_structure


@pytest.fixture
def path(tmp_path) -> str:
    path = tmp_path / "a.h5ad"
    with h5py.File(path, "w") as file:
        file.create_dataset("X/data", data=np.arange(100.0), chunks=(10,), compression="gzip")
        file["X"].attrs["shape"] = [10, 10]
    return str(path)


def test_an_intact_file_passes(path):
    assert probe_structure(path)


def test_damaged_text_is_found_before_libhdf5_reads_it(path):
    """The child does not hang, and the parent names the text."""
    with h5py.File(path, "r+") as file:
        file["X"].attrs["encoding-type"] = "csr_matrix"
    raw = Path(path).read_bytes()
    at = raw.index(b"GCOL") + 16  # the first object
    Path(path).write_bytes(raw[:at] + bytes(16) + raw[at + 16 :])
    start = os.times().children_user
    assert not probe_structure(path)
    assert os.times().children_user - start < 2
    with pytest.raises(InputError, match=r"the text at byte [\d,]+ is damaged"):
        Store.find(path).open_on(ExitStack())


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda _: os.kill(os.getpid(), signal.SIGSEGV), r"crashes (SIGSEGV) on the structure"),
        (lambda _: [None for _ in iter(int, 1)], "loops forever in the structure"),
    ],
)
def test_a_file_that_kills_the_child_is_damaged(path, monkeypatch, check, message):
    monkeypatch.setattr(hdf5_probe, "_check", check)
    monkeypatch.setattr(hdf5_probe, "_SECONDS", 1)
    with pytest.raises(InputError, match=re.escape(message)):
        probe_structure(path)


def test_errors_in_the_child_are_left_to_the_parent(path, monkeypatch, capfd):
    def fail(path):
        raise OSError

    monkeypatch.setattr(hdf5_probe, "_check", fail)
    assert not probe_structure(path)
    assert capfd.readouterr() == ("", "")


def test_a_child_that_waits_for_a_lock_is_given_up(path, monkeypatch, caplog):
    monkeypatch.setattr(hdf5_probe, "_check", lambda _: threading.Event().wait())
    monkeypatch.setattr(hdf5_probe, "_MAX_SLEEP", 1)
    assert not probe_structure(path)
    assert "was given up" in caplog.text


def test_another_thread_may_be_compiling(path):
    """Numba's lock is free when the process forks, because the child may need it."""
    stop = threading.Event()

    def compile_on() -> None:
        while not stop.is_set():
            with global_compiler_lock:
                time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compile_on)
        try:
            for _ in range(5):
                assert probe_structure(path)
        finally:
            stop.set()
