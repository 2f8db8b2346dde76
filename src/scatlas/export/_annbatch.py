"""An atlas in random order, for training with annbatch."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from scatlas._util.numbers import parse_bytes
from scatlas.errors import InputError
from scatlas.export._files import check_new
from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.local_zarr import open_store
from scatlas.io.matrices.counts_source import open_counts
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.products.split_samples import split_matrix
from scatlas.io.zarr_writer.elements import consolidate, create_group

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)
# What annbatch 0.1 to 0.3 writes to a collection that is in random order, and the names in it.
_COLLECTION = {"encoding-type": "annbatch-preshuffled", "encoding-version": "0.1.0"}
_NAME = "dataset_{}"
# Cells per dataset, which are in memory at once: 200 MB of an atlas with 160 values per cell.
DATASET_CELLS = 2**17
# About 100 cells of an atlas: annbatch reads some hundred neighbouring cells at a time.
_CHUNK_VALUES = 2**14


def to_annbatch(
    atlas: Path | str,
    out: Path | str,
    *,
    seed: int = 0,
    dataset_cells: int = DATASET_CELLS,
    block_budget: str | int = "256MB",
) -> None:
    """Write the cells of an atlas in random order, as a collection that annbatch reads; atomic.

    Each cell goes to a random dataset, and the cells of a dataset are shuffled: every order of all
    cells is equally likely (Rao 1961; Sandelius 1962). X is read once, and uncompressed values are
    beside the output meanwhile, 6 to 8 bytes each. Neither memory nor threads change a byte.

    Memory: the budget, one dataset twice, and one column of ``obs``, of which the names take 100
    bytes per cell.

    Parameters
    ----------
    atlas
        AnnData file at a path or an address; X is sparse or dense.
    out
        Folder to write, with the stores ``dataset_0`` and so on, each with X (CSR), ``obs`` and
        ``var``: ``annbatch.DatasetCollection(out)`` opens it.
    seed
        Of the order.
    dataset_cells
        Cells per dataset, on average.
    block_budget
        Memory for the blocks in flight.

    Raises
    ------
    InputError
        The folder exists, or the atlas is damaged or has no cells.
    """
    out = Path(out)
    check_new(out)
    work = out.absolute().with_name(f".{out.name}.work")
    # A fixed name, so that the next run removes the files of a killed one.
    shutil.rmtree(work, ignore_errors=True)
    try:
        with open_counts(atlas) as source, atomic_path(out) as partial:
            n_cells = source.shape[0]
            if not n_cells:
                raise InputError(f"{atlas}: it has no cells: nothing can be exported")
            rng = np.random.default_rng(seed)
            n_datasets = -(-n_cells // dataset_cells)
            codes = (rng.random(n_cells) * n_datasets).astype(np.int32)
            folders = [work / str(i) for i in range(n_datasets)]
            split_matrix(source, folders, codes, parse_bytes(block_budget))
            sizes = np.bincount(codes, minlength=n_datasets)
            orders = [rng.permutation(size) for size in sizes]
            groups = np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes)[:-1])
            tables = [folder / "shuffled" for folder in folders]
            obs = source.table("obs").storable(logger.info, unique_names=False)
            shuffled = [group[order] for group, order in zip(groups, orders, strict=True)]
            obs.write_groups(tables, shuffled, all_categories=True)
            var = source.table("var").read()
            create_group(partial, _COLLECTION)
            filled = [i for i in range(n_datasets) if sizes[i]]
            for number, i in enumerate(filled):
                dataset = partial / _NAME.format(number)
                _write_dataset(folders[i], dataset, orders[i], tables[i], var)
                shutil.rmtree(folders[i])
            source.check_unchanged()
            consolidate(partial)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _write_dataset(part: Path, out: Path, order: np.ndarray, obs: Path, var: pd.DataFrame) -> None:
    """Write the cells of one part in this order, and the table of them at ``obs``."""

    def move_obs(folder: Path) -> None:
        shutil.move(obs, folder)

    x = open_store(part)["X"]
    shape = tuple(x.attrs["shape"])
    arrays = (x["data"][:], x["indices"][:].astype(np.int32), x["indptr"][:])
    shuffled = sparse.csr_matrix(arrays, shape=shape)[order]
    with CsrWriter(
        out,
        n_vars=shape[1],
        data_dtype=shuffled.dtype,
        obs=move_obs,
        var=var,
        n_values=shuffled.nnz,
        chunk_values=_CHUNK_VALUES,
    ) as writer:
        writer.append(shuffled)
