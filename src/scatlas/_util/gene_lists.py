"""Gene names compared: plates that are to make one atlas must agree on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


class GeneDifference(NamedTuple):
    """The first place at which two lists of genes differ."""

    at: int
    """Position, from 0."""
    own: str | None
    """Gene there in the first list; None where the list has ended."""
    other: str | None
    """Gene there in the second list, likewise."""


def first_difference(own: pd.Index, other: pd.Index) -> GeneDifference | None:
    """Where two lists of gene names first differ in name, order or length; None if nowhere."""
    n = min(len(own), len(other))
    differing = np.flatnonzero(np.asarray(own[:n]) != np.asarray(other[:n]))
    if not differing.size and len(own) == len(other):
        return None
    at = int(differing[0]) if differing.size else n
    return GeneDifference(at, *(names[at] if at < len(names) else None for names in (own, other)))
