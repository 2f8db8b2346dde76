"""Numbers and the sample's points as text of a page: arrays of bytes, base 64 of "deflate-raw",
which browsers inflate without a library (``page/atlas.js`` reads them).
"""

from __future__ import annotations

import base64
import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.compute.threads import n_threads
from scatlas.matrix.map_pixels import SparseCounts, box_of, positions
from scatlas.workflow.sample import ATLAS_ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from scipy import sparse

    from scatlas.workflow.explore._cells import MapCells
    from scatlas.workflow.explore._choose import PageColumn

# Higher levels take ten times as long, for 4% fewer bytes.
_LEVEL = 6
# Points with genes, and their values, at most, before the size of the page decides.
_MAX_GENE_POINTS, _MAX_GENE_VALUES = 250_000, 75_000_000
# Largest share of what points take for the names of the cells; else the page has their rows.
_NAMES_SHARE = 0.4
_MAX_SHARED = 90  # letters, as one ASCII character holds
# Maps of integrated.h5ad that umap.h5ad lacks.
_SECOND_MAPS = {
    "X_umap_uncorrected": "UMAP before Harmony",
    "X_umap_harmony": "UMAP after Harmony",
}


def deflate(data: bytes | NDArray[np.uint8]) -> bytes:
    """Raw deflate stream of bytes."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(bytes(data)) + packer.flush()


def pack_json(value: Any) -> bytes:
    """JSON, deflated."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return deflate(text.encode("utf-8"))


def pack_codes(codes: NDArray[np.integer[Any]], n_codes: int) -> bytes:
    """Codes of categories: one byte each, or two planes of bytes, the high one first."""
    if n_codes <= 0xFF:
        return deflate(codes.astype(np.uint8))
    return pack_16_bit(codes.astype(np.uint16))


def pack_16_bit(*arrays: NDArray[np.uint16]) -> bytes:
    """Arrays of 16 bits as planes, which deflate better: high bytes, low bytes of each."""
    planes = [part for array in arrays for part in (array >> 8, array & 0xFF)]
    return deflate(np.concatenate(planes).astype(np.uint8))


def pack_counts(cells: SparseCounts) -> bytes:
    """Length, gaps of the keys and counts as variable-length integers (LEB128)."""
    gaps = np.diff(cells.keys, prepend=0)
    return deflate(varints(np.concatenate([[cells.keys.size], gaps, cells.counts])))


