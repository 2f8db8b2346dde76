"""Stores of cells' coordinates: ``pca.zarr``, ``harmony.zarr``, ``map.zarr`` with the clusters; and
what the steps of the map hand on.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from scatlas import blocks
from scatlas.compute.threads import n_cores
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.local_zarr import open_rows
from scatlas.io.tables.column_writer import ColumnWriter, Target
from scatlas.io.zarr_writer.elements import (
    ARRAY,
    CSR,
    DICT,
    STRING_ARRAY,
    consolidate,
    coordinates,
    create_group,
    open_group_to_write,
    write_elem,
    write_params,
)
from scatlas.io.zarr_writer.sharded_array import (
    DENSE_CODEC,
    RAW_CODEC,
    ShardedArray,
    encoding_pool,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from scipy import sparse

_VALUES_AT_ONCE = 2**24
_READERS = 4  # ahead of the user of the blocks


class _Rows(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, rows: slice, /) -> Any: ...


class _Components(Protocol):
    mean: np.ndarray
    PCs: np.ndarray
    variance: np.ndarray
    variance_ratio: np.ndarray


def write_pca(
    path: Path | str,
    *,
    x_pca: Iterable[np.ndarray],
    n_cells: int,
    components: _Components,
    genes: Sequence[str],
    params: Mapping[str, bool | str],
) -> None:
    """Write components and the projected cells, block by block; atomic.

    The store is a mapping in AnnData's encoding (``anndata.io.read_elem`` reads it) of ``X_pca``
    (float32 [n_cells, n_comps], chunks of whole rows), ``PCs`` [n_genes, n_comps], ``mean``
    [n_genes], ``variance`` and ``variance_ratio`` [n_comps] (float64), ``genes`` and ``params``.

    Parameters
    ----------
    path
        Store to write.
    x_pca
        Blocks of projected cells in order, [rows, n_comps], which must not change afterwards; the
        bytes written do not depend on how many rows a block has.
    n_cells
        Rows of all blocks together.
    components
        Mean of the genes, loadings, variance of the components and its share of the whole.
    genes
        Names of the rows of ``PCs``.
    params
        What ``uns['pca']['params']`` will hold.

    Raises
    ------
    ValueError
        The blocks have more or fewer rows than ``n_cells``, or the genes do not fit.
    """
    n_genes, n_comps = components.PCs.shape
    if len(genes) != n_genes:
        raise ValueError(f"{len(genes)} gene names for loadings of {n_genes} genes")
    with atomic_path(path) as partial, encoding_pool() as pool:
        with coordinates(partial / "X_pca", n_comps, pool) as cells:
            for block in x_pca:
                cells.append(block, copy=False)
            if cells.n_rows != n_cells:
                raise ValueError(f"{cells.n_rows} cells were projected, {n_cells} are due")
        create_group(partial, DICT)
        for name in ("PCs", "mean", "variance", "variance_ratio"):
            _write_array(partial / name, np.asarray(getattr(components, name)), pool)
        with ShardedArray(partial / "genes", object, pool, attributes=STRING_ARRAY) as array:
            array.append(np.asarray(genes, dtype=object))
        write_params(partial / "params", params)
        consolidate(partial)


def write_embedding(
    path: Path | str,
    name: str,
    x: _Rows,
    *,
    tables: Mapping[str, np.ndarray] | None = None,
    params: Mapping[str, str] | None = None,
) -> None:
    """Write coordinates of cells, a piece at a time; atomic.

    The store is a mapping in AnnData's encoding of ``name`` (float32, chunks of whole rows) and, if
    there are ``tables``, of these and ``params`` in ``uns[name]``.

    Parameters
    ----------
    path
        Store to write.
    name
        What ``obsm`` will call it.
    x
        float32 [cells, dimensions]: an array, here or on a GPU, or what gives one for a slice.
    tables, params
        Small arrays and texts, by name.
    """
    n_cells, width = x.shape
    rows = max(1, _VALUES_AT_ONCE // width)
    with atomic_path(path) as partial, encoding_pool() as pool:
        with coordinates(partial / name, width, pool) as cells:
            for first in range(0, n_cells, rows):
                cells.append(blocks.on_host(x[first : first + rows]), copy=False)
        create_group(partial, DICT)
        if tables:
            folder = partial / "uns" / name
            for group in (folder.parent, folder):
                create_group(group, DICT)
            write_params(folder / "params", params or {})
            for key, table in tables.items():
                _write_array(folder / key, table, pool)
        consolidate(partial)


def component_blocks(
    path: Path | str, n_comps: int | None = None
) -> Iterator[tuple[int, np.ndarray]]:
    """First cell and float32 [rows, n_comps] of each piece of a store of :func:`write_pca`, of all
    components if ``n_comps`` is None.
    """
    array = open_rows(Path(path), "X_pca")
    n_cells, width = array.shape
    rows = max(1, _VALUES_AT_ONCE // width // array.chunks[0]) * array.chunks[0]
    starts = range(0, n_cells, rows)

    def read(part: int) -> tuple[int, np.ndarray]:
        first = starts[part]
        return first, array[first : first + rows][:, : width if n_comps is None else n_comps]

    yield from blocks.map_in_order(read, len(starts), workers=min(_READERS, n_cores()))


def write_parts(
    path: Path | str,
    *,
    obs: Mapping[str, pd.Categorical | np.ndarray] | None = None,
    obsm: Mapping[str, np.ndarray] | None = None,
    obsp: Mapping[str, sparse.csr_matrix] | None = None,
    uns: Mapping[str, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Write parts of an AnnData, as a mapping in its encoding with further attributes; atomic.
    ``obsm`` and ``obsp``, for the next step, are not compressed, and must not change meanwhile.
    """
    with atomic_path(path) as partial, encoding_pool() as pool:
        create_group(partial, {**DICT, **(attributes or {})})
        for name, elements in {"obs": obs, "obsm": obsm, "obsp": obsp}.items():
            if elements is not None:
                create_group(partial / name, DICT)
        for name, values in (obs or {}).items():
            target, codes = Target("number", values.dtype), values
            if isinstance(values, pd.Categorical):
                target = Target.categorical(np.asarray(values.categories, dtype=object))
                codes = values.codes
            with ColumnWriter(partial / "obs" / name, target, pool) as column:
                column.append(codes.astype(target.dtype))
        for name, values in (obsm or {}).items():
            _write_array(partial / "obsm" / name, values, pool, raw=True)
        for name, matrix in (obsp or {}).items():
            folder = partial / "obsp" / name
            create_group(folder, {**CSR, "shape": list(matrix.shape)})
            for part in ("data", "indices", "indptr"):
                _write_array(folder / part, getattr(matrix, part), pool, raw=True)
        if uns:
            write_elem(open_group_to_write(partial), "uns", dict(uns))
        consolidate(partial)


