"""A new version of an atlas, with cells of new plates that were mapped onto it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.products.assemble_atlas import place
from scatlas.io.products.concat_plates import concat_on_disk
from scatlas.io.zarr_writer.elements import (
    ANNDATA,
    ARRAY,
    DICT,
    consolidate,
    create_group,
    open_group_to_write,
    write_elem,
)
from scatlas.io.zarr_writer.sharded_array import PROJECTED_CODEC, ShardedArray, encoding_pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)
_COORDINATES = ("X_pca", "X_umap")
_RECORD = "scatlas"
# What the name of the atlas is among the plates; no plate's name has a space.
_ATLAS = "the atlas"
_ROWS_AT_ONCE = 2**17


def extend(
    atlas: Path | str,
    plates: Mapping[str, Path | str],
    out: Path | str,
    *,
    record: Mapping[str, Any],
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Write the cells of an atlas and of new plates (stores of the rule ``map_plate``) as one
    atlas; atomic.

    Cells of the atlas come first and keep their names and values. ``obs`` has the columns of both,
    with gaps where cells lack one. ``var``, ``varm`` and ``uns`` are those of the atlas, but for
    ``uns['scatlas']``, which is ``record``. Returns ``n_cells``, ``n_cells_of_atlas``, ``n_genes``
    and ``renamed_cells``.
    """
    atlas, out = Path(atlas), Path(out)
    stores = {_ATLAS: atlas, **{name: Path(path) for name, path in plates.items()}}
    work = out.with_name(f".{out.name}.work")
    # A fixed name, so that the next run removes the files of a killed one.
    shutil.rmtree(work, ignore_errors=True)
    try:
        facts = concat_on_disk(
            stores,
            work,
            label=None,
            join="outer",
            keep_names=_ATLAS,
            block_budget=block_budget,
        )
        with atomic_path(out) as partial:
            place(work, partial, {"X": "X", "obs": "obs"})
            place(atlas, partial, {"var": "var", "varm": "varm"})
            notes = [f"uns/{path.name}" for path in (atlas / "uns").iterdir() if path.is_dir()]
            notes.remove(f"uns/{_RECORD}")
            place(atlas, partial, {name: name for name in notes})
            for name in _COORDINATES:
                _join_coordinates([*stores.values()], name, partial / "obsm" / name)
            _note_coordinates_left_out(atlas)
            create_group(partial, ANNDATA)
            for name in ("obsm", "uns"):
                create_group(partial / name, DICT)
            write_elem(open_group_to_write(partial / "uns"), _RECORD, dict(record))
            for name in ("layers", "obsp", "varp"):
                write_elem(open_group_to_write(partial), name, {})
            consolidate(partial)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return {
        "n_cells": facts["n_cells"],
        "n_cells_of_atlas": facts["plates"][_ATLAS]["n_cells"],
        "n_genes": facts["n_genes"],
        "renamed_cells": facts["renamed_cells"],
    }


def _join_coordinates(stores: Sequence[Path], name: str, folder: Path) -> None:
    parts = [open_with_zarr_python(store)[f"obsm/{name}"] for store in stores]
    with (
        encoding_pool() as pool,
        ShardedArray(
            folder,
            parts[0].dtype,
            pool,
            compression=PROJECTED_CODEC,
            row_shape=parts[0].shape[1:],
            attributes=ARRAY,
        ) as joined,
    ):
        for part in parts:
            for lo in range(0, part.shape[0], _ROWS_AT_ONCE):
                joined.append(part[lo : lo + _ROWS_AT_ONCE], copy=False)


def _note_coordinates_left_out(atlas: Path) -> None:
    others = [name for name in open_with_zarr_python(atlas)["obsm"] if name not in _COORDINATES]
    if others:
        logger.warning(
            "obsm[%s] of the atlas is left out: new cells have no such coordinates",
            ", ".join(map(repr, others)),
        )
