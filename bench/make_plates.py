"""Make large plates with Tahoe-100M's shape for benchmarks, block by block, as gzip h5ad.

``python bench/make_plates.py OUT --plates 1 --cells 200000 --genes 62710`` makes
``OUT/plate1.h5ad`` with about 1,400 values per cell and holds only a few blocks of cells in memory.
`scatlas.datasets` makes the small plates of the demo, with drug effects and a tail of poor cells;
these plates have only cell lines and batch effects, which determine the time of a pipeline.

A gene's counts in a cell are a Poisson number of clusters with logarithmic sizes, which is the
negative binomial (Quenouille 1949, https://doi.org/10.2307/3001932). So a cell is drawn cluster by
cluster, in a time proportional to its counts, not to the number of genes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pandas as pd
from anndata.io import write_elem
from numba import njit

from scatlas.datasets import MT_GENES, tahoe_obs
from scatlas.io.files.atomic import atomic_path

if TYPE_CHECKING:
    from collections.abc import Iterator

LINES, DRUGS = 50, 96
CELLS_AT_ONCE = 1000  # fixed, because each block has a separate random stream
VALUES_PER_CHUNK = 100_000  # as in Tahoe's files, whose indices are int64


@njit(nogil=True)
def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Walker's table to draw an index by weight from one number (Vose 1991)."""
    n = weights.size
    keep = weights / weights.sum() * n
    other = np.arange(n).astype(np.int32)
    poor = [i for i in range(n) if keep[i] < 1]
    rich = [i for i in range(n) if keep[i] >= 1]
    while poor and rich:
        i, j = poor.pop(), rich[-1]
        other[i] = j
        keep[j] -= 1 - keep[i]
        if keep[j] < 1:
            poor.append(rich.pop())
    # The remaining entries are 1 up to rounding.
    for i in poor:
        keep[i] = 1
    for i in rich:
        keep[i] = 1
    return keep.astype(np.float32), other


@njit(nogil=True)
def draw_cells(rng, line, n_clusters, keep, other, log1m, is_mt):
    """Counts of some cells as CSR, with the total and mitochondrial counts of each."""
    n_genes = keep.shape[1]
    size = n_clusters.sum()
    data, indices = np.empty(size, np.float32), np.empty(size, np.int64)
    indptr = np.zeros(line.size + 1, np.int64)
    total, mt_total = np.zeros(line.size, np.int64), np.zeros(line.size, np.int64)
    counts = np.zeros(n_genes, np.int64)
    end = 0
    for cell in range(line.size):
        start = end
        for _ in range(n_clusters[cell]):
            u = rng.random() * n_genes
            gene = min(int(u), n_genes - 1)
            if u - gene >= keep[line[cell], gene]:
                gene = other[line[cell], gene]
            if counts[gene] == 0:
                indices[end] = gene
                end += 1
            counts[gene] += log_series(rng, log1m[gene])
        indices[start:end] = np.sort(indices[start:end])
        for at in range(start, end):
            gene = indices[at]
            data[at] = counts[gene]
            total[cell] += counts[gene]
            if is_mt[gene]:
                mt_total[cell] += counts[gene]
            counts[gene] = 0
        indptr[cell + 1] = end
    return data[:end], indices[:end], indptr, total, mt_total


@njit(nogil=True)
def log_series(rng, log1m):
    """A number of the logarithmic distribution with log(1 - p) given (Kemp 1981, method LK)."""
    v = rng.random()
    if v >= -np.expm1(log1m):
        return 1
    q = -np.expm1(log1m * rng.random())
    if v <= q * q:
        return int(1 + np.log(v) / np.log(q)) if v > 0 else 1
    return 2 if v <= q else 1