def _write_array(
    path: Path, values: np.ndarray, pool: ThreadPoolExecutor, *, raw: bool = False
) -> None:
    compression, row = RAW_CODEC if raw else DENSE_CODEC, values.shape[1:]
    with ShardedArray(
        path, values.dtype, pool, compression=compression, row_shape=row, attributes=ARRAY
    ) as array:
        array.append(np.ascontiguousarray(values), copy=False)


def write_map(
    path: Path | str,
    parts: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]],
    *,
    clusters: Sequence[str],
    uns: Mapping[str, Any],
) -> list[int]:
    """Write the map of all cells, part by part, as a mapping in AnnData's encoding; atomic.

    ``X_umap`` and further ``obs`` are float32; ``leiden`` in the parts are numbers of ``clusters``.
    Written are numbers by size, those of equal size in their order before. Returns the new number
    of each cluster.
    """
    parts = iter(parts)
    first = next(parts)
    others = [name for name in first[1] if name != "leiden"]
    targets = dict.fromkeys(first[1], Target("number", np.dtype(np.float32)))
    targets["leiden"] = Target.categorical(np.asarray(clusters, dtype=object))
    sizes = np.zeros(len(clusters), np.int64)
    with (
        atomic_path(path) as partial,
        encoding_pool() as pool,
        TemporaryFile(dir=partial.parent) as kept,
    ):
        for name in ("", "obs", "obsm"):
            create_group(partial / name, DICT)
        with ExitStack() as stack:
            cells = stack.enter_context(
                coordinates(partial / "obsm/X_umap", first[0].shape[1], pool)
            )
            columns = {
                name: stack.enter_context(ColumnWriter(partial / "obs" / name, target, pool))
                for name, target in targets.items()
            }
            for places, values in chain([first], parts):
                cells.append(places, copy=False)
                codes = values["leiden"].astype(targets["leiden"].dtype)
                kept.write(codes.tobytes())
                sizes += np.bincount(codes, minlength=sizes.size)
                for name in others:
                    columns[name].append(values[name].astype(np.float32))
            numbers = np.argsort(np.argsort(-sizes, kind="stable"))
            kept.seek(0)
            while part := kept.read(_VALUES_AT_ONCE):
                codes = np.frombuffer(part, targets["leiden"].dtype)
                columns["leiden"].append(numbers[codes].astype(codes.dtype))
        write_elem(open_group_to_write(partial), "uns", dict(uns))
        consolidate(partial)
    return numbers.tolist()
