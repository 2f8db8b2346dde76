"""Seconds to write the gene-major copy of an atlas, and milliseconds to read one gene from it.

    python bench/gene_lookup.py --cells 1000000

The atlas is simulated: the shares of cells of its genes follow a beta distribution, about 185
values per cell; 20,000 cells are repeated.
The first read of each source is left out: it compiles and opens. The files are in the page cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import runner
import scipy.sparse as sp

import scatlas as sa
from scatlas.io import CsrWriter, write_gene_copy

N_GENES = 2304
CELLS_AT_ONCE = 20_000


def write_atlas(path: Path, n_cells: int) -> int:
    """Write the atlas; returns the number of its values."""
    rng = np.random.default_rng(0)
    shares = rng.beta(0.4, 4.5, N_GENES)
    names = np.arange(n_cells).astype(str)
    with CsrWriter(path, n_vars=N_GENES, data_dtype=np.float32) as atlas:
        block = sp.csr_matrix(rng.random((CELLS_AT_ONCE, N_GENES), dtype=np.float32) < shares)
        factors = np.repeat(rng.random(CELLS_AT_ONCE) * 4 + 0.1, np.diff(block.indptr))
        values = np.log1p(rng.integers(1, 6, block.nnz) * factors).astype(np.float32)
        cells = sp.csr_matrix((values, block.indices, block.indptr), block.shape)
        for first in range(0, n_cells, CELLS_AT_ONCE):
            atlas.append(cells[: n_cells - first])
        atlas.obs = pd.DataFrame(index=names)
        atlas.var = pd.DataFrame(index=[f"G{i}" for i in range(N_GENES)])
    return atlas.n_values


def milliseconds(source: object) -> list[float]:
    """Time of each of 50 genes."""
    sa.get.gene(source, "G0")
    found = []
    for gene in range(0, N_GENES, N_GENES // 50):
        start = time.perf_counter()
        sa.get.gene(source, f"G{gene}")
        found.append(1000 * (time.perf_counter() - start))
    return found


def main() -> None:
    parser = runner.parser(__doc__, cells=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    args = parser.parse_args()
    lines = runner.head("numpy", "zarr")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        atlas, copy = Path(folder) / "atlas.zarr", Path(folder) / "by_gene.zarr"
        n_values = write_atlas(atlas, args.cells)
        start, start_cpu = time.perf_counter(), time.process_time()
        write_gene_copy(atlas, copy)
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        lines.append(f"{args.cells:,} cells, {n_values / args.cells:.0f} values per cell")
        lines.append(f"copy: {seconds:.1f} s, {cpu:.1f} s of processors")
        for name, source in (("path", atlas), ("read_lazy", sa.read_lazy(atlas))):
            found = [1e6 * value / args.cells for value in milliseconds(source)]
            lines.append(
                f"one gene by {name}: median {statistics.median(found):.1f}, "
                f"slowest {max(found):.1f} ms per million cells"
            )
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
