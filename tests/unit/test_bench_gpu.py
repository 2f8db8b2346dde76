"""What of the GPU benchmarks works without a GPU."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scatlas.datasets import simulate_plate, write_plate

GPU_BENCH = Path(__file__).resolve().parents[2] / "bench/gpu"


@pytest.fixture
def module(monkeypatch):
    """Function that imports a module of bench/gpu, and forgets it afterwards."""
    monkeypatch.syspath_prepend(str(GPU_BENCH))
    before, path = set(sys.modules), list(sys.path)
    yield importlib.import_module
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(GPU_BENCH.parent) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_our_side_runs_and_is_told(module, tmp_path):
    vs, harness = module("vs_rsc"), module("harness")
    plate = tmp_path / "plate.h5ad"
    write_plate(plate, simulate_plate(1, n_cells=300, n_genes=400))
    sizes = ["--top", "60", "--comps", "5"]
    out = tmp_path / "out"
    side = GPU_BENCH / "sides/scatlas_steps.py"
    settings = ["--backend", "cpu", "--threads", "2"]
    command = [sys.executable, side, out, "--plates", plate, *settings, *sizes]
    run = harness.run_process(command, tmp_path / "log", gpus=[])
    assert list(run.seconds) == [
        *("start", "load", "qc_filter", "normalize", "hvg", "consensus", "select_genes"),
        *("concat_on_disk", "pca"),
    ]
    assert 0 < run.total < run.wall
    assert run.host > 50e6
    told = vs.told(vs.Side("scatlas cpu", out, command, 1), [run])
    assert "pca " in told[1]
    assert "in use" not in told[0]
    _check_comparison(vs, out, tmp_path / "peer")


def _check_comparison(vs, ours: Path, peer: Path) -> None:
    """The same in another order of genes and signs is the same; anything else is not."""
    peer.mkdir()
    result = dict(np.load(ours / "result.npz"))
    order = np.random.default_rng(0).permutation(result["genes"].size)
    same = result | {"genes": result["genes"][order], "PCs": -result["PCs"][order]}
    np.savez(peer / "result.npz", **same)
    assert "the same 60 genes" in vs.compare(ours, peer)
    for other in (
        {"n_cells": 1},
        {"genes": np.char.add(same["genes"], "x")},
        {"variance": same["variance"] * 1.01},
    ):
        np.savez(peer / "result.npz", **(same | other))
        with pytest.raises(AssertionError):
            vs.compare(ours, peer)


def test_a_process_that_fails_is_told(module, tmp_path, capsys):
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(RuntimeError, match="ended with exit status 1"):
        module("harness").run_process(command, tmp_path / "log", gpus=[])
    assert "no such thing" in capsys.readouterr().err


def test_disk_and_page_cache(module, tmp_path):
    harness = module("harness")
    try:
        speeds = harness.disk_speed(tmp_path, n_bytes=2**26, threads=2)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    assert all(speed > 0 for speed in speeds)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    (tmp_path / "file").write_bytes(bytes(1000))
    harness.warm(tmp_path)
    harness.cold(tmp_path)
    assert harness.size_of(tmp_path) == harness.size_of(tmp_path / "file") == 1000


@pytest.mark.parametrize("name", ["vs_rsc", "scale_out"])
def test_options_are_explained(name):
    command = [sys.executable, GPU_BENCH / f"{name}.py", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "usage:" in told


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:zarr v3 autosharding")
def test_plates_hold_what_was_drawn(module, tmp_path, suffix):
    import anndata as ad

    make = module("make_plate")
    study = module("make_plates").Study(500, 0)
    rng = np.random.default_rng(0)
    dense = rng.poisson(0.5, (700, 500)).astype(np.float32)

    def blocks():
        for rows in np.split(dense, [300]):
            counts, genes = rows[rows > 0], np.nonzero(rows)[1].astype(np.int32)
            indptr = np.r_[0, np.cumsum((rows > 0).sum(axis=1))]
            yield counts, genes, indptr, rng.integers(0, 50, len(rows))

    path = tmp_path / f"plate1.{suffix}"
    n_values = make.write_plate(path, blocks(), study, plate=1, threads=2)
    read = ad.read_h5ad if suffix == "h5ad" else ad.read_zarr
    plate = read(path)
    assert n_values == plate.X.nnz
    assert plate.X.dtype == np.float32
    assert np.array_equal(plate.X.toarray(), dense)
    assert np.array_equal(plate.obs["tscp_count"], dense.sum(axis=1))
    assert np.array_equal(plate.obs["gene_count"], (dense > 0).sum(axis=1))
    mt = plate.var_names.str.startswith("MT-")
    assert np.allclose(plate.obs["pcnt_mito"], dense[:, mt].sum(axis=1) / dense.sum(axis=1))
