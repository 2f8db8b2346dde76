"""Benchmark of every GPU kernel on one block of 64M values, compared with memory copies.

    python bench/gpu/kernels.py --out RESULT

Blocks are simulated counts of 62,710 genes (1,440 values per cell) in the types of ``counts.zarr``
(uint8, uint16 indices) and of plates (float32, int32), their log-normalised values, and cells of
2,304 selected genes. Times are medians of --rounds calls as in the library, with the copy of small
results to the host. GB/s count the values and indices that a kernel reads, not its output.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

import runner
from draw import Plate
from make_plates import Study

from scatlas.arrays import cupy_arrays
from scatlas.compute import backend
from scatlas.kernels import kernels_for
from scatlas.kernels.counts.select_cpu import new_column_of_gene

if TYPE_CHECKING:
    from collections.abc import Callable

_GENES, _SELECTED, _COMPS = 62_710, 2304, 300


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Median seconds of a call, with an idle GPU before and after."""
    stream, times = cp.cuda.get_current_stream(), []
    for i in range(rounds + 2):
        stream.synchronize()
        begin = time.perf_counter()
        work()
        stream.synchronize()
        if i > 1:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def counts(n_genes: int, clusters: float, n_values: int, data: str, indices: str) -> Any:
    """Block of about ``n_values`` simulated counts."""
    plate = Plate(Study(n_genes, 0), 1, clusters)
    values_per_cell = plate.draw(2**16, 2000).genes.size / 2000
    cells = plate.draw(0, max(1, int(n_values / values_per_cell)))
    values = cp.minimum(cells.counts, 255).astype(data)
    return cupy_arrays.csr(values, cells.genes.astype(indices), cells.indptr, n_genes)


def copies(n_bytes: int, rounds: int) -> tuple[list[str], float]:
    """Table of memory copies; bytes/s read and written by a copy on the GPU."""
    pinned = np.frombuffer(cp.cuda.alloc_pinned_memory(n_bytes), np.uint8, n_bytes)
    pageable = np.ones(n_bytes, np.uint8)
    pinned[:] = 1
    there, other = cp.empty(n_bytes, np.uint8), cp.empty(n_bytes, np.uint8)
    ways = {
        "to GPU, pinned": partial(there.set, pinned),
        "to GPU, pageable": partial(there.set, pageable),
        "to host, pinned": partial(there.get, out=pinned),
        "to host, pageable": partial(there.get, out=pageable),
    }
    rates = {name: n_bytes / seconds(work, rounds) / 1e9 for name, work in ways.items()}
    lines = [f"{name:<42}{rate:>18.1f} GB/s" for name, rate in rates.items()]
    both = 2 * n_bytes / seconds(partial(cp.copyto, other, there), rounds)
    lines.append(f"{'on the GPU (read and written)':<42}{both / 1e9:>18.1f} GB/s")
    return lines, both


def kernels(n_values: int) -> list[tuple[str, str, Any, Callable[[Any, Any], object]]]:
    """Name, operation and block of each kernel, and its call with module and block."""
    small = counts(_GENES, 2200, n_values, "uint8", "uint16")
    wide = cupy_arrays.csr(
        small.data.astype("float32"), small.indices.astype("int32"), small.indptr, _GENES
    )
    few = counts(_SELECTED, 285, n_values, "float32", "int32")
    few.data = cp.log1p(few.data)
    rng = np.random.default_rng(0)
    n = small.shape[0]
    scales = rng.uniform(0.5, 2, n)
    genes = np.sort(rng.choice(_GENES, _SELECTED, replace=False))
    new_column = new_column_of_gene(genes, _GENES)
    masks = np.zeros((1, _GENES), bool)
    masks[0, ::5000] = True
    sd = rng.uniform(0.5, 2, _GENES)
    half = np.arange(0, n, 2)
    logged = kernels_for("counts.normalize", wide).log1p(wide)
    sums, upper = cp.zeros(_SELECTED), cp.zeros((_SELECTED, _SELECTED))
    found, offset = rng.normal(size=(_SELECTED, _COMPS)), np.zeros(_COMPS)

    def projected(module: Any, x: Any, loadings: Any) -> object:
        return module.project(x, loadings, offset)

    loadings = kernels_for("linalg.project", few).Loadings(found)
    of_counts = {
        "totals of cells": ("counts.qc", lambda m, x: m.row_sums(x)),
        "QC of cells and genes, MT": ("counts.qc", lambda m, x: m.qc_block(x, masks)),
        "moments, normalised": (
            "moments.count_moments",
            lambda m, x: m.normalized_moments(x, scales),
        ),
        "moments, log-normalised": (
            "moments.count_moments",
            lambda m, x: m.normalized_moments(x, scales, log=True),
        ),
        "normalise": ("counts.normalize", lambda m, x: m.scale_rows(x, scales)),
        "select 2,304 genes, log-normalise": (
            "counts.normalize",
            lambda m, x: m.select_and_log_normalize(x, scales, new_column),
        ),
        "select 2,304 genes": ("counts.select", lambda m, x: m.select_genes(x, genes)),
        "select every second cell": ("counts.select", lambda m, x: m.select_rows(x, half)),
    }
    return [
        *((f"{name}, u8/u16", op, small, call) for name, (op, call) in of_counts.items()),
        *((f"{name}, f32/i32", op, wide, call) for name, (op, call) in of_counts.items()),
        ("log1p, f32", "counts.normalize", wide, lambda m, x: m.log1p(x)),
        ("moments of values, f32", "moments.moments", logged, lambda m, x: m.moments(x)),
        ("moments of expm1, f32", "moments.moments", logged, lambda m, x: m.moments(x, expm1=True)),
        (
            "scale, clip",
            "linalg.scale",
            logged,
            lambda m, x: m.scale(x, None, sd, 10.0, dtype="f4"),
        ),
        ("Gram of 2,304 genes", "linalg.gram", few, lambda m, x: m.add_block(x, sums, upper)),
        ("project on 300", "linalg.project", few, partial(projected, loadings=loadings)),
    ]


def main() -> None:
    parser = runner.parser(__doc__, values=64_000_000, rounds=7)
    args = parser.parse_args()
    lines, failed = runner.head("numpy", "cupy-cuda13x"), []
    with backend.use_backend("gpu"):
        copy_lines, both = copies(2**30, args.rounds)
        lines += [
            *copy_lines,
            f"{'kernel':<42}{'ms':>8}{'G values/s':>12}{'GB/s':>8}{'of copy':>9}",
        ]
        for name, operation, x, call in kernels(args.values):
            try:
                work = partial(call, kernels_for(operation, x), x)
                took = seconds(work, args.rounds)
            except Exception as error:  # noqa: BLE001 - measure the other kernels anyway
                failed.append(name)
                lines.append(f"{name:<42}{type(error).__name__}: {error}")
                continue
            rate = (x.data.nbytes + x.indices.nbytes) / took
            lines.append(
                f"{name:<42}{took * 1e3:>8.2f}{x.data.size / took / 1e9:>12.1f}"
                f"{rate / 1e9:>8.0f}{rate / both:>9.0%}"
            )
    runner.publish(lines, args.out)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
