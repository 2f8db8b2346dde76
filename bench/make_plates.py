"""Make large plates with Tahoe-100M's shape for benchmarks, block by block, as h5ad or Zarr.

    python bench/make_plates.py FOLDER --plates 1 --cells 200000 --genes 62710
    python bench/make_plates.py FOLDER --gpu --zarr --first 3 --index-dtype int32 --cells 500000

makes ``FOLDER/plate1.h5ad`` with about 1,450 values per cell and holds only a few blocks of cells
in memory. The default is Tahoe's layout: gzip, 100,000 values per chunk, int64 indices. A Zarr
store has AnnData's layout: version 3, zstd, shards. A GPU draws 500,000 cells in some seconds, but
others than the CPU. `scatlas.datasets` makes the small plates of the demo, with drug effects and a
tail of poor cells; these plates have only cell lines and batch effects, which determine the time of
a pipeline.

A gene's counts in a cell are a Poisson number of clusters with logarithmic sizes, which is the
negative binomial (Quenouille 1949, https://doi.org/10.2307/3001932). So a cell is drawn cluster by
cluster, in a time proportional to its counts, not to the number of genes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import deflate
import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
import zarr
from anndata.io import write_elem
from numba import njit
from runner import size_of

from scatlas.datasets import CONTROL_WELLS, MT_GENES, tahoe_obs
from scatlas.io.files.atomic import atomic_path

LINES, WELLS = 50, 96
# Fixed, because each block has a separate random stream.
CELLS_AT_ONCE, CELLS_AT_ONCE_GPU = 1000, 20_000
VALUES_PER_CHUNK = 100_000
_LEVEL = 4  # of gzip, the default of HDF5
_ZARR_CHUNK, _ZARR_SHARD = 2**22, 2**26
_ENCODING = {"encoding-version": "0.1.0"}


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
def draw_cells(rng, line, n_clusters, keep, other, log1m):
    """Counts of some cells as CSR."""
    n_genes = keep.shape[1]
    size = n_clusters.sum()
    data, indices = np.empty(size, np.float32), np.empty(size, np.int64)
    indptr = np.zeros(line.size + 1, np.int64)
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
            counts[gene] = 0
        indptr[cell + 1] = end
    return data[:end], indices[:end], indptr


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
    """Draw the cells of a plate: cell lines, counts, genes and row offsets, block by block."""
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
        return line, *draw_cells(r, line, n_clusters, keep, other, study.log1m)

    return _in_order(draw, range(0, n_cells, CELLS_AT_ONCE), threads)


def blocks_of_gpu(study: Study, plate: int, n_cells: int) -> Iterator[tuple]:
    """The same by a GPU, which draws other cells; the next block is drawn meanwhile."""
    from draw import Plate

    source = Plate(study, plate)

    def draw(start: int) -> tuple:
        n = min(CELLS_AT_ONCE_GPU, n_cells - start)
        cells = source.draw(start // CELLS_AT_ONCE_GPU, n)
        counts, genes = cells.counts.astype(np.float32).get(), cells.genes.astype(np.int32).get()
        return cells.line, counts, genes, cells.indptr.get()

    return _in_order(draw, range(0, n_cells, CELLS_AT_ONCE_GPU), threads=1)


def _in_order(draw: Callable[[int], tuple], starts: range, threads: int) -> Iterator[tuple]:
    """Draw blocks in threads, with a bounded number of them in flight."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque = deque()
        for start in starts:
            waiting.append(pool.submit(draw, start))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class Growing:
    """Array that grows by whole pieces: of chunks that are compressed, or of shards."""

    def __init__(self, array: Any, piece: int, write: Callable[[Any, int, np.ndarray], None]):
        self._array, self._piece, self._write = array, piece, write
        self._rest = np.empty(0, array.dtype)

    def append(self, values: np.ndarray, *, last: bool = False) -> None:
        """Add values at the end; the last call writes what is left."""
        values = np.concatenate([self._rest, values.astype(self._rest.dtype, copy=False)])
        cut = values.size if last else values.size // self._piece * self._piece
        start = self._array.shape[0]
        self._array.resize((start + cut,))
        self._write(self._array, start, values[:cut])
        self._rest = values[cut:].copy()


