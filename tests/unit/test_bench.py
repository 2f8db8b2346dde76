"""What the benchmarks share, and what of those on GPUs works without one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from scatlas.datasets import simulate_plate, write_plate

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def module():
    """Function that imports a module of bench or bench/gpu, and forgets it afterwards."""
    before, path = set(sys.modules), list(sys.path)
    sys.path[:0] = [str(BENCH), str(BENCH / "gpu")]
    yield importlib.import_module
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(BENCH) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def test_our_side_runs_and_is_told(module, tmp_path):
    vs = module("vs_rsc")
    plate = tmp_path / "plate.h5ad"
    write_plate(plate, simulate_plate(1, n_cells=300, n_genes=400))
    sizes = ["--top", "60", "--comps", "5", "--min-plates", "1"]
    out = tmp_path / "out"
    side = BENCH / "sides/scatlas_steps.py"
    command = [sys.executable, side, out, "--plates", plate, "--threads", "2", *sizes]
    run = module("runner").run_process(command, tmp_path / "log")
    assert list(run.seconds) == [
        *("start", "load", "qc_filter", "normalize", "hvg", "consensus", "select_genes"),
        *("concat_on_disk", "pca"),
    ]
    assert 0 < run.total < run.wall
    assert 50e6 < run.host <= run.peak
    told = vs.told(vs.Side("scatlas cpu", out, command, 1), [run])
    assert "pca " in told[1]
    assert "in use" not in told[0]
    _check_comparison(vs, out, tmp_path / "peer")


def _check_comparison(vs, ours: Path, peer: Path) -> None:
    """The same in another order of genes and signs is the same; anything else is not."""
    peer.mkdir()
    result, PCs = json.loads((ours / "result.json").read_text()), np.load(ours / "PCs.npy")
    order = np.random.default_rng(0).permutation(len(result["genes"]))
    np.save(peer / "PCs.npy", -PCs[order])
    same = result | {"genes": [result["genes"][i] for i in order]}
    others = (
        {"n_cells": 1},
        {"genes": [f"{gene}x" for gene in same["genes"]]},
        {"variance": [value * 1.01 for value in same["variance"]]},
    )
    for other in ({}, *others):
        (peer / "result.json").write_text(json.dumps(same | other))
        if not other:
            assert "the same 60 genes" in vs.compare(ours, peer)
            continue
        with pytest.raises(AssertionError):
            vs.compare(ours, peer)


def test_a_process_that_fails_is_told(module, tmp_path, capsys):
    command = [sys.executable, "-c", "raise SystemExit('no such thing')"]
    with pytest.raises(RuntimeError, match="ended with exit status 1"):
        module("runner").run_process(command, tmp_path / "log")
    assert "no such thing" in capsys.readouterr().err


def test_disk_and_page_cache(module, tmp_path):
    disk, runner = module("scale_out"), module("runner")
    try:
        speeds = disk.disk_speed(tmp_path, n_bytes=2**26, threads=2)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    assert all(speed > 0 for speed in speeds)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    (tmp_path / "file").write_bytes(bytes(1000))
    runner.warm(tmp_path)
    disk.cold(tmp_path)
    assert runner.size_of(tmp_path) == runner.size_of(tmp_path / "file") == 1000


@pytest.mark.parametrize("name", ["vs_rsc", "scale_out"])
def test_options_are_explained(name):
    command = [sys.executable, BENCH / f"gpu/{name}.py", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "usage:" in told


@pytest.mark.parametrize(("suffix", "gzip"), [("h5ad", True), ("h5ad", False), ("zarr", True)])
@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:zarr v3 autosharding")
def test_plates_hold_what_was_drawn(module, tmp_path, suffix, gzip):
    make = module("make_plates")
    study = make.Study(500, 0)
    rng = np.random.default_rng(0)
    dense = rng.poisson(0.5, (700, 500)).astype(np.float32)

    def blocks():
        for rows in np.split(dense, [300]):
            counts, genes = rows[rows > 0], np.nonzero(rows)[1].astype(np.int32)
            indptr = np.r_[0, np.cumsum((rows > 0).sum(axis=1))]
            yield rng.integers(0, 50, len(rows)), counts, genes, indptr

    path = tmp_path / f"plate1.{suffix}"
    how = {"gzip": gzip, "chunk": 40_000, "threads": 2}
    n_values = make.write_plate(path, study, 1, blocks(), **how)
    plate = (ad.read_h5ad if suffix == "h5ad" else ad.read_zarr)(path)
    assert n_values == plate.X.nnz > 40_000, "more than one chunk, the last not full"
    assert plate.X.dtype == np.float32
    assert np.array_equal(plate.X.toarray(), dense)
    assert np.array_equal(plate.obs["tscp_count"], dense.sum(axis=1))
    assert np.array_equal(plate.obs["gene_count"], (dense > 0).sum(axis=1))
    mt = plate.var_names.str.startswith("MT-")
    assert np.allclose(plate.obs["pcnt_mito"], dense[:, mt].sum(axis=1) / dense.sum(axis=1))
    demo = simulate_plate(1, n_cells=10, n_genes=200)
    assert list(plate.obs.columns) == list(demo.obs.columns)
    assert plate.obs_names.is_unique


def test_drawn_cells_do_not_depend_on_threads(module):
    make = module("make_plates")
    study = make.Study(900, seed=3)
    one, three = (list(make.blocks(study, 2, 3100, threads)) for threads in (1, 3))
    assert len(one) == len(three) == 4
    for a, b in zip(one, three, strict=True):
        for part, same in zip(a, b, strict=True):
            np.testing.assert_array_equal(part, same)
        _, counts, genes, indptr = a
        assert counts.min() == 1
        for begin, end in pairwise(indptr.tolist()):
            assert (np.diff(genes[begin:end]) > 0).all()


def test_draws_follow_their_distributions(module):
    make = module("make_plates")
    rng = np.random.default_rng(0)
    p, n = 0.35, 40_000
    sizes = np.array([make.log_series(rng, np.log1p(-p)) for _ in range(n)])
    mean = -p / ((1 - p) * np.log1p(-p))
    variance = -p * (p + np.log1p(-p)) / ((1 - p) * np.log1p(-p)) ** 2
    assert abs(sizes.mean() - mean) < 5 * np.sqrt(variance / n)
    weights = np.array([5.0, 0.0, 1.0, 2.0, 0.5])
    keep, other = make.alias_table(weights)
    drawn = keep.astype(np.float64) / 5
    np.add.at(drawn, other, (1 - keep.astype(np.float64)) / 5)
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=1e-7)
