"""From plates to components with functions alone: the example of the page, and scanpy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc

from scatlas.datasets import simulate_plate, write_plate

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plates = {f"plate{i}": simulate_plate(i, n_cells=400, n_genes=3000) for i in (1, 2)}
    for name, plate in plates.items():
        write_plate(tmp_path / f"{name}.h5ad", plate)
    page = (ROOT / "docs/out-of-core.md").read_text()
    (code,) = re.findall(r"## An atlas without.*?```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(compile(code, "out-of-core.md", "exec"), names)

    for plate in plates.values():
        plate.X = plate.X.astype(np.float32)
        sc.pp.normalize_total(plate)
        sc.pp.log1p(plate)
        sc.pp.highly_variable_genes(plate, n_top_genes=2000)
    both = np.logical_and(*(plate.var["highly_variable"] for plate in plates.values()))
    assert list(names["genes"]) == list(both.index[both])
    expected = ad.concat([plate[:, both] for plate in plates.values()])
    written = ad.read_zarr(tmp_path / "merged.zarr")
    assert list(written.var_names) == list(both.index[both])
    difference = np.abs(written.X - expected.X).max()
    assert difference <= 3e-7 * expected.X.max()
    x_pca = sc.pp.pca(expected.X.astype(np.float64), n_comps=50, svd_solver="arpack")
    ours = names["x_pca"].compute()
    cosines = np.abs((ours * x_pca).sum(0)) / np.linalg.norm(ours, axis=0)
    assert (cosines / np.linalg.norm(x_pca, axis=0) > 1 - 1e-6).all()


# The benchmark, whose round that is not counted serves as the counted one: of two plates they are
# the same.
ONE_ROUND = """
import sys

sys.path.insert(0, sys.argv.pop(1))
import vs_scanpy

run_round, runs = vs_scanpy.run_round, {}

def run_once(side, plates, args):
    assert len(plates) == 2
    if side not in runs:
        runs[side] = run_round(side, plates, args)
    return runs[side]

vs_scanpy.run_round = run_once
vs_scanpy.main()
"""


def test_all_sides_of_the_benchmark_find_the_same(tmp_path):
    """Functions, scripts and scanpy with Dask: the benchmark fails if they differ."""
    sizes = ["--plates", "2", "--cells", "500", "--genes", "4000", "--comps", "40"]
    how = ["--chunk", "200", "--rounds", "1", "--formats", "gzip", "--out", tmp_path / "told"]
    command = [sys.executable, "-c", ONE_ROUND, ROOT / "bench", tmp_path, *sizes, *how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = (tmp_path / "told").read_text()
    for side in ("functions", "scripts", "scanpy"):
        assert re.search(rf"^{side} +\d+\.\d\d", told, re.MULTILINE), told
    assert "the same genes on all plates" in told
    assert str(tmp_path) not in told
