"""Cells and genes of files that store them in another way than AnnData does, as obs and var."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from scatlas.io.files.local_zarr import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    import numpy as np
    import pandas as pd


@dataclass(frozen=True)
class Tables:
    """Cells and genes of a file, and where its counts are."""

    root: Any  # opened store with obs and the table of the features
    key: str
    var: str = "var"
    format: Literal["csr", "transposed"] | None = None  # None if the attributes of the counts tell
    # Number of each column of the counts in var, int64, -1 for features that are no genes; None if
    # var has all features.
    gene_of_feature: np.ndarray | None = None
    notices: list[str] = field(default_factory=list)


def convert_tables(stack: ExitStack, tables: Mapping[str, pd.DataFrame]) -> Any:
    """Write tables by their keys into a temporary store, which ``stack`` removes; open it."""
    from scatlas.io.tables.column_writer import write_frame
    from scatlas.io.zarr_writer.elements import create_group

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="scatlas-")))
    for key, table in tables.items():
        create_group((folder / key).parent, {})
        write_frame(folder / key, table)
    return open_store(folder)
