"""Benchmark of readers, writers and codecs: scatlas against h5py, zarr-python and zarrs.

    python bench/readers.py FOLDER                      # 20,000 cells x 62,710 genes
    python bench/readers.py FOLDER --threads 1 2 4 16

First the readers: million stored values per second (a value and its index) from row blocks of a
file in the page cache to CSR matrices in memory; the sum of all values checks completeness. "load"
is the step that writes the store of counts, from the formats in which plates come. "lib."
is AnnData's lazy reader on Dask's threads, which uses h5py or zarr-python. "zarrs" is zarr-python
with the codec pipeline of zarrs (``pip install zarrs``; "-" without it), which reads the values and
the indices of the same row blocks; it decodes in the threads given, for one caller or for two, and
the faster counts. Then the writers of the store of counts, with equal codecs, chunks and shards.
Then candidate codecs for that store: bytes per value, and million values per second that one core
encodes and decodes, for counts, indices and log-normalised values.
"""

from __future__ import annotations

import gzip
import os
import shutil
import statistics
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import anndata as ad
import dask
import h5py
import hdf5plugin
import numpy as np
import runner
import zarr
from numcodecs import Blosc, Zstd, blosc
from scipy import sparse
from workflow_run import make_plates
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ShardingCodec

from scatlas import blocks
from scatlas.io import load_plate, read_matrix
from scatlas.io.zarr_writer.sharded_array import (
    CHUNK_VALUES,
    COUNTS_CODEC,
    INDICES_CODEC,
    SHARD_VALUES,
    Compression,
    ShardedArray,
    encoding_pool,
)

warnings.filterwarnings("ignore")
TAHOE = 100_000  # values per chunk
ZARRS = [callers for callers in (1, 2) if find_spec("zarrs")]  # callers to try

Arrays = dict[str, np.ndarray]


def main() -> None:
    sizes = {"cells": 20_000, "genes": 62_710, "rounds": 5}
    parser = runner.parser(__doc__, folder="for files", **sizes)
    cores = len(os.sched_getaffinity(0))
    threads = sorted({1, 2, cores} & set(range(cores + 1)))
    parser.add_argument("--threads", type=int, nargs="+", default=threads)
    parser.add_argument("--layouts", default="", help="only those whose name has this text")
    args = parser.parse_args()
    (plate,) = make_plates(args.folder, 1, args.cells, args.genes)
    with h5py.File(plate) as file:
        x = {part: file["X"][part][:] for part in ("data", "indices", "indptr")}
    lines = runner.head("anndata", "h5py", "zarr", "hdf5plugin", "deflate")
    lines.append(f"# {args.cells:,} cells, {x['data'].size / 1e6:.1f} M values; M values/s")
    lines += readers(args, x, plate)
    lines += sources(args, x, plate)
    lines += writers(args, x)
    lines += codecs(x)
    runner.publish(lines, args.out)


