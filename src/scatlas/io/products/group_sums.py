"""Sums by group in HDF5: of log-normalised values by plate, and of counts of several plates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from anndata.io import read_elem
from scipy import sparse

from scatlas import blocks
from scatlas.columns import among_genes, common_genes
from scatlas.io.files.atomic import atomic_path, work_folder
from scatlas.io.files.checksums import text_digest
from scatlas.io.files.hdf5_writing import create_hdf5, read_element, write_element
from scatlas.io.files.read_errors import reading
from scatlas.io.matrices.csr_writer import CsrWriter, index_dtype
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.products.concat_plates import concat_on_disk
from scatlas.io.tables.table import open_tables
from scatlas.kernels.moments.group_sums_cpu import Sums

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scatlas.columns import GeneRule

# Values per chunk of the h5ad file.
_CHUNK_VALUES = 2**16
_LAYERS = ("sums", "errors", "squares", "square_errors", "nonzero")


def merge_sums(
    stores: Mapping[str, Path | str],
    out: Path | str,
    *,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    genes: GeneRule = "same",
    block_budget: str | int = "256MB",
) -> dict[str, Any]:
    """Merge the sums of several plates, in memory that does not grow with them.

    Parameters
    ----------
    stores
        AnnData Zarr stores by plate, X as CSR and obs with one row per group; the result has the
        same order.
    out
        h5ad file to write, or a Zarr store, if it ends with ``.zarr``.
        :func:`scatlas.io.concat_on_disk` merges obs and var: obs gets the column ``plate`` and
        those of `labels`, and a name that occurs on several plates gets the suffix ``-{plate}``.
    labels
        As for :func:`scatlas.io.concat_on_disk`.
    genes
        ``"same"`` refuses plates with other genes; ``"intersect"`` takes the genes that all plates
        have, in the order of the first plate; ``"union"`` those of any plate, with zeros on the
        plates that lack a gene.
    block_budget
        Memory for the values in flight.

    Returns
    -------
    ``n_groups``, ``n_genes``, ``n_values``, and ``plates`` with the ``n_groups`` of each.

    Raises
    ------
    InputError
        As :func:`scatlas.io.concat_on_disk`.
    """
    out = Path(out)
    with work_folder(out) as work:
        if genes != "same":
            stores = _with_common_genes(stores, work, genes, block_budget)
        is_zarr = out.suffix == ".zarr"
        merged = out if is_zarr else work / "merged.zarr"
        facts = concat_on_disk(
            stores, merged, labels=labels, genes=genes, block_budget=block_budget
        )
        if not is_zarr:
            with atomic_path(out) as path:
                _to_h5ad(merged, path, index_dtype(facts["n_values"]), block_budget)
    return {
        "n_groups": facts["n_cells"],
        "n_genes": facts["n_genes"],
        "n_values": facts["n_values"],
        "plates": {plate: found["n_cells"] for plate, found in facts["plates"].items()},
    }


def _with_common_genes(
    stores: Mapping[str, Path | str], work: Path, genes: GeneRule, block_budget: str | int
) -> dict[str, Path | str]:
    """Stores with the genes that all plates have, or any."""
    found = {plate: read_matrix(path, block_budget=block_budget) for plate, path in stores.items()}
    common = common_genes([var.index for _, var in found.values()], genes)
    cut: dict[str, Path | str] = {}
    block: sparse.csr_matrix
    for plate, (x, var) in found.items():
        cut[plate] = work / f"{plate}.zarr"
        table = among_genes(var, common)
        at = var.index.get_indexer(common)
        own = blocks.select_genes(x, at[at >= 0])
        own = blocks.spread_genes(own, np.flatnonzero(at >= 0), len(common))
        with CsrWriter(cut[plate], n_vars=len(common), data_dtype=x.dtype, var=table) as writer:
            for block in blocks.stream(own):
                writer.append(block)
            with open_tables(stores[plate]) as (obs, _):
                writer.obs = obs.read()
    return cut


def _to_h5ad(store: Path, path: Path, width: np.dtype, block_budget: str | int) -> None:
    """Write obs, var and X of a Zarr store as h5ad, X one block at a time."""
    block: sparse.csr_matrix
    x, var = read_matrix(store, block_budget=block_budget)
    with open_tables(store) as (table, _):
        obs = table.read()
    empty = AnnData(X=sparse.csr_matrix(x.shape, dtype=x.dtype), obs=obs, var=var)
    empty.strings_to_categoricals()
    with create_hdf5(path) as file:
        # AnnData writes obs, var and an empty X, which is then filled.
        write_element(file, "/", empty)
        group, ends = file["X"], [np.zeros(1, dtype=np.int64)]
        for name, dtype in (("data", x.dtype), ("indices", width), ("indptr", width)):
            del group[name]
            size = {"shape": (0,), "maxshape": (None,), "chunks": (_CHUNK_VALUES,)}
            group.create_dataset(name, dtype=dtype, compression="gzip", shuffle=True, **size)
        for block in blocks.stream(x):
            _append(group["data"], block.data)
            _append(group["indices"], block.indices)
            ends.append(ends[-1][-1] + block.indptr[1:].astype(np.int64))
        _append(group["indptr"], np.concatenate(ends))


def _append(dataset: h5py.Dataset, values: np.ndarray) -> None:
    first = dataset.shape[0]
    dataset.resize(first + values.size, axis=0)
    dataset[first:] = values


class GroupSums(NamedTuple):
    """Sums of groups of cells, for one or several columns of obs."""

    groups: pd.DataFrame  # a row per group: by (name of the column), group and n_cells
    genes: pd.Index
    sums: Sums  # [n_groups, n_genes]
    plate_wise: tuple[str, ...] = ()  # columns with one value on each plate, and several in all


def write_group_sums(file: h5py.File, plate: str, found: GroupSums) -> None:
    """Write a plate's sums of real numbers: obs, and ``layers`` with an array for each. The names
    of equal genes are written once: they take as long as the sums.
    """
    layers = {name: getattr(found.sums, name) for name in _LAYERS}
    obs = found.groups.astype({"by": "category", "group": "category"})
    obs.index = obs.index.astype(str)
    write_element(file.require_group("plates"), plate, {"obs": obs, "layers": layers})
    names = found.genes.to_numpy(str)
    file[f"plates/{plate}"].attrs["genes"] = digest = text_digest(names.tobytes())
    if digest not in file.require_group("genes"):
        write_element(file["genes"], digest, names.astype(object))


def read_groups(
    path: Path | str, plate: str, known: dict[str, pd.Index]
) -> tuple[pd.DataFrame, pd.Index]:
    """Groups and genes of a plate in such a file, without the sums; ``known`` keeps the names of
    genes by their digest for the next plates.
    """
    with reading(str(path), "sums by group"), h5py.File(path) as file:
        of_plate = file[f"plates/{plate}"]
        groups, genes = read_elem(of_plate["obs"]), of_plate.attrs["genes"]
        if genes not in known:
            known[genes] = pd.Index(read_elem(file[f"genes/{genes}"]))
    text = {name: groups[name].astype(str) for name in ("by", "group")}
    return groups.assign(**text), known[genes]


def add_group_sums(
    path: Path | str, plate: str, rows: np.ndarray, genes: np.ndarray, total: Sums
) -> None:
    """Add a plate's sums to rows of ``total``, in place; ``genes`` are positions in it, or -1."""
    with reading(str(path), "sums by group"), h5py.File(path) as file:
        layers = file[f"plates/{plate}/layers"]
        part = Sums(False, *(_take(read_element(layers[name]), genes) for name in _LAYERS))
    total.add(rows, part)


def _take(values: np.ndarray, genes: np.ndarray) -> np.ndarray:
    if np.array_equal(genes, np.arange(values.shape[1])):
        return values
    taken: np.ndarray = values[:, genes]
    if (genes < 0).any():
        taken[:, genes < 0] = 0
    return taken