def _write_chunks(
    encode: Callable[[np.ndarray], bytes],
    pool: ThreadPoolExecutor,
    array: h5py.Dataset,
    start: int,
    values: np.ndarray,
) -> None:
    """Write whole chunks and the last one, encoded by several threads."""
    (size,) = array.chunks
    padded = np.zeros(-(-values.size // size) * size, values.dtype)
    padded[: values.size] = values
    encoded = pool.map(encode, padded.reshape(-1, size))
    for i, content in enumerate(encoded):
        array.id.write_direct_chunk((start + i * size,), content)


def _write_shards(array: zarr.Array, start: int, values: np.ndarray) -> None:
    array[start:] = values  # zarr-python compresses the chunks in threads


@contextmanager
def created(
    path: Path, types: dict[str, str], *, as_zarr: bool, gzip: bool, chunk: int, threads: int
) -> Iterator[tuple[Any, Any, dict[str, Growing]]]:
    """Create a store; yield its root, X, and the arrays of X."""
    if as_zarr:
        with zarr.config.set({"threading.max_workers": threads, "async.concurrency": threads}):
            root = zarr.open_group(path, mode="w", zarr_format=3)
            x = root.create_group("X")
            how = {"shape": (0,), "chunks": (_ZARR_CHUNK,), "shards": (_ZARR_SHARD,)}
            made = {name: x.create_array(name, dtype=dtype, **how) for name, dtype in types.items()}
            yield root, x, {n: Growing(a, _ZARR_SHARD, _write_shards) for n, a in made.items()}
            zarr.consolidate_metadata(path)
        return

    def encode(values: np.ndarray) -> bytes:
        return deflate.zlib_compress(memoryview(values).cast("B"), _LEVEL)

    with h5py.File(path, "w") as root, ThreadPoolExecutor(threads) as pool:
        x = root.create_group("X")
        how = {"shape": (0,), "maxshape": (None,), "chunks": (chunk,)}
        how |= {"compression": "gzip", "compression_opts": _LEVEL} if gzip else {}
        write = partial(_write_chunks, encode if gzip else np.ndarray.tobytes, pool)
        made = {name: x.create_dataset(name, dtype=dtype, **how) for name, dtype in types.items()}
        yield root, x, {name: Growing(array, chunk, write) for name, array in made.items()}


def write_plate(
    path: Path,
    study: Study,
    plate: int,
    blocks: Iterable[tuple],
    *,
    gzip: bool = True,
    index_dtype: str = "int64",
    chunk: int = VALUES_PER_CHUNK,
    threads: int,
) -> int:
    """Write one plate and return its number of values.

    Parameters
    ----------
    blocks
        Cell lines, counts, genes and row offsets, block by block.
    """
    parts: list[tuple] = []
    n_values = 0
    types = {"data": "float32", "indices": index_dtype, "indptr": "int64"}
    how = {"as_zarr": path.suffix == ".zarr", "gzip": gzip, "chunk": chunk, "threads": threads}
    with atomic_path(path) as hidden, created(hidden, types, **how) as (root, x, arrays):
        arrays["indptr"].append(np.zeros(1))
        with ThreadPoolExecutor(3) as pool:  # each array by one thread, in order
            for lines, counts, genes, indptr in blocks:
                total = pool.submit(per_cell, counts, indptr)
                written = [
                    pool.submit(arrays["data"].append, counts),
                    pool.submit(arrays["indices"].append, genes),
                ]
                arrays["indptr"].append(n_values + indptr[1:])
                mt_total = per_cell(counts * study.is_mt[genes], indptr)
                parts.append((lines, total.result(), np.diff(indptr), mt_total))
                n_values += counts.size
                for array in written:
                    array.result()
        for array in arrays.values():
            array.append(np.empty(0), last=True)
        line, total, n_genes, mt_total = map(np.concatenate, zip(*parts, strict=True))
        rng = np.random.default_rng([study.seed, 2, plate])
        obs = tahoe_obs(
            rng,
            plate=plate,
            line=line,
            well=rng.integers(0, WELLS, line.size),
            phase=rng.choice(3, line.size, p=[0.55, 0.25, 0.2]),
            full=rng.random(line.size) < 0.95,
            total=total,
            n_genes=n_genes,
            mt_total=mt_total,
            n_lines=LINES,
            n_drugs=WELLS - CONTROL_WELLS + 1,
        )
        root.attrs.update({"encoding-type": "anndata", **_ENCODING})
        shape = [line.size, study.n_genes]
        x.attrs.update({"encoding-type": "csr_matrix", **_ENCODING, "shape": shape})
        write_elem(root, "obs", obs)
        write_elem(root, "var", study.var)
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            write_elem(root, name, {})
    return n_values


def cells_of_kinds(
    rng: np.random.Generator, kinds: np.ndarray, kind: np.ndarray, depth: np.ndarray
) -> sp.csr_matrix:
    """Cells with ``depth`` counts each, float32; genes follow the sums of a row of ``kinds``.

    Other benchmarks, whose matrices fit into memory, simulate by it.
    """
    n_genes = kinds.shape[1]
    drawn = [np.searchsorted(kinds[k], rng.random(n)) for k, n in zip(kind, depth, strict=True)]
    genes = np.concatenate(drawn).clip(max=n_genes - 1)
    rows, ones = np.repeat(np.arange(depth.size), depth), np.ones(genes.size, np.float32)
    return sp.coo_matrix((ones, (rows, genes)), shape=(depth.size, n_genes)).tocsr()


def per_cell(values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Sum of the values of each cell."""
    sums = np.zeros(values.size + 1, np.int64)
    np.cumsum(values, out=sums[1:], dtype=np.int64)
    return np.diff(sums[indptr])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("out", type=Path, help="folder for plate1.h5ad, plate2.h5ad, ...")
    add("--plates", type=int, default=1)
    add("--first", type=int, default=1, help="number of the first plate")
    add("--cells", type=int, default=200_000, help="per plate")
    add("--genes", type=int, default=62_710)
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--gpu", action="store_true", help="draw on the GPU")
    add("--zarr", action="store_true", help="Zarr instead of h5ad")
    add("--no-compression", action="store_true", help="plain h5ad instead of gzip")
    add("--index-dtype", default="int64", choices=["int32", "int64"])
    add("--chunk", type=int, default=VALUES_PER_CHUNK, help="values per chunk of an h5ad file")
    args = parser.parse_args()
    study = Study(args.genes, args.seed)
    draw = blocks_of_gpu if args.gpu else partial(blocks, threads=args.threads)
    for plate in range(args.first, args.first + args.plates):
        path = args.out / f"plate{plate}.{'zarr' if args.zarr else 'h5ad'}"
        begin = time.perf_counter()
        values = write_plate(
            path,
            study,
            plate,
            draw(study, plate, args.cells),
            gzip=not args.no_compression,
            index_dtype=args.index_dtype,
            chunk=args.chunk,
            threads=args.threads,
        )
        seconds = time.perf_counter() - begin
        print(
            f"{path}: {args.cells:,} cells, {values:,} values, {values / args.cells:.0f} per cell, "
            f"{size_of(path) / 1e6:,.0f} MB in {seconds:.1f} s ({values / seconds / 1e6:.1f}M "
            "values/s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
