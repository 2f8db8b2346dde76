"""Many groups of many genes need the memory of the result, whatever the blocks and threads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

N_GROUPS, N_GENES = 2_500, 4_000  # 80 MB per array
ARRAY = 8 * N_GROUPS * N_GENES
# Bytes for blocks, threads, and 120 tasks of Dask. Partial results per block, as those of moments
# (40 bytes per group and gene), would take 400 MB.
OVERHEAD = 40_000_000

PROGRAM = """
import json, re, sys
from pathlib import Path
import dask.array as da, numpy as np, pandas as pd, scipy.sparse as sp
import scatlas as sa
from scatlas.compute.memory import reuse_memory
from scatlas.compute.threads import use_threads

n_groups, n_genes, n_blocks, dtype, funcs = json.loads(sys.argv[1])

def make(i):
    rng = np.random.default_rng(i)
    data = rng.integers(1, 9, (100, 400)).astype(dtype)
    indices = np.sort(rng.integers(0, n_genes // 400, (100, 400)) + np.arange(0, n_genes, 10), 1)
    return sp.csr_matrix((data.ravel(), indices.ravel().astype(np.int32), np.arange(101) * 400),
                         shape=(100, n_genes))

def run(n_blocks, n_groups):
    import dask
    blocks = [da.from_delayed(dask.delayed(make)(i), (100, n_genes), dtype,
                              sp.csr_matrix((0, 0), dtype=dtype)) for i in range(n_blocks)]
    cells = pd.DataFrame({"g": np.random.default_rng(0).permutation(100 * n_blocks) % n_groups})
    return sa.get.aggregate_cells(da.concatenate(blocks), cells, "g", func=funcs)

reuse_memory()
with use_threads(4):
    run(3, 7)  # compiles
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    def resident(key):
        status = Path("/proc/self/status").read_text()
        return 1024 * int(re.search(key + r":\\s+(\\d+)", status)[1])
    before = resident("VmRSS")
    groups, layers = run(n_blocks, n_groups)
    shapes = [layer.shape for layer in layers.values()]
    print(json.dumps({"peak": resident("VmHWM") - before, "shapes": shapes}))
"""


@pytest.mark.parametrize(
    ("dtype", "funcs", "n_arrays"),
    [
        ("int32", ["sum"], 1),
        ("uint8", ["mean", "var", "count_nonzero"], 3),
        ("float32", ["mean", "var"], 4),
    ],
)
def test_memory_is_that_of_the_formula(dtype, funcs, n_arrays):
    options = json.dumps([N_GROUPS, N_GENES, 120, dtype, funcs])
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, options],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.splitlines()[-1])
    assert found["shapes"] == [[N_GROUPS, N_GENES]] * len(funcs)
    assert len(funcs) * ARRAY * 0.9 < found["peak"] < n_arrays * ARRAY + OVERHEAD
