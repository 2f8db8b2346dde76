"""obs and var of files that store them in another way than AnnData does."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scatlas.io.files.local_zarr import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    import pandas as pd


@dataclass(frozen=True)
class ConvertedTables:
    """Tables in a temporary store.

    Attributes
    ----------
    root
        Opened store with ``obs`` and ``var``.
    notices
        Sentences about what is left out or changed.
    """

    root: Any
    notices: list[str] = field(default_factory=list)


def convert_tables(
    stack: ExitStack, tables: Mapping[str, pd.DataFrame], notices: list[str]
) -> ConvertedTables:
    """Write tables by their keys into a temporary store, which ``stack`` removes."""
    from scatlas.io.tables.column_writer import write_frame
    from scatlas.io.zarr_writer.elements import create_group

    folder = Path(stack.enter_context(TemporaryDirectory(prefix="scatlas-")))
    for key, table in tables.items():
        create_group((folder / key).parent, {})
        write_frame(folder / key, table)
    return ConvertedTables(open_store(folder), notices)