def readers(args: Namespace, x: Arrays, plate: Path) -> list[str]:
    lines = [f"{'layout':<34}{'B/value':>8}{columns(args.threads)}"]
    for name, write in layouts(plate).items():
        if args.layouts not in name:
            continue
        path = args.folder / f"{name.replace(' ', '_')}{write[0]}"
        if not path.exists():
            shutil.copytree(plate, path) if plate.is_dir() else write[1](x, path)
        size = runner.size_of(path) / x["data"].size
        sides = {"lib.": [partial(rate, library, path, x)], "zarrs": []}
        if path.suffix == ".zarr":
            sides["zarrs"] = [partial(rate, zarrs_blocks(n), path, x) for n in ZARRS]
        sides["ours"] = [partial(rate, direct, path, x)]
        lines.append(f"{name:<34}{size:>8.2f}{side_by_side(args, sides)}")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def sources(args: Namespace, x: Arrays, plate: Path) -> list[str]:
    """Rates of `load_plate`, and of each format per that of h5ad with the same compression."""
    writers = {
        # Types, chunks and compression of Cell Ranger's files: the formats alone differ.
        "load h5ad gzip": ("load.h5ad", partial(write_h5ad, plate, CELL_RANGER)),
        "load 10x .h5": ("load.h5", write_10x),
        "load 10x .mtx.gz": ("load_mtx", write_mtx),
        "load loom": ("load.loom", write_loom),
    }
    lines = [
        f"\n{'step load':<34}" + "".join(f"{f'{n} threads':>12}{'ratio':>7}" for n in args.threads)
    ]
    paths = {}
    for name, (file, write) in writers.items():
        if args.layouts in name:
            paths[name] = args.folder / file
            if not paths[name].exists():
                write(x, paths[name])
    rates: dict[tuple[str, int], list[float]] = {}
    for n in args.threads:
        with dask.config.set(num_workers=n):
            for _ in range(args.rounds):  # in turn, because the speed of the machine varies
                for name, path in paths.items():
                    # Text takes minutes.
                    if len(rates.get((name, n), [])) < (1 if "mtx" in name else args.rounds):
                        rates.setdefault((name, n), []).append(load_rate(path, x))
    for name in paths:
        line = f"{name:<34}"
        for n in args.threads:
            own = statistics.median(rates[name, n])
            h5ad = statistics.median(rates.get(("load h5ad gzip", n), [own]))
            line += f"{own:>12.1f}{own / h5ad:>7.2f}"
        lines.append(line)
    return lines


def load_rate(path: Path, x: Arrays) -> float:
    start = time.perf_counter()
    facts = load_plate(path, path.with_name("loaded.zarr"), plate="bench", mt_prefix=None)
    seconds = time.perf_counter() - start
    assert facts["total_counts"] == x["data"].sum(dtype=np.float64), "the reader missed values"
    return x["data"].size / seconds / 1e6


class Layout(NamedTuple):
    """Types of values and indices, values per chunk (None: contiguous), and options of HDF5."""

    data: type
    indices: type
    chunk: int | None
    options: dict[str, object]


CELL_RANGER = Layout(
    np.int32, np.int64, 80_000, {"compression": "gzip", "compression_opts": 4, "shuffle": True}
)


def write_h5ad(plate: Path, layout: Layout, x: Arrays, path: Path) -> None:
    with h5py.File(plate) as source, h5py.File(path, "w") as file:
        for name in ("obs", "var"):
            source.copy(name, file)
        file.attrs.update(source.attrs)
        group = file.create_group("X")
        group.attrs.update(source["X"].attrs)
        write_values(x, layout, group)


def write_values(x: Arrays, layout: Layout, group: h5py.Group) -> None:
    group["indptr"] = x["indptr"].astype(np.int64)
    for part, dtype in (("data", layout.data), ("indices", layout.indices)):
        values = x[part].astype(dtype)
        chunks = layout.chunk and (min(layout.chunk, values.size),)
        group.create_dataset(part, data=values, chunks=chunks, **layout.options)


def write_10x(x: Arrays, path: Path) -> None:
    n_cells, n_genes = x["indptr"].size - 1, int(x["indices"].max()) + 1
    with h5py.File(path, "w") as file:
        matrix = file.create_group("matrix")
        write_values(x, CELL_RANGER, matrix)
        matrix["shape"] = np.array([n_genes, n_cells], np.int32)
        matrix["barcodes"] = np.array([f"{i:016}-1" for i in range(n_cells)], "S18")
        genes = [f"ENSG{i:011}" for i in range(n_genes)]
        lists = {"id": genes, "name": genes, "feature_type": ["Gene Expression"] * n_genes}
        for name, values in lists.items():
            matrix[f"features/{name}"] = np.array(values, "S")


def as_scipy(x: Arrays) -> sparse.csr_matrix:
    return sparse.csr_matrix((x["data"].astype(np.int32), x["indices"], x["indptr"]))


