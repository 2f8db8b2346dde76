"""The config of a run: its sections, what is wrong with it in words, and what follows from it."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def min_plates_of(entries: Iterable[int | str], n_plates: int) -> int:
    """Largest of some numbers and shares (``"10%"``) of ``n_plates`` plates, rounded up."""
    return max(
        entry if isinstance(entry, int) else ceil(Fraction(entry[:-1]) * n_plates / 100)
        for entry in entries
    )
