"""The counts of an atlas gene after gene, beside it (``by_gene.zarr``): one piece per plate, whose
files the copy links, or copies those of small plates; and single genes read from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas._util.operating_system import link_or_copy
from scatlas.columns import gene_positions, name_columns
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.atomic import atomic_path, work_folder
from scatlas.io.files.checksums import checksum
from scatlas.io.files.listing import filesystem
from scatlas.io.files.local_zarr import LocalArray, open_store
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.csr_writer import write_values
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.products.assemble_atlas import place
from scatlas.io.products.gene_major import write_csc
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.tables.table import Table
from scatlas.io.zarr_writer.elements import consolidate, create_group
from scatlas.io.zarr_writer.sharded_array import ShardedArray, encoding_pool
from scatlas.kernels.counts.transpose_cpu import copy_segments

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from numpy.typing import NDArray

# Name of the copy, beside the atlas.
NAME = "by_gene.zarr"
# Attribute of the copy: checksum of the atlas's X.
SOURCE_CHECKSUM = "checksum_of_source"
# Values per chunk: of a small plate, a reader of one gene decodes one or two chunks.
_CHUNK_VALUES = 2**14
_INDEX_CHUNK_VALUES = 2**14
# Requests at once to a store at an address, where each waits for the network.
_REQUESTS = 16
_NOT_MEASURED = -1
# Values of a plate that is copied, not linked: finding its few values of a gene would take longer
# than reading them. A plate beyond it has 30,000 cells or more.
_SMALL_VALUES = 2**26
# Values of small plates that are put together at once, in arrays below 32 MB, whose memory is used
# again; and those that are read at once from each, at least.
_VALUES_AT_ONCE, _VALUES_PER_READ = 2**23 - 2**19, 2**16


def write_piece(
    store: Path | str,
    out: Path | str,
    *,
    keep: NDArray[np.bool_],
    genes: Sequence[str] | None = None,
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Write the counts of a plate's kept cells gene after gene; atomic, in one pass.

    ``X`` is CSC, both arrays uint32: a plate with larger counts than others has the same layout.
    ``var`` has the names of the genes and the columns in which they may have another name.
    ``genes`` that the plate lacks are left out; None: all.
    """
    x, var = read_matrix(store, compact=True, block_budget=block_budget)
    var = var[name_columns(var)].astype(str)
    x = blocks.select_rows(x, keep)
    if genes is not None:
        found = gene_positions(var, genes, str(store))
        at = np.unique([i for i in found if i is not None]).astype(np.int64)
        x, var = blocks.select_genes(x, at), var.iloc[at]
    with atomic_path(Path(out)) as partial:
        n_values = write_csc(
            *(x, partial / "X"),
            dtype=np.uint32,
            width=np.uint32,
            chunk_values=_CHUNK_VALUES,
            block_budget=block_budget,
        )
        write_frame(partial / "var", var)
        create_group(partial, {})
        consolidate(partial)
    return {"n_cells": x.shape[0], "n_genes": len(var), "n_values": n_values}


def join_pieces(
    pieces: Mapping[str, Path | str], merged: Path | str, out: Path | str
) -> dict[str, Any]:
    """Write the copy of an atlas from the pieces of its plates; atomic.

    ``counts`` and ``cells`` (uint32) are one array each. The files of large plates are hard links
    to those of the pieces where the file system allows it, and each such plate begins with a new
    file; behind them are the values of small plates, gene after gene and plate after plate. Cells
    count from the first one of their plate. ``first`` and ``n`` (genes x plates, gene after gene)
    say where the values of a gene on a plate begin, -1 where the plate lacks it, and how many there
    are.
    ``size_factor`` is that of ``merged``, the plates' store of :func:`scatlas.io.concat_on_disk`.

    Raises
    ------
    InputError
        A piece is damaged, or has other cells than the plate in ``merged``.
    """
    merged, out = Path(merged), Path(out)
    opened = {plate: open_store(Path(path)) for plate, path in pieces.items()}
    plates = pd.DataFrame(
        {"n_cells": [root["X"].attrs["shape"][0] for root in opened.values()]}, index=[*opened]
    )
    n_cells = open_store(merged)["X"].attrs["shape"][0]
    if plates["n_cells"].sum() != n_cells:
        raise InputError(
            f"{merged} holds {n_cells:,} cells, the counts by gene of its plates "
            f"{plates['n_cells'].sum():,}: run the steps by_gene and concat_on_disk again"
        )
    tables = [Table.open(pieces[plate], root, "var").read() for plate, root in opened.items()]
    var = all_genes(tables)
    genes = [var.index.get_indexer(table.index) for table in tables]
    matrices = [root["X"] for root in opened.values()]
    first = np.full((len(var), len(plates)), _NOT_MEASURED)
    n_values = np.zeros(first.shape, np.uint32)
    n_files, small = 0, _small_plates(genes, matrices)
    with atomic_path(out) as partial:
        for i, (path, x) in enumerate(zip(pieces.values(), matrices, strict=True)):
            indptr = np.asarray(x["indptr"][:])
            first[genes[i], i] = n_files * x["data"].shards[0] + indptr[:-1]
            n_values[genes[i], i] = np.diff(indptr)
            if i not in small:
                n_files = _link(Path(path) / "X", partial, n_files)
        if small:
            with work_folder(partial / "X") as work:
                slots = _write_by_gene(work, [matrices[i] for i in small], n_values[:, small])
                slots += n_files * matrices[0]["data"].shards[0]
                first[:, small] = np.where(first[:, small] < 0, _NOT_MEASURED, slots)
                _link(work, partial, n_files)
        write_frame(partial / "var", var)
        write_frame(partial / "plates", plates)
        place(merged, partial, {"obs/size_factor": "size_factor"})
        with encoding_pool() as pool:
            for name, table in (("first", first), ("n", n_values)):
                with ShardedArray(
                    partial / name, table.dtype, pool, chunk_values=_INDEX_CHUNK_VALUES
                ) as array:
                    array.append(table.ravel())
        create_group(partial, {SOURCE_CHECKSUM: checksum(merged / "X")})
        consolidate(partial)
    return {
        "n_cells": n_cells,
        "n_genes": len(var),
        "n_values": int(n_values.sum(dtype=np.int64)),
        "n_genes_not_on_all_plates": int((first == _NOT_MEASURED).any(axis=1).sum()),
    }