def write_mtx(x: Arrays, path: Path) -> None:
    counts = as_scipy(x)
    path.mkdir()
    cells = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    entries = np.column_stack([counts.indices + 1, cells + 1, counts.data])
    with gzip.open(path / "matrix.mtx.gz", "wt", compresslevel=1) as file:
        file.write("%%MatrixMarket matrix coordinate integer general\n%\n")
        file.write(f"{counts.shape[1]} {counts.shape[0]} {counts.nnz}\n")
        np.savetxt(file, entries, "%d")
    genes = [f"ENSG{i:011}\tG{i}\tGene Expression" for i in range(counts.shape[1])]
    barcodes = [f"{i:016}-1" for i in range(counts.shape[0])]
    for name, lines in (("features", genes), ("barcodes", barcodes)):
        (path / f"{name}.tsv.gz").write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))


def write_loom(x: Arrays, path: Path) -> None:
    """As loompy writes it: float32, chunks of 64 x 64."""
    counts = as_scipy(x)
    with h5py.File(path, "w") as file:
        matrix = file.create_dataset(
            "matrix", counts.shape[::-1], "f4", chunks=(64, 64), compression="gzip",
            compression_opts=2,
        )  # fmt: skip
        for first in range(0, counts.shape[0], 1024):
            matrix[:, first : first + 1024] = counts[first : first + 1024].T.toarray()
        file["row_attrs/Gene"] = [f"G{i}" for i in range(counts.shape[1])]
        file["col_attrs/CellID"] = [f"C{i}" for i in range(counts.shape[0])]


def columns(threads: list[int]) -> str:
    return "".join(
        f"{f'{n} threads: lib.':>18}{'zarrs':>7}{'ours':>7}{'ratio':>7}" for n in threads
    )


def side_by_side(args: Namespace, sides: dict[str, list[Callable[[], float]]]) -> str:
    """Median rate of each side's fastest setting, and ours per fastest other."""
    line = ""
    for n in args.threads:
        rates: dict[tuple[str, int], list[float]] = {}
        with (
            dask.config.set(num_workers=n, scheduler="threads"),
            zarr.config.set({"threading.max_workers": n}),
        ):
            for _ in range(args.rounds):  # in turn, because the speed of the machine varies
                for side, settings in sides.items():
                    for i, setting in enumerate(settings):
                        rates.setdefault((side, i), []).append(setting())
        best = dict.fromkeys(sides, 0.0)
        for (side, _), measured in rates.items():
            best[side] = max(best[side], statistics.median(measured))
        zarrs = f"{best['zarrs']:.0f}" if best["zarrs"] else "-"
        ratio = best["ours"] / max(best["lib."], best["zarrs"])
        line += f"{best['lib.']:>18.0f}{zarrs:>7}{best['ours']:>7.0f}{ratio:>7.1f}"
    return line


def rate(read: Callable[[Path], float], path: Path, x: Arrays) -> float:
    start = time.perf_counter()
    total = read(path)
    seconds = time.perf_counter() - start
    assert total == x["data"].sum(dtype=np.float64), "the reader missed values"
    return x["data"].size / seconds / 1e6


def direct(path: Path) -> float:
    x, _ = read_matrix(path)
    return sum(blocks.stream(x, lambda block: block.data.sum(dtype=np.float64)))


def library(path: Path) -> float:
    """Sum of X with AnnData's lazy reader, in blocks with as many cells as scatlas's."""
    rows = max(read_matrix(path)[0].chunks[0])
    opened = h5py.File(path) if path.suffix == ".h5ad" else zarr.open_group(path, mode="r")
    x = ad.experimental.read_elem_lazy(opened["X"], chunks=(rows, opened["X"].attrs["shape"][1]))
    sums = x.map_blocks(
        lambda block: np.array([[block.data.sum(dtype=np.float64)]]),
        chunks=((1,) * x.numblocks[0], (1,)),
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )
    total = sums.sum().compute()
    if path.suffix == ".h5ad":
        opened.close()
    return total