class Study:
    """Genes, cell lines and overdispersion that all plates share."""

    def __init__(self, n_genes: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.seed, self.n_genes = seed, n_genes
        base = rng.normal(0, 2.35, n_genes)  # a few genes hold most counts, most genes are silent
        change = rng.normal(0, 1.2, (LINES, n_genes))
        change[rng.random((LINES, n_genes)) >= 0.15] = 0
        self.lines = np.minimum(base + change, 8.5)
        self.log1m = np.log1p(-rng.uniform(0.05, 0.4, n_genes))
        mt = np.linspace(0, n_genes - 1, len(MT_GENES)).astype(np.int64)
        self.is_mt = np.zeros(n_genes, bool)
        self.is_mt[mt] = True
        names = np.array([f"GENE{i:05d}" for i in range(1, n_genes + 1)], dtype=object)
        names[mt] = MT_GENES
        self.var = pd.DataFrame(index=pd.Index(names, name="gene_name"))
        self.lines[:, mt] = np.log(np.exp(self.lines).sum(axis=1, keepdims=True) * 0.06 / mt.size)


def blocks(study: Study, plate: int, n_cells: int, threads: int) -> Iterator[tuple]:
    """Draw the cells of a plate block by block, with a bounded number of blocks in flight."""
    rng = np.random.default_rng([study.seed, 1, plate])
    batch = np.where(rng.random(study.n_genes) < 0.3, rng.normal(0, 0.35, study.n_genes), 0)
    tables = [alias_table(np.exp(row + batch)) for row in study.lines]
    keep, other = (np.stack(part) for part in zip(*tables, strict=True))
    weights = rng.dirichlet(np.full(LINES, 3.0))

    def draw(start: int) -> tuple:
        r = np.random.default_rng([study.seed, 1, plate, start])
        n = min(CELLS_AT_ONCE, n_cells - start)
        line = r.choice(LINES, n, p=weights)
        n_clusters = np.clip(r.lognormal(np.log(2200), 0.45, n), 250, 7000).astype(np.int64)
        return line, *draw_cells(r, line, n_clusters, keep, other, study.log1m, study.is_mt)

    with ThreadPoolExecutor(threads) as pool:
        waiting: deque = deque()
        for start in range(0, n_cells, CELLS_AT_ONCE):
            waiting.append(pool.submit(draw, start))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def write_plate(
    path: Path,
    study: Study,
    plate: int,
    n_cells: int,
    *,
    compression: str | None,
    index_dtype: str,
    chunk: int,
    threads: int,
) -> int:
    """Write one plate and return its number of values."""
    line, total, mt_total, ends = [], [], [], [np.zeros(1, np.int64)]
    with atomic_path(path) as partial, h5py.File(partial, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        x = file.create_group("X")
        x.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0"})
        x.attrs["shape"] = np.array([n_cells, study.n_genes])
        how = {"shape": (0,), "maxshape": (None,), "chunks": chunk}
        how["compression"] = compression
        arrays = {
            "data": x.create_dataset("data", dtype=np.float32, **how),
            "indices": x.create_dataset("indices", dtype=index_dtype, **how),
        }
        # Whole chunks only: HDF5 would compress a chunk again each time it grows.
        rest = {name: np.empty(0, array.dtype) for name, array in arrays.items()}

        def append(name: str, values: np.ndarray, *, last: bool = False) -> None:
            values = np.concatenate([rest[name], values])
            cut = values.size if last else values.size // chunk * chunk
            array = arrays[name]
            size = array.shape[0]
            array.resize((size + cut,))
            array[size:] = values[:cut]
            rest[name] = values[cut:].copy()

        for lines, data, indices, indptr, totals, mt_totals in blocks(
            study, plate, n_cells, threads
        ):
            append("data", data)
            append("indices", indices)
            line.append(lines)
            total.append(totals)
            mt_total.append(mt_totals)
            ends.append(ends[-1][-1] + indptr[1:])
        for name, array in arrays.items():
            append(name, np.empty(0, array.dtype), last=True)
        indptr = np.concatenate(ends)
        x.create_dataset("indptr", data=indptr, compression=compression)
        rng = np.random.default_rng([study.seed, 2, plate])
        obs = tahoe_obs(
            rng,
            plate=plate,
            line=np.concatenate(line),
            drug=rng.integers(0, DRUGS, n_cells),
            phase=rng.choice(3, n_cells, p=[0.55, 0.25, 0.2]),
            full=rng.random(n_cells) < 0.95,
            total=np.concatenate(total),
            n_genes=np.diff(indptr),
            mt_total=np.concatenate(mt_total),
            n_lines=LINES,
            n_drugs=DRUGS,
        )
        write_elem(file, "obs", obs)
        write_elem(file, "var", study.var)
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            write_elem(file, name, {})
    return int(indptr[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for plate1.h5ad, plate2.h5ad, ...")
    parser.add_argument("--plates", type=int, default=1)
    parser.add_argument("--cells", type=int, default=200_000, help="per plate")
    parser.add_argument("--genes", type=int, default=62_710)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-compression", action="store_true", help="plain h5ad instead of gzip")
    parser.add_argument("--index-dtype", default="int64", choices=["int32", "int64"])
    parser.add_argument("--chunk", type=int, default=VALUES_PER_CHUNK, help="values per chunk")
    args = parser.parse_args()
    study = Study(args.genes, args.seed)
    compression = None if args.no_compression else "gzip"
    for plate in range(1, args.plates + 1):
        path = args.out / f"plate{plate}.h5ad"
        begin = time.perf_counter()
        values = write_plate(
            path,
            study,
            plate,
            args.cells,
            compression=compression,
            index_dtype=args.index_dtype,
            chunk=args.chunk,
            threads=args.threads,
        )
        seconds = time.perf_counter() - begin
        sys.stdout.write(
            f"{path}: {args.cells:,} cells, {values:,} values, {values / args.cells:.0f} per cell, "
            f"{path.stat().st_size / 1e6:,.0f} MB in {seconds:.1f} s "
            f"({values / seconds / 1e6:.1f}M values/s)\n"
        )


if __name__ == "__main__":
    main()
