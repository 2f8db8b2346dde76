"""Benchmark of chunks of a gzip h5ad, inflated by CPU threads or on the GPU by nvCOMP.

    python bench/gpu/inflate.py plate1.h5ad --threads 16 --out RESULT

Both begin with compressed chunks in host memory and end with numbers in GPU memory: libdeflate in
threads and a pinned copy of the numbers, or a pinned copy of the chunks and nvCOMP's DEFLATE.
nvCOMP decodes each chunk serially, so a call gets --batch chunks. Then the same chunks recompressed
with Zstandard (level 1), decoded by numcodecs and by nvCOMP. Only a measurement: ``load`` uses the
CPU. (counts.zarr uses Blosc's LZ4, which nvCOMP does not read.)
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cupy as cp
import deflate
import h5py
import numpy as np
from numcodecs import zstd
from nvidia import nvcomp

sys.path.append(str(Path(__file__).parents[1]))

import runner

if TYPE_CHECKING:
    from collections.abc import Callable

# Bytes of zlib around the raw DEFLATE stream that nvCOMP reads.
_HEADER, _TRAILER = 2, 4
_ALIGNED = 256  # bytes, as for separate allocations


def first_chunks(store: Path, array: h5py.Dataset, n_chunks: int) -> list[bytes]:
    """The first compressed chunks of an array, in order."""
    found: list[Any] = []
    array.id.chunk_iter(found.append)
    found.sort(key=lambda chunk: chunk.chunk_offset)
    file = os.open(store, os.O_RDONLY)
    chunks = [os.pread(file, chunk.size, chunk.byte_offset) for chunk in found[:n_chunks]]
    os.close(file)
    return chunks


def inflated(chunk: bytes, size: int) -> bytes:
    return deflate.zlib_decompress(chunk, size)


def pinned(n_bytes: int) -> np.ndarray:
    return np.frombuffer(cp.cuda.alloc_pinned_memory(n_bytes), np.uint8, n_bytes)


def by_cpu(
    chunks: list[bytes], size: int, decode: Callable[[bytes], Any], pool: ThreadPoolExecutor
) -> tuple[float, float]:
    """Seconds to decode all chunks into pinned memory, without and with the copy to the GPU."""
    host = pinned(len(chunks) * size)
    there = cp.empty(host.size, np.uint8)

    def decode_chunk(i: int) -> None:
        host[i * size : (i + 1) * size] = np.frombuffer(decode(chunks[i]), np.uint8)

    begin = time.perf_counter()
    list(pool.map(decode_chunk, range(len(chunks))))
    decoded = time.perf_counter() - begin
    there.set(host)
    cp.cuda.get_current_stream().synchronize()
    return decoded, time.perf_counter() - begin


def by_gpu(
    chunks: list[bytes], expected: np.ndarray, algorithm: str, batch: int, pool: ThreadPoolExecutor
) -> tuple[float, float]:
    """Seconds of nvCOMP, without and with the copy of the chunks to the GPU.

    Parameters
    ----------
    expected
        Decoded bytes of the first chunk.
    """
    codec = nvcomp.Codec(algorithm=algorithm, bitstream_kind=nvcomp.BitstreamKind.RAW)
    sizes = np.array([len(chunk) for chunk in chunks])
    starts = np.cumsum([0, *(-(-sizes // _ALIGNED) * _ALIGNED)])
    host = pinned(int(starts[-1]))
    there = cp.empty(host.size, np.uint8)
    decoding = 0.0

    def copy_chunk(i: int) -> None:
        host[starts[i] : starts[i] + sizes[i]] = np.frombuffer(chunks[i], np.uint8)

    begin = time.perf_counter()
    list(pool.map(copy_chunk, range(len(chunks))))
    there.set(host)
    parts = [there[a : a + n] for a, n in zip(starts[:-1], sizes, strict=True)]
    for start in range(0, len(chunks), batch):
        some = nvcomp.as_arrays(parts[start : start + batch])
        cp.cuda.Device().synchronize()
        call = time.perf_counter()
        out = codec.decode(some)
        cp.cuda.Device().synchronize()
        decoding += time.perf_counter() - call
        if start == 0:
            first = cp.asarray(out[0])
    whole = time.perf_counter() - begin
    same = np.array_equal(first.get().view(np.uint8).reshape(-1), expected)
    assert same, f"nvCOMP's {algorithm} gives other bytes"
    return decoding, whole


def main() -> None:
    parser = runner.parser(__doc__, threads=16)
    parser.add_argument("store", type=Path, help="gzip h5ad")
    parser.add_argument("--batch", type=int, default=4000, help="chunks per call of nvCOMP")
    parser.add_argument("--chunks", type=int, default=8000, help="maximum of chunks per array")
    args = parser.parse_args()
    lines = runner.head("cupy-cuda13x", "deflate", "numcodecs", "nvidia-nvcomp-cu13")
    lines.append(f"{'':<26}{'decoding':>10}{'GB/s':>8}{'to the GPU':>12}{'M values/s':>12}")
    with h5py.File(args.store) as file, ThreadPoolExecutor(args.threads) as pool:
        for name in ("data", "indices"):
            array = file["X"][name]
            gzip = first_chunks(args.store, array, args.chunks)
            n_values, size = array.chunks[0], array.chunks[0] * array.dtype.itemsize
            inflate = partial(inflated, size=size)
            facebook = list(pool.map(lambda c, f=inflate: zstd.compress(f(c), 1), gzip))
            raw = [chunk[_HEADER:-_TRAILER] for chunk in gzip]
            expected = np.frombuffer(inflate(gzip[0]), np.uint8)
            for algorithm, chunks in (("Deflate", raw), ("Zstd", facebook)):
                by_gpu(chunks[:64], expected, algorithm, 64, pool)  # set-up of a first call
            found = {
                f"gzip, {args.threads} threads": by_cpu(gzip, size, inflate, pool),
                "gzip, nvCOMP": by_gpu(raw, expected, "Deflate", args.batch, pool),
                f"zstd, {args.threads} threads": by_cpu(facebook, size, zstd.decompress, pool),
                "zstd, nvCOMP": by_gpu(facebook, expected, "Zstd", args.batch, pool),
            }
            for way, (decoding, whole) in found.items():
                rate = len(gzip) * size / decoding / 1e9
                lines.append(
                    f"{name + ' ' + way:<26}{decoding:>8.2f} s{rate:>8.1f}{whole:>10.2f} s"
                    f"{len(gzip) * n_values / whole / 1e6:>12.0f}"
                )
    runner.publish(lines, args.out)


if __name__ == "__main__":
    main()
