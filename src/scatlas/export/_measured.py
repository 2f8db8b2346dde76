"""Any measured gene in an export, and raw counts: from the counts of the plates beside an atlas."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from anndata.io import read_elem

from scatlas.errors import InputError
from scatlas.io.files.anndata_file import Store
from scatlas.io.files.atomic import work_folder
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.tables.column_writer import write_frame
from scatlas.io.zarr_writer.elements import DICT, create_group, open_group_to_write, write_elem
from scatlas.matrix.measured_genes import MeasuredGenes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Genes = Sequence[str] | str | None

# Readers want counts in float32, which holds all whole numbers up to this one.
_MAX_COUNT = 2**24


class Matrices(NamedTuple):
    """Elements of an export that depend on its genes."""

    store: Store  # which has X
    x: Any
    var: Any
    varm: Any  # None if the atlas has none
    counts: Any | None  # CSR, float32


@contextmanager
def matrices(
    store: Store, root: Any, out: Path, genes: Genes, block_budget: str | int, *, counts: bool
) -> Iterator[Matrices]:
    """Those of the atlas; with other genes or counts in temporary stores beside the output."""
    own = Matrices(store, root["X"], root["var"], root.get("varm"), None)
    if genes is None and not counts:
        yield own
        return
    measured = MeasuredGenes.beside(store.path)
    atlas = open_with_zarr_python(store.path)  # for anndata
    if genes is None:
        names = read_elem(atlas["var"]).index
    elif genes == "all":
        names = measured.genes
    else:
        names = pd.Index(measured.find([genes] if isinstance(genes, str) else genes, "--genes"))
    with work_folder(out.with_name(f"{out.name}.measured")) as work:
        counted = None
        if counts:
            _write(work / "counts", measured, names, block_budget, counts=True)
            counted = open_with_zarr_python(work / "counts")["X"]
        if genes is None:
            yield own._replace(counts=counted)
            return
        _write(work / "values", measured, names, block_budget, counts=False)
        create_group(work / "tables", DICT)
        write_frame(work / "tables/var", _var(atlas, measured, names))
        write_elem(open_group_to_write(work / "tables"), "varm", _varm(atlas, names))
        values, tables = (open_with_zarr_python(work / name) for name in ("values", "tables"))
        parts = values["X"], tables["var"], tables["varm"], counted
        yield Matrices(Store.find(work / "values"), *parts)


def _write(
    path: Path, measured: MeasuredGenes, genes: pd.Index, block_budget: str | int, *, counts: bool
) -> None:
    with CsrWriter(path, n_vars=genes.size, data_dtype=np.float32) as writer:
        for block in measured.blocks(genes, counts=counts, block_budget=block_budget):
            if counts and block.data.max(initial=0) > _MAX_COUNT:
                raise InputError(
                    f"{path.name}: a count is above {_MAX_COUNT:,}, which readers of such files "
                    "cannot hold: leave the counts out"
                )
            writer.append(block)


def _var(atlas: Any, measured: MeasuredGenes, genes: pd.Index) -> pd.DataFrame:
    """Facts of the atlas about its genes, gaps or False for others; texts and flags of the plates
    about all.
    """
    var = read_elem(atlas["var"])
    table = var.reindex(genes).rename_axis(var.index.name)
    of_plates = measured.annotation(var.columns).loc[genes]
    for name, column in var.items():
        values = of_plates.get(name, table[name])
        if column.dtype == bool:
            table[name] = values.astype("boolean").fillna(False).astype(bool)
        elif name in of_plates:
            table[name] = values
    return table


def _varm(atlas: Any, genes: pd.Index) -> dict[str, np.ndarray]:
    """Loadings of the atlas's genes; zeros for others, as scanpy has them for genes left out."""
    at = genes.get_indexer(read_elem(atlas["var"]).index)
    wide = {}
    for name in atlas.get("varm", ()):
        values = np.asarray(read_elem(atlas["varm"][name]))
        wide[name] = np.zeros((genes.size, *values.shape[1:]), values.dtype)
        wide[name][at[at >= 0]] = values[at >= 0]
    return wide
