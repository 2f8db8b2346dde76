"""Benchmark of `load` of a Parquet plate, beside pyarrow's decode of its two columns of lists.

    python bench/parquet.py FOLDER                          # 40,000 cells x 62,710 genes
    python bench/parquet.py FOLDER --threads 2 16

The plate has the layout of the release of Tahoe-100M: row groups of 1,000 cells, about 1,450 tokens
in a cell, in no order, behind the marker, snappy and dictionaries. Genes are drawn by one skewed
profile and counts are geometric, so that a value takes about 2.6 bytes. "pyarrow" decodes the
columns genes and expressions and nothing else, in threads. "rows" is the published way: a Python
loop over the cells, to a CSR matrix in memory, of the first 2,000 cells. "load" writes counts.zarr
with its tables and sums. All read from the page cache; each is the best of the rounds, in seconds
and million values per second.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from run_side import machine, publish
from scipy import sparse

from scatlas.compute.threads import use_threads
from scatlas.io import load_plate
from scatlas.io.matrices.parquet_source import Sample

warnings.filterwarnings("ignore")
N_GENES, PER_CELL, PER_GROUP, N_FILES = 62_710, 1450, 1000, 4


def write(folder: Path, n_cells: int) -> None:
    """Simulated files, if they are not there."""
    if folder.exists():
        return
    (folder / "data").mkdir(parents=True)
    (folder / "metadata").mkdir()
    genes = {
        "gene_symbol": [f"G{i}" for i in range(N_GENES)],
        "ensembl_id": [f"E{i}" for i in range(N_GENES)],
        "token_id": np.arange(N_GENES) + 3,
    }
    pd.DataFrame(genes).to_parquet(folder / "metadata/gene_metadata.parquet")
    rng = np.random.default_rng(0)
    weights = np.log(rng.gamma(0.3, size=N_GENES) + 1e-12)
    for file in range(N_FILES):
        path = folder / f"data/train-{file:05d}-of-{N_FILES:05d}.parquet"
        writer = None
        for group in range(n_cells // PER_GROUP // N_FILES):
            lengths = rng.poisson(PER_CELL, PER_GROUP) + 1
            ends = np.concatenate([[0], np.cumsum(lengths)])
            tokens, values = np.ones(ends[-1], np.int64), np.full(ends[-1], -2, np.float32)
            for i, n in enumerate(lengths - 1):
                # The n largest of weights with Gumbel noise are a weighted draw without repeats.
                noise = weights - np.log(rng.exponential(size=N_GENES))
                tokens[ends[i] + 1 : ends[i + 1]] = np.argpartition(-noise, n)[:n] + 3
            body = np.ones(ends[-1], bool)
            body[ends[:-1]] = False  # the marker
            values[body] = rng.geometric(0.6, body.sum())
            offsets = pa.array(ends.astype(np.int32))
            number = file * n_cells + group * PER_GROUP
            columns = {
                "genes": pa.ListArray.from_arrays(offsets, pa.array(tokens)),
                "expressions": pa.ListArray.from_arrays(offsets, pa.array(values)),
                "drug": [f"drug{i % 20}" for i in range(PER_GROUP)],
                "BARCODE_SUB_LIB_ID": [f"{number + i:08}-lib" for i in range(PER_GROUP)],
                "plate": ["plate1"] * PER_GROUP,
            }
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()


def decode(folder: Path, threads: int) -> None:
    """Both columns by pyarrow, a row group at a time."""
    footers = {file: pq.read_metadata(file) for file in sorted((folder / "data").glob("*"))}
    parts = [(file, i) for file, footer in footers.items() for i in range(footer.num_row_groups)]

    def one(part: tuple[Path, int]) -> int:
        file = pq.ParquetFile(part[0], metadata=footers[part[0]])
        columns = ["genes", "expressions"]
        return file.read_row_group(part[1], columns=columns, use_threads=False).num_rows

    with ThreadPoolExecutor(threads) as pool:
        sum(pool.map(one, parts))


def by_rows(folder: Path) -> int:
    """The published loop over cells, of 2,000 cells; the number of values."""
    rows = next(pq.ParquetFile(min((folder / "data").glob("*"))).iter_batches(2000)).to_pylist()
    data, indices, indptr = [], [], [0]
    for row in rows:
        genes, counts = row["genes"], row["expressions"]
        if counts[0] < 0:
            genes, counts = genes[1:], counts[1:]
        indices += [gene - 3 for gene in genes]
        data += counts
        indptr.append(len(data))
    return sparse.csr_matrix((data, indices, indptr), shape=(len(rows), N_GENES)).nnz


def load(folder: Path, threads: int) -> int:
    with TemporaryDirectory(dir=folder) as out, use_threads(threads):
        sample = Sample("plate", "plate1")
        return load_plate(folder, Path(out) / "a.zarr", plate="a", sample=sample)["n_values"]


def best(run: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=40_000)
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folder = args.folder / f"parquet-{args.cells}"
    write(folder, args.cells)
    n_values = load(folder, args.threads[0])  # compiles, and fills the page cache
    size = sum(file.stat().st_size for file in (folder / "data").glob("*"))
    lines = [
        machine("pyarrow", "numpy"),
        f"{args.cells:,} cells, {n_values:,} values, {size / n_values:.2f} bytes each",
    ]
    n_rows = by_rows(folder)
    loop = n_rows / best(lambda: by_rows(folder), 1) / 1e6
    lines.append(f"rows, one thread: {loop:.2f} million values per second")
    for threads in args.threads:
        alone = best(lambda t=threads: decode(folder, t), args.rounds)
        whole = best(lambda t=threads: load(folder, t), args.rounds)
        rates = [n_values / seconds / 1e6 for seconds in (alone, whole)]
        lines.append(
            f"{threads} threads: pyarrow {alone:.2f} s ({rates[0]:.0f}), load {whole:.2f} s "
            f"({rates[1]:.0f}): {whole / alone:.2f} times its time, {rates[1] / loop:.0f} times "
            "rows"
        )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    lines.append(f"peak memory of the process: {memory:.2f} GB")
    publish(lines, args.out)


if __name__ == "__main__":
    main()
