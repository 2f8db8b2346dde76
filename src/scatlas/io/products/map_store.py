"""``map.zarr``: the place and cluster of every cell, and the parts of it that the atlas takes."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from scatlas.io.files.atomic import atomic_path
from scatlas.io.tables.column_writer import ColumnWriter, Target
from scatlas.io.zarr_writer.elements import (
    ARRAY,
    DICT,
    consolidate,
    create_group,
    open_group_to_write,
    write_elem,
)
from scatlas.io.zarr_writer.sharded_array import PROJECTED_CODEC, ShardedArray, encoding_pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path


def write_map(
    path: Path | str,
    parts: Iterable[tuple[np.ndarray, Mapping[str, np.ndarray]]],
    *,
    clusters: Sequence[str],
    uns: Mapping[str, Any],
) -> None:
    """Write the map of all cells, part by part; atomic.

    The store is a mapping in AnnData's encoding of ``obsm`` with ``X_umap`` (float32, chunks of
    whole rows), ``obs`` with ``leiden`` (categorical, in the parts numbers of ``clusters``) and the
    other columns (float32), and ``uns``.
    """
    parts = iter(parts)
    first = next(parts)
    targets = dict.fromkeys(first[1], Target("number", np.dtype(np.float32)))
    targets["leiden"] = Target.categorical(np.asarray(clusters, dtype=object))
    with atomic_path(path) as partial, encoding_pool() as pool:
        for name in ("", "obs", "obsm"):
            create_group(partial / name, DICT)
        with ExitStack() as stack:
            cells = stack.enter_context(
                ShardedArray(
                    partial / "obsm/X_umap",
                    np.float32,
                    pool,
                    compression=PROJECTED_CODEC,
                    row_shape=first[0].shape[1:],
                    attributes=ARRAY,
                )
            )
            columns = {
                name: stack.enter_context(ColumnWriter(partial / "obs" / name, target, pool))
                for name, target in targets.items()
            }
            for places, values in chain([first], parts):
                cells.append(places, copy=False)
                for name, column in columns.items():
                    column.append(values[name].astype(targets[name].dtype))
        write_elem(open_group_to_write(partial), "uns", dict(uns))
        consolidate(partial)
