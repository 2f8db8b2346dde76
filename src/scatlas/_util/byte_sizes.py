"""Byte sizes as people write them; Dask's ``parse_bytes`` takes 0.4 s to import, for which each job
of the workflow would wait, and accepts negative sizes.
"""

from __future__ import annotations

import re

from scatlas.errors import ConfigError


def parse_bytes(size: str | int) -> int:
    """Bytes of a size in a config: ``"256MB"`` (10^6 bytes each), ``"1.5 GiB"`` (2^30), 100000."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(?:([kmgt])(i?))?b?\s*", str(size).lower())
    n_bytes = 0
    if match:
        power = " kmgt".index(match[2] or " ")
        n_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if n_bytes < 1:
        msg = f"a size of {size!r} is not understood: write a number and a unit, such as 256MB"
        raise ConfigError(msg)
    return n_bytes
