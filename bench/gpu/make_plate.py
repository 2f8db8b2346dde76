"""Make large plates with Tahoe-100M's shape on a GPU: 500,000 cells in some seconds.

    python bench/gpu/make_plate.py plate1.h5ad --cells 500000
    python bench/gpu/make_plate.py FOLDER/plate{}.zarr --cells 500000 --plates 1 2 3 4

The model is that of ``bench/make_plates.py``: about 1,440 values per cell, cell lines and batch
effects, the obs columns of Tahoe. An h5ad file has Tahoe's layout: gzip, 100,000 values per chunk,
int64 indices. A Zarr store has AnnData's layout: version 3, int32 indices, zstd, shards.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deflate
import h5py
import numpy as np
import zarr
from anndata.io import write_elem
from harness import size_of
from make_plates import DRUGS, LINES, VALUES_PER_CHUNK, Study

from scatlas.datasets import tahoe_obs

if TYPE_CHECKING:
    from collections.abc import Iterator

CELLS_AT_ONCE = 20_000  # each block of cells has a separate random stream
_LEVEL = 4
_ZARR_CHUNK, _ZARR_SHARD = 2**22, 2**26
_ENCODING = {"encoding-version": "0.1.0"}


class GzipArray:
    """HDF5 array written front to back, its chunks compressed by several threads."""

    def __init__(self, group: h5py.Group, name: str, dtype: str, pool: ThreadPoolExecutor) -> None:
        self._array = group.create_dataset(
            name,
            shape=(0,),
            maxshape=(None,),
            chunks=(VALUES_PER_CHUNK,),
            dtype=dtype,
            compression="gzip",
            compression_opts=_LEVEL,
        )
        self._rest, self._size, self._pool = np.empty(0, dtype), 0, pool
        self._waiting: deque[tuple[int, Future]] = deque()

    def append(self, values: np.ndarray) -> None:
        """Add values at the end."""
        values = np.concatenate([self._rest, values.astype(self._array.dtype, copy=False)])
        whole = values.size // VALUES_PER_CHUNK * VALUES_PER_CHUNK
        for start in range(0, whole, VALUES_PER_CHUNK):
            self._submit(values[start : start + VALUES_PER_CHUNK])
        self._rest = values[whole:].copy()
        self._write(keep=1000)  # chunks to compress while the next cells are drawn

    def close(self) -> None:
        """Write what is left."""
        if self._rest.size:
            last = np.zeros(VALUES_PER_CHUNK, self._array.dtype)
            last[: self._rest.size] = self._rest
            self._submit(last)
            self._size -= VALUES_PER_CHUNK - self._rest.size
        self._write(keep=0)

    def _submit(self, chunk: np.ndarray) -> None:
        work = self._pool.submit(deflate.zlib_compress, memoryview(chunk).cast("B"), _LEVEL)
        self._waiting.append((self._size, work))
        self._size += chunk.size

    def _write(self, keep: int) -> None:
        self._array.resize((self._size,))
        while len(self._waiting) > keep:
            start, work = self._waiting.popleft()
            self._array.id.write_direct_chunk((start,), work.result())


class ZarrArray:
    """Zarr array written shard by shard; zarr-python compresses a shard's chunks in threads."""

    def __init__(self, group: zarr.Group, name: str, dtype: str) -> None:
        self._array = group.create_array(
            name, shape=(0,), chunks=(_ZARR_CHUNK,), shards=(_ZARR_SHARD,), dtype=dtype
        )
        self._parts: list[np.ndarray] = []
        self._n = 0

    def append(self, values: np.ndarray) -> None:
        """Add values at the end."""
        self._parts.append(values.astype(self._array.dtype, copy=False))
        self._n += values.size
        if self._n >= _ZARR_SHARD:
            self._write(self._n // _ZARR_SHARD * _ZARR_SHARD)

    def close(self) -> None:
        """Write what is left."""
        self._write(self._n)

    def _write(self, n: int) -> None:
        values = np.concatenate([np.empty(0, self._array.dtype), *self._parts])
        start = self._array.shape[0]
        self._array.resize((start + n,))
        self._array[start:] = values[:n]
        self._parts, self._n = [values[n:].copy()], values.size - n


@contextmanager
def created(path: Path, threads: int) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
    """Create a store; yield its root, X, and the arrays of X, which are closed at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".h5ad":
        with h5py.File(path, "w") as root, ThreadPoolExecutor(threads) as pool:
            x = root.create_group("X")
            kinds = {"data": "float32", "indices": "int64"}
            arrays = {name: GzipArray(x, name, kind, pool) for name, kind in kinds.items()}
            yield root, x, arrays
            for array in arrays.values():
                array.close()
    else:
        shutil.rmtree(path, ignore_errors=True)
        with zarr.config.set({"threading.max_workers": threads, "async.concurrency": threads}):
            root = zarr.open_group(path, mode="w", zarr_format=3)
            x = root.create_group("X")
            kinds = {"data": "float32", "indices": "int32"}
            arrays = {name: ZarrArray(x, name, kind) for name, kind in kinds.items()}
            yield root, x, arrays
            for array in arrays.values():
                array.close()
            zarr.consolidate_metadata(path)


def write_plate(path: Path, blocks: Iterator[tuple], study: Study, plate: int, threads: int) -> int:
    """Write the cells of ``blocks`` as one plate; return its number of values.

    Parameters
    ----------
    blocks
        Counts, genes, row offsets (NumPy) and cell lines, block by block.
    """
    line, ends, total, mt_total = [], [np.zeros(1, np.int64)], [], []
    with created(path, threads) as (root, x, arrays), ThreadPoolExecutor(3) as pool:
        # The next block is drawn while this one is written.
        drawn = pool.submit(next, blocks, None)
        while (block := drawn.result()) is not None:
            drawn = pool.submit(next, blocks, None)
            counts, genes, indptr, lines = block
            writes = [
                pool.submit(arrays[name].append, values)
                for name, values in (("data", counts), ("indices", genes))
            ]
            ends.append(ends[-1][-1] + indptr[1:])
            line.append(lines)
            total.append(per_cell(counts, indptr))
            mt_total.append(per_cell(counts * study.is_mt[genes], indptr))
            for write in writes:
                write.result()
        indptr, line = np.concatenate(ends), np.concatenate(line)
        rng = np.random.default_rng([study.seed, 2, plate])
        obs = tahoe_obs(
            rng,
            plate=plate,
            line=line,
            drug=rng.integers(0, DRUGS, line.size),
            phase=rng.choice(3, line.size, p=[0.55, 0.25, 0.2]),
            full=rng.random(line.size) < 0.95,
            total=np.concatenate(total),
            n_genes=np.diff(indptr),
            mt_total=np.concatenate(mt_total),
            n_lines=LINES,
            n_drugs=DRUGS,
        )
        shape = [line.size, study.n_genes]
        root.attrs.update({"encoding-type": "anndata", **_ENCODING})
        x.attrs.update({"encoding-type": "csr_matrix", **_ENCODING, "shape": shape})
        if path.suffix == ".h5ad":
            x.create_dataset("indptr", data=indptr, compression="gzip")
        else:
            x.create_array("indptr", data=indptr)
        write_elem(root, "obs", obs)
        write_elem(root, "var", study.var)
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            write_elem(root, name, {})
    return int(indptr[-1])


def per_cell(values: np.ndarray, indptr: np.ndarray) -> np.ndarray:
    """Sum of the values of each cell."""
    sums = np.zeros(values.size + 1, np.int64)
    np.cumsum(values, out=sums[1:], dtype=np.int64)
    return np.diff(sums[indptr])


def draw_blocks(study: Study, plate: int, n_cells: int) -> Iterator[tuple]:
    """Draw blocks of cells on the GPU."""
    from draw import Plate

    source = Plate(study, plate)
    for block, start in enumerate(range(0, n_cells, CELLS_AT_ONCE)):
        cells = source.draw(block, min(CELLS_AT_ONCE, n_cells - start))
        counts = cells.counts.astype(np.float32).get()
        yield counts, cells.genes.astype(np.int32).get(), cells.indptr.get(), cells.line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", help=".h5ad or .zarr; {} stands for the plate's number")
    parser.add_argument("--plates", type=int, nargs="+", default=[1], help="their numbers")
    parser.add_argument("--cells", type=int, default=500_000, help="per plate")
    parser.add_argument("--genes", type=int, default=62_710)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    if len(args.plates) > 1 and "{}" not in args.out:
        parser.error("several plates need {} in the path, for their numbers")
    study = Study(args.genes, args.seed)
    for plate in args.plates:
        path = Path(args.out.replace("{}", str(plate)))
        begin = time.perf_counter()
        blocks = draw_blocks(study, plate, args.cells)
        values = write_plate(path, blocks, study, plate, args.threads)
        print(
            f"{path}: {args.cells:,} cells, {values:,} values ({values / args.cells:.0f}/cell), "
            f"{size_of(path) / 1e6:,.0f} MB in {time.perf_counter() - begin:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