def all_genes(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Genes of any plate, each with the names that it has on the first plate with it."""
    known = tables[0]
    for table in tables[1:]:
        if not table.index.equals(known.index):
            known = pd.concat([known, table[~table.index.isin(known.index)]])
    return known.fillna("")


def _small_plates(genes: Sequence[NDArray[np.int64]], matrices: Sequence[Any]) -> list[int]:
    """Numbers of the plates to copy: two or more small ones, with genes in the copy's order."""
    small = [
        i
        for i, (at, x) in enumerate(zip(genes, matrices, strict=True))
        if x["data"].shape[0] < _SMALL_VALUES and (np.diff(at) > 0).all()
    ]
    return small if len(small) > 1 else []


def _write_by_gene(
    folder: Path, matrices: Sequence[Any], n_values: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Write the values of plates as one matrix, gene after gene and plate after plate; returns the
    slot of the first of each gene and plate, as ``n_values`` [genes, plates] has their numbers.
    """
    slots = np.cumsum(n_values, dtype=np.int64).reshape(n_values.shape) - n_values
    # A new range begins with the first gene beyond each multiple of this number of values.
    cuts = np.flatnonzero(np.diff(slots[:, 0] // _VALUES_AT_ONCE)) + 1
    plates = [_Plate(x) for x in matrices]

    def joined_parts() -> Generator[tuple[NDArray[np.uint32], NDArray[np.uint32]]]:
        for begin, end in pairwise([0, *cuts, len(slots)]):
            n = n_values[begin:end].astype(np.int64)
            to = slots[begin:end] - slots[begin, 0]
            out = np.empty(int(n.sum()), np.uint32), np.empty(int(n.sum()), np.uint32)

            def copy(i: int, n: Any = n, to: Any = to, out: Any = out) -> None:
                plates[i].copy_genes(*(np.ascontiguousarray(t[:, i]) for t in (n, to)), *out)

            blocks.for_each(copy, range(len(plates)))
            yield out

    dtype = n_values.dtype
    write_values(
        folder, joined_parts(), int(n_values.sum(dtype=np.int64)), dtype, dtype, _CHUNK_VALUES
    )
    return slots


class _Plate:
    """The values of a plate, gene after gene, of which each chunk is decoded once."""

    def __init__(self, x: Any) -> None:
        self._arrays, self._n_read = (x["data"], x["indices"]), 0
        self._held = [np.empty(0, np.uint32)] * 2  # values and cells that were read and not copied

    def copy_genes(self, n: NDArray[np.int64], slots: NDArray[np.int64], *out: Any) -> None:
        """Copy the next genes, ``n`` values of each, to the arrays of all plates at their slots."""
        n_held, more = self._held[0].size, int(n.sum()) - self._held[0].size
        of_held = np.clip(n_held - (np.cumsum(n) - n), 0, n)
        copy_segments(*self._held, of_held, 0, slots, *out)
        if more <= 0:
            self._held = [part[n_held + more :] for part in self._held]
            return
        begin, end = self._n_read, self._n_read + max(more, _VALUES_PER_READ)
        self._n_read = end + -end % _CHUNK_VALUES
        parts = [np.asarray(array[begin : self._n_read]) for array in self._arrays]
        copy_segments(*parts, n - of_held, 0, slots + of_held, *out)
        self._held = [part[more:].copy() for part in parts]


def _link(x: Path, joined: Path, n_before: int) -> int:
    """Link the files of a matrix behind those of the joined one; the number of its files then."""
    for name, new_name in (("data", "counts"), ("indices", "cells")):
        document = json.loads((x / name / "zarr.json").read_bytes())
        (shard,) = document["chunk_grid"]["configuration"]["chunk_shape"]
        n_after = n_before + -(-document["shape"][0] // shard)
        files = joined / new_name / "c"
        files.mkdir(parents=True, exist_ok=True)
        for number in range(n_before, n_after):
            link_or_copy(x / name / "c" / str(number - n_before), files / str(number))
        document["shape"] = [n_after * shard]
        (joined / new_name / "zarr.json").write_text(
            json.dumps(document, indent=2), encoding="utf-8"
        )
    return n_after


class GeneCounts(NamedTuple):
    """Stored counts of a gene on some plates, and the numbers of their cells in the atlas."""

    counts: NDArray[np.uint32]
    cells: NDArray[np.int64]


@dataclass(frozen=True)
class GeneCopy:
    """A copy, opened."""

    path: str
    var: pd.DataFrame  # genes, with the columns in which they may have another name
    plates: pd.DataFrame  # n_cells of each
    is_of_x: bool  # whether the atlas has the X that was written with it
    _root: Any = field(repr=False)

    @property
    def n_cells(self) -> int:
        return int(self.plates["n_cells"].sum())

    @cached_property
    def size_factors(self) -> NDArray[np.float64]:
        with reading(self.path, "size_factor"):
            return np.asarray(self._root["size_factor"][:])

    @cached_property
    def _arrays(self) -> tuple[Any, Any, Any, Any]:
        return tuple(self._root[name] for name in ("counts", "cells", "first", "n"))

    def lacking(self, gene: int) -> list[str]:
        """Plates that do not measure the gene with this number."""
        return [*self.plates.index[self._ranges(gene)[0] == _NOT_MEASURED]]

    def _ranges(self, gene: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        _, _, first, n = self._arrays
        rows = slice(gene * len(self.plates), (gene + 1) * len(self.plates))
        return np.asarray(first[rows]), np.asarray(n[rows]).astype(np.int64)

    def read(self, gene: int) -> list[GeneCounts]:
        """Counts above zero of the gene with this number, in parts of whole plates."""
        counts, cells, _, _ = self._arrays
        first_cells = (np.cumsum(self.plates["n_cells"]) - self.plates["n_cells"]).to_numpy()
        workers = n_threads() if isinstance(counts, LocalArray) else _REQUESTS

        def read_run(plates: NDArray[np.int64]) -> GeneCounts:
            begin, lengths = int(first[plates[0]]), n[plates]
            values = slice(begin, begin + int(lengths.sum()))
            numbers = np.asarray(cells[values]).astype(np.int64)
            numbers += np.repeat(first_cells[plates], lengths)
            return GeneCounts(np.asarray(counts[values]), numbers)

        with reading(self.path, f"gene {self.var.index[gene]}"):
            first, n = self._ranges(gene)
            some = np.flatnonzero(n)
            some = some[np.argsort(first[some], kind="stable")]
            # Values of small plates are side by side.
            apart = first[some][1:] != (first + n)[some][:-1]
            runs = np.split(some, np.flatnonzero(apart) + 1) if len(some) else []
            return [*blocks.map_in_order(lambda i: read_run(runs[i]), len(runs), workers=workers)]


def find_gene_copy(atlas: Store) -> GeneCopy | str:
    """Open the copy beside an atlas, or say why there is none, as part of a sentence."""
    if atlas.kind != "zarr":
        return f"{atlas.path} is no Zarr store"
    if atlas.is_url:
        path = f"{atlas.path.rstrip('/').rpartition('/')[0]}/{NAME}"
    else:
        path = str(Path(atlas.path).absolute().parent / NAME)
    if not _is_store(path):
        return f"{path} does not exist"
    return _open(atlas, Store.find(path))


@lru_cache(maxsize=16)
def _open(atlas: Store, copy: Store) -> GeneCopy | str:
    """Open a copy after a check that it is of these cells; stamps of both change with the files.

    Equal size factors of all cells, float64, are those of equal cells in the same order.
    """
    with copy.open() as root, reading(copy.path, "the tables"):
        if "first" not in root:
            return f"{copy.path} is from an earlier version of scatlas"
        var, plates = (Table.open(copy.path, root, name).read() for name in ("var", "plates"))
        checksum_of_x = root.attrs[SOURCE_CHECKSUM]
    # Of a store at an address, the checksum would need a request for each chunk.
    is_of_x = atlas.is_url or checksum_of_x == checksum(Path(atlas.path) / "X")
    opened = GeneCopy(copy.path, var, plates, is_of_x, root)
    with atlas.open() as root, reading(atlas.path, "obs/size_factor"):
        n_cells = root["X"].attrs["shape"][0] if "X" in root else -1
        has_factors = "obs" in root and "size_factor" in root["obs"]
        is_same = n_cells == opened.n_cells and (
            np.array_equal(np.asarray(root["obs/size_factor"][:]), opened.size_factors)
            if has_factors
            else is_of_x
        )
    return opened if is_same else f"{copy.path} is of other cells"


def _is_store(path: str) -> bool:
    if "://" not in path:
        return Path(path, "zarr.json").is_file()
    files, inner = filesystem(path)
    with reading(path, "the address"):
        return bool(files.exists(f"{inner}/zarr.json"))
