"""Seconds to write the counts by gene of an atlas, and milliseconds to read one gene from them.

    python bench/gene_lookup.py --cells 800000
    python bench/gene_lookup.py --cells 1000000 --plates 500

The plates are simulated: the shares of cells of 20,000 genes follow a beta distribution, about
1,450 values per cell; up to 5,000 cells are repeated. The first read of a gene is left out: it
compiles and opens. The files are in the page cache. Other processes than this one make the copies,
whose largest memory is given: with its libraries, without the simulation.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import runner
import scipy.sparse as sp

import scatlas as sa
from scatlas._util.operating_system import peak_memory
from scatlas.io import CsrWriter, concat_on_disk, join_pieces, write_piece

if TYPE_CHECKING:
    from collections.abc import Callable

N_GENES, N_SELECTED = 20_000, 10
CELLS_AT_ONCE = 5_000


def write_plate(folder: Path, n_cells: int, rng: np.random.Generator) -> int:
    """Write counts and a few selected genes of a plate; returns the number of values."""
    shares = rng.beta(0.3, 3.8, N_GENES)
    names = np.char.add(f"{folder.name}_", np.arange(n_cells).astype(str))
    filled = rng.random((min(n_cells, CELLS_AT_ONCE), N_GENES), dtype=np.float32) < shares
    block = sp.csr_matrix(filled.astype(np.float32))
    block.data = 1 + rng.poisson(0.6, block.nnz).astype(np.float32)
    var = pd.DataFrame(index=[f"G{i}" for i in range(N_GENES)])
    with (
        CsrWriter(folder / "counts.zarr", n_vars=N_GENES) as counts,
        CsrWriter(folder / "selected.zarr", n_vars=N_SELECTED, data_dtype=np.float32) as selected,
    ):
        for first in range(0, n_cells, CELLS_AT_ONCE):
            counts.append(block[: n_cells - first])
            selected.append(block[: n_cells - first, :N_SELECTED])
        counts.obs = pd.DataFrame(index=names)
        selected.obs = pd.DataFrame({"size_factor": rng.random(n_cells) + 0.5}, index=names)
        counts.var, selected.var = var, var.iloc[:N_SELECTED]
    return counts.n_values


def write_pieces(plates: dict[str, Path], n_cells: int) -> tuple[float, float, float]:
    """Write the counts by gene of each plate; seconds, those of processors, and MB of memory."""
    start, keep = time.perf_counter(), np.ones(n_cells, bool)
    for plate in plates.values():
        write_piece(plate / "counts.zarr", plate / "by_gene.zarr", keep=keep)
        shutil.rmtree(plate / "counts.zarr")
    return time.perf_counter() - start, time.process_time(), peak_memory() / 1e6


def join(plates: dict[str, Path], folder: Path) -> tuple[float, float, float]:
    """Join the counts by gene of all plates; as :func:`write_pieces`."""
    start = time.perf_counter()
    pieces = {p: plate / "by_gene.zarr" for p, plate in plates.items()}
    join_pieces(pieces, folder / "m.zarr", folder / "by_gene.zarr")
    return time.perf_counter() - start, time.process_time(), peak_memory() / 1e6


def in_new_process(function: Callable[..., tuple[float, float, float]], *args: object) -> str:
    """Cost of a function in a new process, as text."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        seconds, cpu, mb = pool.submit(function, *args).result()
    return f"{seconds:.1f} s, {cpu:.1f} s of processors with imports, peak memory {mb:.0f} MB"


def milliseconds(source: Path) -> list[float]:
    """Time of each of 50 genes."""
    sa.get.gene(source, "G0")
    taken = []
    for gene in range(1, N_GENES, N_GENES // 50):
        start = time.perf_counter()
        sa.get.gene(source, f"G{gene}")
        taken.append(1000 * (time.perf_counter() - start))
    return taken


def main() -> None:
    parser = runner.parser(__doc__, cells=1_000_000)
    parser.add_argument("--plates", type=int, default=1, help="plates of equal size")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    args = parser.parse_args()
    lines = runner.head("numpy", "zarr")
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder, n_cells = Path(name), args.cells // args.plates
        plates = {f"p{i}": folder / f"p{i}" for i in range(args.plates)}
        n_values = sum(write_plate(plate, n_cells, rng) for plate in plates.values())
        total = n_cells * args.plates
        lines.append(f"{total:,} cells, {n_values / total:.0f} values each, {args.plates} plates")
        lines.append(f"pieces: {in_new_process(write_pieces, plates, n_cells)}")
        concat_on_disk(
            {p: plate / "selected.zarr" for p, plate in plates.items()}, folder / "m.zarr"
        )
        joined = in_new_process(join, plates, folder)
        n_bytes = sum(file.stat().st_size for file in (folder / "by_gene.zarr").rglob("c/*"))
        lines.append(f"joined: {joined}, {n_bytes / n_values:.2f} bytes per value")
        (folder / "m.zarr").rename(folder / "atlas.zarr")
        start_cpu = time.process_time()
        taken = [1e6 * value / total for value in milliseconds(folder / "atlas.zarr")]
        cpu_ms = 1000 * (time.process_time() - start_cpu) / len(taken)
        lines.append(
            f"one gene: median {statistics.median(taken):.1f}, slowest {max(taken):.1f} ms per "
            f"million cells, {cpu_ms / total * 1e6:.1f} ms of processors"
        )
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