def varints(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Whole numbers from 0 in LEB128: seven bits per byte, the lowest first."""
    values = values.astype(np.uint64)
    n_bytes = np.ones(values.size, np.int64)
    for bits in range(7, 64, 7):
        n_bytes += values >= np.uint64(1) << np.uint64(bits)
    ends = np.cumsum(n_bytes)
    out = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
    starts = ends - n_bytes
    for i in range(int(n_bytes.max(initial=0))):
        has = n_bytes > i
        part = (values[has] >> np.uint64(7 * i)) & np.uint64(0x7F)
        more = np.where(n_bytes[has] > i + 1, 0x80, 0).astype(np.uint64)
        out[starts[has] + i] = part | more
    return out


def coarsen(cells: SparseCounts, side: int) -> SparseCounts:
    """Counts of pixels twice as wide."""
    level, pixel = np.divmod(cells.keys.astype(np.int32), side**2)
    row, column = np.divmod(pixel, side)
    half = side // 2
    keys = level * half**2 + row // 2 * half + column // 2
    dense = np.zeros(int(keys.max(initial=-1)) + 1, np.int64)
    np.add.at(dense, keys, cells.counts)
    used = np.flatnonzero(dense)
    return SparseCounts(used, dense[used])


def page_bytes(blocks: Mapping[str, bytes]) -> int:
    """Bytes of blocks on the page."""
    return sum(-(-len(data) // 3) * 4 + len(_tag(name)) for name, data in blocks.items())


def block_tags(blocks: Mapping[str, bytes]) -> str:
    """Elements of the page with the blocks, which browsers do not execute."""
    return "".join(
        _tag(name).replace("><", f">{base64.b64encode(data).decode('ascii')}<")
        for name, data in blocks.items()
    )


def _tag(name: str) -> str:
    return f'<script type="text/plain" id="block-{name}"></script>\n'


@dataclass(frozen=True)
class Points:
    """Points of the page, before they are thinned out."""

    sample: MapCells
    second: NDArray[np.floating] | None  # another map of the same cells
    columns: Sequence[PageColumn]

    def blocks(self, n_points: int, max_bytes: int) -> tuple[dict[str, bytes], NDArray[np.int64]]:
        """Blocks of as many points as fit into the bytes, and their rows in the sample."""
        n_cells = self.sample.n_cells
        n_points = min(n_points, n_cells)
        packed = self._packed()
        while True:
            # Evenly over the sample, whose rows are in the order of the atlas.
            rows = (np.arange(n_points) * n_cells) // max(n_points, 1)
            blocks = packed(rows)
            size = page_bytes(blocks)
            if size <= max_bytes or n_points < 2:
                return blocks, rows
            n_points = int(n_points * 0.97 * max_bytes / size)

    def _packed(self) -> Callable[[NDArray[np.int64]], dict[str, bytes]]:
        """Function that packs some rows."""
        maps = {"xy": _positions(self.sample.coordinates())}
        if self.second is not None:
            maps["xy-1"] = _positions(self.second)
        codes = [np.concatenate([*self.sample.codes(column)]) for column in self.columns]
        atlas_rows = self.sample.values(ATLAS_ROW)

        def packed(rows: NDArray[np.int64]) -> dict[str, bytes]:
            tasks = {name: partial(pack_16_bit, *xy[rows].T) for name, xy in maps.items()}
            for i, (column, values) in enumerate(zip(self.columns, codes, strict=True)):
                if column.kind == "category":
                    tasks[f"column-{i}"] = partial(pack_codes, values[rows], len(column.levels) + 1)
                else:
                    tasks[f"column-{i}"] = partial(deflate, values[rows].astype(np.uint8))
            names = "\n".join(str(name) for name in self.sample.names(rows))
            tasks["names"] = partial(deflate, names.encode("utf-8"))
            blocks = in_threads(tasks)
            if len(blocks["names"]) > _NAMES_SHARE * sum(map(len, blocks.values())):
                del blocks["names"]
                blocks["rows"] = deflate(varints(np.diff(atlas_rows[rows], prepend=0)))
            return blocks

        return packed


def gene_stride(n_points: int, n_genes: int) -> int:
    """Every which point has the genes."""
    most = min(_MAX_GENE_POINTS, _MAX_GENE_VALUES // max(n_genes, 1))
    return -(-n_points // most) or 1


def gene_blocks(
    points: sparse.csc_matrix, max_bytes: int
) -> tuple[dict[str, bytes], NDArray[np.float64], int]:
    """A block per gene of every n-th of some points, the value of each gene's highest code, and n;
    ``points`` is ``[n_points, n_genes]``.
    """
    values, highs = _quantised(points)
    step = 1
    while True:
        tasks = {f"gene-{i}": partial(deflate, row) for i, row in enumerate(values)}
        blocks = in_threads(tasks)
        size = page_bytes(blocks)
        if size <= max_bytes or values.shape[1] < 2:
            return blocks, highs, step
        fewer = max(2, int(np.ceil(size / max(max_bytes, 1))))
        values, step = np.ascontiguousarray(values[:, ::fewer]), step * fewer


def _quantised(points: sparse.csc_matrix) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Values of the genes as 0 (none) to 255, ``[n_genes, n_points]``, and the highest of each."""
    out = np.zeros(points.shape[::-1], np.uint8)
    highs = np.zeros(points.shape[1])
    for gene in range(points.shape[1]):
        lo, hi = points.indptr[gene], points.indptr[gene + 1]
        highs[gene] = points.data[lo:hi].max(initial=0)
        values = points.data[lo:hi] / (highs[gene] or 1)
        out[gene, points.indices[lo:hi]] = np.rint(1 + 254 * values.clip(0, 1))
    return out, highs


def pack_names(names: Iterable[str]) -> bytes:
    """Sorted names, each as a letter for the number of first letters that it shares with the one
    before (from ``#``: none), and the others: 60,000 names of genes take 130 kB.
    """
    packed, last = [], ""
    for name in sorted(names):
        shared = 0
        while shared < min(_MAX_SHARED, len(last)) and name[: shared + 1] == last[: shared + 1]:
            shared += 1
        packed.append(chr(ord("#") + shared) + name[shared:])
        last = name
    return pack_json(packed)


def _positions(xy: NDArray[np.floating]) -> NDArray[np.uint16]:
    return positions(xy, box_of(xy))


def in_threads(tasks: dict[str, Any]) -> dict[str, bytes]:
    """Results of the tasks by name, in their order; threads deflate side by side."""
    with ThreadPoolExecutor(n_threads()) as pool:
        return dict(zip(tasks, pool.map(lambda task: task(), tasks.values()), strict=True))


def second_map(sample: MapCells, other: MapCells | None) -> tuple[str, NDArray[np.floating]] | None:
    """Name and coordinates of the second map of another file, if it has the same cells."""
    key = next((key for key in _SECOND_MAPS if other and other.has_coordinates(key)), None)
    if other is None or key is None:
        return None
    ours, theirs = (cells.values(ATLAS_ROW) for cells in (sample, other))
    return (_SECOND_MAPS[key], other.coordinates(key=key)) if np.array_equal(ours, theirs) else None
