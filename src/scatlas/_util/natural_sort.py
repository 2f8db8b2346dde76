"""The order in which people count: ``plate9`` before ``plate10``."""

from __future__ import annotations

import re


def natural_sort_key(name: str) -> list[tuple[bool, int, str]]:
    """Sorting key that compares runs of digits as numbers."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
