"""Benchmark of `load` of a Parquet plate, beside pyarrow's decode of its two columns of lists.

    python bench/parquet.py FOLDER                         # 200,000 cells x 62,710 genes, 2 threads
    python bench/parquet.py FOLDER --threads 1 2 4 8 16 --jobs 2 4 8    # 16 cores, 4 minutes

The plate has the layout of the release of Tahoe-100M: row groups of 1,000 cells, about 1,450 tokens
in a cell, in no order, behind the marker, snappy and dictionaries, seven columns of text, and a
table of all cells beside. Genes are drawn by one skewed profile and counts are geometric, so that a
value takes about 2.6 bytes; the lists of eight row groups repeat. "pyarrow" decodes the columns
genes and expressions and nothing else, in threads. "rows" is the published way: a Python loop over
the cells, to a CSR matrix in memory, of the first 2,000 cells. "counts in memory" is the same by
scatlas, and "load" writes counts.zarr with its tables and sums. All read from the page cache; they
alternate, and each is the best of the rounds, in seconds of the clock and of the processor, and
million values per second.

"jobs" load the plate side by side, each in a process. The peak memory of `load` is that of a fresh
process, with this plate and with ten times as many cells of 50 tokens, of which the tables take
most.
"""

from __future__ import annotations

import resource
import shutil
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import runner
from scipy import sparse

from scatlas.blocks import map_in_order
from scatlas.compute.memory import reuse_memory
from scatlas.compute.threads import BLOCK_BYTES, BLOCKS_PER_BUDGET, n_cores, use_threads
from scatlas.io import load_plate
from scatlas.io.files.cell_files import CellFiles
from scatlas.io.matrices.parquet_source import ParquetSource
from scatlas.io.matrices.source import Sample, Wanted

warnings.filterwarnings("ignore")
N_GENES, PER_GROUP, N_FILES, N_DISTINCT = 62_710, 1000, 4, 8
SAMPLE = Sample("plate", "plate1")
# 95,624,334 cells of 1,450 entries, as these here.
VALUES_OF_TAHOE = 138.7e9


def lists(per_cell: int) -> list[list[pa.Array]]:
    """Tokens and values of the cells of a few row groups."""
    rng = np.random.default_rng(0)
    weights = np.log(rng.gamma(0.3, size=N_GENES) + 1e-12)
    made = []
    for _ in range(N_DISTINCT):
        ends = np.concatenate([[0], np.cumsum(rng.poisson(per_cell, PER_GROUP) + 1)])
        tokens, values = np.ones(ends[-1], np.int64), np.full(ends[-1], -2, np.float32)
        for begin, end in zip(ends[:-1] + 1, ends[1:], strict=True):  # behind the marker
            # The n largest of weights with Gumbel noise are a weighted draw without repeats.
            noise = weights - np.log(rng.exponential(size=N_GENES))
            tokens[begin:end] = np.argpartition(-noise, end - begin)[: end - begin] + 3
            values[begin:end] = rng.geometric(0.6, end - begin)
        offsets = pa.array(ends.astype(np.int32))
        made.append([pa.ListArray.from_arrays(offsets, part) for part in (tokens, values)])
    return made


def cells(first: int, stop: int) -> dict[str, object]:
    """Columns of some cells."""
    numbers = np.arange(first, stop)
    texts = {name: [f"{name}{i % 20}" for i in numbers] for name in ("drug", "moa-fine", "smiles")}
    return {
        "BARCODE_SUB_LIB_ID": [f"{i // 9216:02}_{i // 96 % 96:03}_{i:08}-lib_841" for i in numbers],
        **texts,
        "sample": [f"smp_{i % 96}" for i in numbers],
        "cell_line_id": [f"CVCL_{i % 50:04}" for i in numbers],
        "plate": ["plate1"] * len(numbers),
    }