def zarrs_blocks(n_callers: int) -> Callable[[Path], float]:
    """Sum of X with zarrs, in blocks with as many cells as scatlas's."""

    def read(path: Path) -> float:
        bounds = np.append(0, np.cumsum(read_matrix(path)[0].chunks[0]))
        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            group = zarr.open_group(path, mode="r")["X"]
            data, indices, indptr = (group[part] for part in ("data", "indices", "indptr"))
        starts = indptr[:].astype(np.int64)
        n_genes = group.attrs["shape"][1]

        def block_sum(first: int, stop: int) -> float:
            values = slice(starts[first], starts[stop])
            arrays = (data[values], indices[values], starts[first : stop + 1] - starts[first])
            block = sparse.csr_matrix(arrays, shape=(stop - first, n_genes))
            return block.data.sum(dtype=np.float64)

        with ThreadPoolExecutor(n_callers) as pool:
            return sum(pool.map(block_sum, bounds[:-1], bounds[1:]))

    return read


def writers(args: Namespace, x: Arrays) -> list[str]:
    """Rates of writing the arrays of a store of counts."""
    arrays = {
        "data": (x["data"].astype(np.uint8), COUNTS_CODEC),
        "indices": (x["indices"].astype(np.int32), INDICES_CODEC),
    }
    write = {"lib.": library_array, "zarrs": zarrs_array, "ours": our_array}
    sides = {
        side: [partial(write_rate, write[side], arrays, args.folder / f"written_{i}.zarr")]
        for i, side in enumerate(write)
        if side != "zarrs" or ZARRS
    }
    line = f"{'counts.zarr (ours)':<42}{side_by_side(args, {'zarrs': []} | sides)}"
    return [f"\n{'written':<42}{columns(args.threads)}", line]


def write_rate(
    write: Callable[[Path, np.ndarray, Compression], None],
    arrays: dict[str, tuple[np.ndarray, Compression]],
    folder: Path,
) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    start = time.perf_counter()
    for part, (values, compression) in arrays.items():
        write(folder / part, values, compression)
    seconds = time.perf_counter() - start
    values, _ = arrays["data"]
    assert np.array_equal(zarr.open_array(folder / "data", mode="r")[:], values)
    return values.size / seconds / 1e6


def our_array(path: Path, values: np.ndarray, compression: Compression) -> None:
    with encoding_pool() as pool:
        array = ShardedArray(path, values.dtype, pool, compression=compression)
        array.append(values, copy=False)
        array.close()


def library_array(path: Path, values: np.ndarray, compression: Compression) -> None:
    codec = BloscCodec(cname="lz4", clevel=compression.level, shuffle=compression.shuffle)
    n_chunks = min(-(-values.size // CHUNK_VALUES), SHARD_VALUES // CHUNK_VALUES)
    sharding = ShardingCodec(
        chunk_shape=(CHUNK_VALUES,), codecs=[BytesCodec(), codec, Crc32cCodec()]
    )
    array = zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(n_chunks * CHUNK_VALUES,),
        serializer=sharding,
        compressors=None,
        filters=None,
    )
    array[:] = values


def zarrs_array(path: Path, values: np.ndarray, compression: Compression) -> None:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        library_array(path, values, compression)


def layouts(plate: Path) -> dict[str, tuple[str, Callable[[Arrays, Path], None]]]:
    """Suffix and writer of each layout."""

    def h5ad(chunk: int | None, index: type, **options: object):
        return ".h5ad", partial(write_h5ad, plate, Layout(np.float32, index, chunk, options))

    def zarr_store(sharded: bool):
        def write(x: Arrays, path: Path) -> None:
            adata = ad.read_h5ad(plate)
            with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=sharded):
                adata.write_zarr(path)

        return ".zarr", write

    def canonical(x: Arrays, path: Path) -> None:
        load_plate(plate, path, plate="bench")

    return {
        "h5ad gzip, Tahoe (100k, int64)": h5ad(TAHOE, np.int64, compression="gzip"),
        "h5ad gzip, AnnData (31k, int32)": h5ad(31_000, np.int32, compression="gzip"),
        "h5ad gzip, large chunks (10M)": h5ad(10_000_000, np.int32, compression="gzip"),
        "h5ad lzf": h5ad(TAHOE, np.int32, compression="lzf"),
        "h5ad zstd": h5ad(TAHOE, np.int32, **hdf5plugin.Zstd()),
        "h5ad blosc lz4": h5ad(TAHOE, np.int32, **hdf5plugin.Blosc("lz4")),
        "h5ad uncompressed, chunked": h5ad(31_000, np.int32),
        "h5ad uncompressed, contiguous": h5ad(None, np.int32),
        "zarr v3 as AnnData writes it": zarr_store(False),
        "zarr v3, AnnData's shards": zarr_store(True),
        "counts.zarr (ours)": (".zarr", canonical),
    }


