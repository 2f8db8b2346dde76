"""The atlas: one AnnData store, assembled from chunks that exist already, or extended by cells."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from anndata.io import read_elem

from scatlas._util.operating_system import link_or_copy
from scatlas.errors import InputError
from scatlas.io.files.atomic import atomic_path, work_folder
from scatlas.io.files.hdf5_writing import few_texts_to_categories
from scatlas.io.files.local_zarr import as_zarr_python, open_store, open_with_zarr_python
from scatlas.io.products.concat_plates import concat_on_disk
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.zarr_writer.elements import (
    DICT,
    coordinates,
    create_group,
    finish_store,
    open_group_to_write,
    write_elem,
)
from scatlas.io.zarr_writer.sharded_array import encoding_pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from scatlas.io.files.local_zarr import StoredArray, StoredGroup

logger = logging.getLogger(__name__)

# Where the atlas has the parts of `write_pca`'s store, as scanpy names them.
_OF_COMPONENTS = {
    "X_pca": "obsm/X_pca",
    "PCs": "varm/PCs",
    **{name: f"uns/pca/{name}" for name in ("params", "variance", "variance_ratio")},
}
_COORDINATES = ("X_pca", "X_pca_harmony", "X_umap")
_RECORD = "scatlas"
# What the name of the atlas is among the plates; no plate's name has a space.
_ATLAS = "the atlas"
_ROWS_AT_ONCE = 2**17


def assemble(
    merged: Path | str,
    pca: Path | str,
    out: Path | str,
    *,
    var: pd.DataFrame,
    obsm: Mapping[str, Path | str] | None = None,
    cell_map: Path | str | None = None,
    labels: Path | str | None = None,
    uns: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the atlas: X and obs of the merged plates with their components.

    The chunks of X, obs and components are hard links to those of ``merged`` and ``pca`` where the
    file system allows it, else copies, and a line in the log says why. Both stay valid whatever
    becomes of the other: a link keeps the data when ``merged`` is deleted, and scatlas replaces
    stores as a whole (new files, then a rename) and never writes into a file that exists. Only a
    program that changes chunks in place would change both.

    Parameters
    ----------
    merged
        Store of :func:`scatlas.io.concat_on_disk`.
    pca
        Store of :func:`scatlas.io.write_pca`, of the same cells and genes.
    out
        Store to write: ``X``, ``obs``, ``var``, ``varm['PCs']``, ``obsm['X_pca']`` and
        ``uns['pca']`` with ``params``, ``variance`` and ``variance_ratio``, as scanpy names them.
    var
        Facts about the genes, by name; those of ``merged`` are added to the genes' facts there.
    obsm
        By name, stores of :func:`scatlas.io.write_embedding` with further coordinates of the cells,
        and their ``uns``.
    cell_map
        Store of :func:`scatlas.io.products.embeddings.write_map`, whose ``obsm``, ``obs`` and
        ``uns`` the atlas gets. Columns of ``merged`` with the same names are left out.
    labels
        Store of :func:`scatlas.io.products.embeddings.write_parts` of these cells, whose ``obs``
        the atlas gets.
    uns
        Further small elements of ``uns``.

    Returns
    -------
    ``n_cells``, ``n_genes``, ``n_comps``.

    Raises
    ------
    InputError
        The components or coordinates are not of these cells and genes, or ``var`` lacks a gene.
    """
    merged, pca = Path(merged), Path(pca)
    source = open_with_zarr_python(merged)
    found = open_with_zarr_python(pca)
    n_cells = source["X"].attrs["shape"][0]
    facts = _gene_facts(merged, read_elem(source["var"]), var)
    _check(merged, pca, n_cells, facts.index, found)
    for name, store in (obsm or {}).items():
        _check_cells(merged, Path(store), n_cells, open_with_zarr_python(store)[name])
    if cell_map is not None:
        mapped = open_with_zarr_python(cell_map)["obsm/X_umap"]
        _check_cells(merged, Path(cell_map), n_cells, mapped)

    with atomic_path(out) as partial:
        place(merged, partial, {"X": "X", "obs": "obs"})
        place(pca, partial, _OF_COMPONENTS)
        for name, store in (obsm or {}).items():
            place(Path(store), partial, {name: f"obsm/{name}", "uns": "uns"})
        write_frame(partial / "var", facts)
        create_group(partial / "uns", DICT)
        create_group(partial / "uns/pca", DICT)
        for columns in (cell_map, labels):
            if columns is not None:
                _place_map(Path(columns), partial)
        notes = open_group_to_write(partial / "uns")  # anndata 0.13 refuses a path as a key
        for name, elem in (uns or {}).items():
            write_elem(notes, name, elem)
        finish_store(partial)
    return {"n_cells": n_cells, "n_genes": len(facts), "n_comps": found["PCs"].shape[1]}