def write(folder: Path, n_cells: int, per_cell: int) -> Path:
    """Simulated files, if they are not there."""
    release = folder / f"parquet-{n_cells}-{per_cell}"
    if release.exists():
        return release
    made = release.with_name(f"{release.name}.partial")
    shutil.rmtree(made, ignore_errors=True)
    for name in ("data", "metadata"):
        (made / name).mkdir(parents=True)
    genes = {
        "gene_symbol": [f"G{i}" for i in range(N_GENES)],
        "ensembl_id": [f"E{i}" for i in range(N_GENES)],
        "token_id": np.arange(N_GENES) + 3,
    }
    pd.DataFrame(genes).to_parquet(made / "metadata/gene_metadata.parquet")
    distinct = lists(per_cell)

    def write_file(file: int) -> None:
        starts = range(file * n_cells // N_FILES, (file + 1) * n_cells // N_FILES, PER_GROUP)
        path, writer = made / f"data/train-{file:05d}-of-{N_FILES:05d}.parquet", None
        for i, first in enumerate(starts):
            tokens, values = distinct[i % N_DISTINCT]
            lists = {"genes": tokens, "expressions": values}
            table = pa.table({**lists, **cells(first, first + PER_GROUP)})
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        writer.close()

    writer = None
    for first in range(0, n_cells, 100 * PER_GROUP):
        own = cells(first, min(n_cells, first + 100 * PER_GROUP))
        numbers = {name: np.arange(len(own["plate"])) for name in ("tscp_count", "gene_count")}
        own = {**own, **numbers, "pcnt_mito": np.zeros(len(own["plate"]), np.float32)}
        table = pa.table({**own, "pass_filter": ["full"] * len(own["plate"])})
        writer = writer or pq.ParquetWriter(made / "metadata/obs_metadata.parquet", table.schema)
        writer.write_table(table)
    writer.close()
    with ThreadPoolExecutor(N_FILES) as pool:
        list(pool.map(write_file, range(N_FILES)))
    made.rename(release)
    return release


def decode(release: Path, threads: int) -> None:
    """Both columns by pyarrow, a row group at a time."""
    footers = {file: pq.read_metadata(file) for file in sorted((release / "data").glob("*"))}
    parts = [(file, i) for file, footer in footers.items() for i in range(footer.num_row_groups)]

    def one(part: tuple[Path, int]) -> int:
        file = pq.ParquetFile(part[0], metadata=footers[part[0]])
        columns = ["genes", "expressions"]
        return file.read_row_group(part[1], columns=columns, use_threads=False).num_rows

    with ThreadPoolExecutor(threads) as pool:
        sum(pool.map(one, parts))


def by_rows(release: Path) -> int:
    """The published loop over cells, of 2,000 cells; the number of values."""
    rows = next(pq.ParquetFile(min((release / "data").glob("*"))).iter_batches(2000)).to_pylist()
    data, indices, indptr = [], [], [0]
    for row in rows:
        genes, counts = row["genes"], row["expressions"]
        if counts[0] < 0:
            genes, counts = genes[1:], counts[1:]
        indices += [gene - 3 for gene in genes]
        data += counts
        indptr.append(len(data))
    return sparse.csr_matrix((data, indices, indptr), shape=(len(rows), N_GENES)).nnz


def load(release: Path, threads: int, name: str = "counts.zarr") -> int:
    """The number of values."""
    with use_threads(threads, block_budget=BLOCK_BYTES * (threads + 1)):  # as in jobs
        return load_plate(release, release / name, plate="a", sample=SAMPLE)["n_values"]


def read(release: Path, threads: int) -> None:
    """The counts in memory alone, block by block."""
    files = CellFiles.find(release)
    with use_threads(threads), ParquetSource(files, Wanted(sample=SAMPLE)) as source:
        cut, block = source.blocks(BLOCK_BYTES * BLOCKS_PER_BUDGET, print)
        for _ in map_in_order(block, len(cut)):
            pass


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock and of the processor."""
    start, used = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start, time.process_time() - used


def beside(release: Path, threads: int, rounds: int) -> np.ndarray:
    """Best seconds of pyarrow, of the counts and of `load`: [3 x (clock, processor)]."""
    found = []
    for _ in range(rounds):
        sides = (decode, read, load)
        found.append([timed(lambda side=side: side(release, threads)) for side in sides])
        shutil.rmtree(release / "counts.zarr")
    return np.min(found, axis=0)


def peak(release: Path, threads: int) -> tuple[int, float, float]:
    """Values, seconds, and GB of memory of this process, which is a fresh one."""
    reuse_memory()
    start = time.perf_counter()
    n_values = load(release, threads)
    seconds = time.perf_counter() - start
    shutil.rmtree(release / "counts.zarr")
    return n_values, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def one_of_jobs(release: Path, threads: int, number: int) -> int:
    """Values of one of several processes."""
    reuse_memory()
    name = f"counts{number}.zarr"
    n_values = load(release, threads, name)
    shutil.rmtree(release / name)
    return n_values


def side_by_side(release: Path, n_jobs: int, threads: int) -> float:
    """Million values per second of several jobs, each of which loads the plate."""
    work = partial(one_of_jobs, release, threads)
    with ProcessPoolExecutor(n_jobs, mp_context=get_context("spawn")) as pool:
        list(pool.map(work, range(n_jobs)))  # imports and compiles
        start = time.perf_counter()
        n_values = sum(pool.map(work, range(2 * n_jobs)))
        return n_values / (time.perf_counter() - start) / 1e6


def main() -> None:
    sizes = {"cells": 200_000, "per_cell": 1450, "rounds": 3}
    parser = runner.parser(__doc__, folder="for the plate", **sizes)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--jobs", type=int, nargs="*", default=[], help="that share the cores")
    args = parser.parse_args()
    reuse_memory()  # as in jobs
    release = write(args.folder, args.cells, args.per_cell)
    lines = runner.head("pyarrow", "numpy")
    for n_cells, per_cell in ((args.cells, args.per_cell), (10 * args.cells, 50)):
        threads, plate = max(args.threads), write(args.folder, n_cells, per_cell)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            n_values, seconds, memory = pool.submit(peak, plate, threads).result()
        size = runner.size_of(plate / "data")
        lines.append(
            f"{n_cells:,} cells, {n_values:,} values, {size / n_values:.2f} bytes each: load with "
            f"{threads} threads {seconds:.1f} s, peak memory {memory:.2f} GB"
        )
        if n_cells == args.cells:
            n_of_plate = n_values
    n_rows = by_rows(release)
    loop = n_rows / timed(lambda: by_rows(release))[0] / 1e6
    lines.append(f"rows, one thread: {loop:.2f} million values per second")
    for threads in args.threads:
        best = beside(release, threads, args.rounds)
        alone, counts, whole = best[:, 0]
        rates = n_of_plate / best[:, 0] / 1e6
        lines.append(
            f"{threads} threads: pyarrow {alone:.2f} s ({rates[0]:.0f}), counts in memory "
            f"{counts:.2f} s ({rates[1]:.0f}, {rates[1] / loop:.0f} times rows), "
            f"load {whole:.2f} s ({rates[2]:.0f}): {whole / alone:.2f} times pyarrow's time "
            f"({best[2, 1] / best[0, 1]:.2f} of the processor's), {rates[2] / loop:.0f} times rows"
        )
    for n_jobs in args.jobs:
        threads = max(1, n_cores() // n_jobs)
        rate = side_by_side(release, n_jobs, threads)
        lines.append(
            f"{n_jobs} jobs of {threads} threads: {rate:.0f} million values per second; "
            f"{VALUES_OF_TAHOE / rate / 60e6:.1f} minutes for Tahoe-100M's"
        )
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