def codecs(x: Arrays) -> list[str]:
    blosc.use_threads = False
    counts = x["data"].astype(np.uint8)
    kinds = {
        "counts uint8": counts,
        "counts uint16": counts.astype(np.uint16),
        "indices uint16": x["indices"].astype(np.uint16),
        "indices int32": x["indices"].astype(np.int32),
        "log1p float32": log_normalised(x),
    }
    choices = {
        "lz4 noshuffle 5": Blosc("lz4", 5, Blosc.NOSHUFFLE),
        "lz4 shuffle 5": Blosc("lz4", 5, Blosc.SHUFFLE),
        "lz4 bitshuffle 5": Blosc("lz4", 5, Blosc.BITSHUFFLE),
        "lz4 noshuffle 9": Blosc("lz4", 9, Blosc.NOSHUFFLE),
        "blosc zstd 1 bitshuffle": Blosc("zstd", 1, Blosc.BITSHUFFLE),
        "zstd 1": Zstd(1),
        "zstd 3": Zstd(3),
    }
    lines = [
        f"\n# codecs on one core, chunks of {CHUNK_VALUES:,} values in shards of {SHARD_VALUES:,}: "
        "B/value, M values/s encoded, decoded",
        f"{'':<26}" + "".join(f"{kind:>24}" for kind in kinds),
    ]
    for name, codec in choices.items():
        line = f"{name:<26}"
        for values in kinds.values():
            size, encode, decode = codec_rates(codec, values[: 40 * CHUNK_VALUES])
            line += f"{size:>10.2f}{encode:>7.0f}{decode:>7.0f}"
        lines.append(line)
    return lines


def log_normalised(x: Arrays) -> np.ndarray:
    ends = x["indptr"].astype(np.int64)
    totals = np.add.reduceat(x["data"], ends[:-1])
    scale = np.repeat(np.median(totals) / totals, np.diff(ends))
    return np.log1p(x["data"] * scale.astype(np.float32))


def codec_rates(codec: Blosc | Zstd, values: np.ndarray) -> tuple[float, float, float]:
    pieces = [values[i : i + CHUNK_VALUES] for i in range(0, values.size, CHUNK_VALUES)]
    out = np.empty(CHUNK_VALUES, values.dtype)
    encode, decode = [], []
    for _ in range(3):
        start = time.thread_time()
        encoded = [codec.encode(piece) for piece in pieces]
        encode.append(time.thread_time() - start)
        start = time.thread_time()
        for piece, raw in zip(pieces, encoded, strict=True):
            codec.decode(raw, out[: piece.size])
        decode.append(time.thread_time() - start)
    n = values.size / 1e6
    return sum(map(len, encoded)) / values.size, n / min(encode), n / min(decode)


if __name__ == "__main__":
    main()
