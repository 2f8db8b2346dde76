"""Columns of a plate's obs that a key of the config names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas.errors import InputError
from scatlas.io import open_tables

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd


def read_columns(store: Path, plate: str, names: list[str], *, key: str) -> pd.DataFrame:
    """Columns of obs of a plate, without the cells' names; ``key`` of the config names them."""
    with open_tables(store) as (obs, _):
        for column in names:
            if column not in obs.columns:
                msg = (
                    f"plate {plate} has no obs column {column!r}, which {key} names; it has "
                    f"{', '.join(obs.columns)}"
                )
                raise InputError(msg)
        return obs.read(names, index=False)
