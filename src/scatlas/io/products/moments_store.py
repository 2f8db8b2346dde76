"""Moments that `load` takes of a plate's kept cells, ``moments.parquet``, which save `hvg` a pass.

The file is a cache: no result depends on whether it holds moments, so it is in no manifest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from scatlas.io.files.atomic import atomic_path
from scatlas.io.files.read_errors import reading
from scatlas.kernels.moments.shares import ShareMoments

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def cells_digest(rows: NDArray[np.int64], totals: NDArray[np.int64]) -> str:
    """BLAKE2b of the rows (in the plate, ascending) and totals of cells, 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for values in (rows, totals):
        digest.update(np.ascontiguousarray(values, "<i8").data)
    return digest.hexdigest()


def write_moments(path: Path | str, moments: ShareMoments | str, cells: str = "") -> None:
    """Write the moments of the cells with this :func:`cells_digest`, or why there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(moments, str):
        table, facts = pa.table({}), {"reason": moments}
    else:
        table, facts = pa.table(moments._asdict()), {"cells": cells}
    with atomic_path(path) as partial:
        pq.write_table(table.replace_schema_metadata(facts), partial, use_dictionary=False)


def read_moments(path: Path | str, cells: str, n_genes: int) -> ShareMoments | str:
    """Moments of exactly these cells, or the reason why the file does not hold them."""
    import pyarrow.parquet as pq

    with reading(str(path), "moments"), pq.ParquetFile(path) as file:
        facts = {key.decode(): value.decode() for key, value in file.schema_arrow.metadata.items()}
        if "reason" in facts:
            return facts["reason"]
        if facts["cells"] != cells or file.metadata.num_rows != n_genes:
            return "load took the moments for other cells, or other totals of the cells"
        table = file.read(use_threads=False)
        return ShareMoments(*(table[name].to_numpy() for name in ShareMoments._fields))