def parts_of_genes(merged: Path, pca: Path, var: pd.DataFrame) -> dict[str, Any]:
    """``var``, ``varm`` and ``uns`` of the atlas that `assemble` makes of the same stores."""
    source, found = open_store(merged), open_with_zarr_python(pca)
    facts = _gene_facts(merged, read_elem(as_zarr_python(source["var"])), var)
    _check(merged, pca, source["X"].attrs["shape"][0], facts.index, found)
    few_texts_to_categories(facts)
    uns = {name: read_elem(found[name]) for name in ("params", "variance", "variance_ratio")}
    return {"var": facts, "varm": {"PCs": read_elem(found["PCs"])}, "uns": {"pca": uns}}


def _gene_facts(merged: Path, facts: pd.DataFrame, var: pd.DataFrame) -> pd.DataFrame:
    """Facts about the genes of a store, and those of ``var``, which come first."""
    missing = facts.index.difference(var.index)
    if len(missing):
        raise InputError(f"{merged}: gene {missing[0]!r} is not in the table of consensus genes")
    return facts.drop(columns=facts.columns.intersection(var.columns)).join(var.loc[facts.index])


def _place_map(cell_map: Path, atlas: Path) -> None:
    attributes = dict(open_with_zarr_python(atlas / "obs").attrs)
    names = [path.name for path in sorted((cell_map / "obs").iterdir()) if path.is_dir()]
    for name in names:
        if (atlas / "obs" / name).exists():
            logger.info("obs[%r] of the plates gives way to that of the map", name)
            shutil.rmtree(atlas / "obs" / name)
    old = [name for name in attributes["column-order"] if name not in names]
    attributes["column-order"] = [*old, *names]
    create_group(atlas / "obs", attributes)
    elements = [
        path.relative_to(cell_map).as_posix()
        for key in ("obs", "obsm", "uns")
        for path in sorted((cell_map / key).glob("*/"))
    ]
    place(cell_map, atlas, {name: name for name in elements})


def _check_cells(merged: Path, store: Path, n_cells: int, cells: StoredArray) -> None:
    if cells.shape[0] != n_cells:
        n = cells.shape[0]
        msg = f"{store} holds {n:,} cells, {merged} {n_cells:,}: compute the components again"
        raise InputError(msg)


def _check(merged: Path, pca: Path, n_cells: int, genes: pd.Index, found: StoredGroup) -> None:
    _check_cells(merged, pca, n_cells, found["X_pca"])
    names = np.asarray(read_elem(found["genes"]))
    if len(names) != len(genes) or (names != np.asarray(genes)).any():
        raise InputError(f"{pca} is of other genes than {merged}: compute the components again")


def place(store: Path, out: Path, parts: Mapping[str, str]) -> None:
    """Put parts of a store, by their old and new names, into another: linked, metadata copied."""
    can_link = True
    for name, new_name in parts.items():
        for file in sorted((store / name).rglob("*")):
            if not file.is_file():
                continue
            here = out / new_name / file.relative_to(store / name)
            here.parent.mkdir(parents=True, exist_ok=True)
            if file.name == "zarr.json":
                # New metadata may replace it: a link would change both.
                if not here.exists():
                    shutil.copyfile(file, here)
            elif reason := link_or_copy(file, here, can_link=can_link):
                if can_link:
                    logger.info("%s: chunks are copied, not linked: %s", store, reason)
                can_link = False


def extend(
    atlas: Path | str,
    plates: Mapping[str, Path | str],
    out: Path | str,
    *,
    record: Mapping[str, Any],
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Write an atlas and new plates (stores of the rule ``map_plate``) as one atlas; atomic.

    Cells of the atlas come first and keep their names and values. ``obs`` has the columns of both;
    ``var``, ``varm`` and ``uns`` are the atlas's, but for ``uns['scatlas']``, the ``record``.
    """
    atlas, out = Path(atlas), Path(out)
    stores = {_ATLAS: atlas, **{name: Path(path) for name, path in plates.items()}}
    with work_folder(out) as work:
        facts = concat_on_disk(
            stores, work, label=None, join="outer", keep_names=_ATLAS, block_budget=block_budget
        )
        with atomic_path(out) as partial:
            place(work, partial, {"X": "X", "obs": "obs"})
            place(atlas, partial, {"var": "var", "varm": "varm"})
            notes = [f"uns/{path.name}" for path in (atlas / "uns").iterdir() if path.is_dir()]
            notes.remove(f"uns/{_RECORD}")
            place(atlas, partial, {name: name for name in notes})
            obsm = [open_with_zarr_python(store)["obsm"] for store in stores.values()]
            there = [name for name in _COORDINATES if all(name in of for of in obsm)]
            for name in there:
                _join_coordinates([*stores.values()], name, partial / "obsm" / name)
            others = [name for name in obsm[0] if name not in there]
            if others:
                logger.warning(
                    "obsm[%s] of the atlas is left out: new cells have no such coordinates",
                    ", ".join(map(repr, others)),
                )
            create_group(partial / "uns", DICT)
            write_elem(open_group_to_write(partial / "uns"), _RECORD, dict(record))
            finish_store(partial)
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
        coordinates(folder, parts[0].shape[1], pool, parts[0].dtype) as joined,
    ):
        for part in parts:
            for lo in range(0, part.shape[0], _ROWS_AT_ONCE):
                joined.append(part[lo : lo + _ROWS_AT_ONCE], copy=False)
