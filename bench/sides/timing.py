"""Seconds of a step, as the benchmarks read them."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the seconds that the body took as a JSON line."""
    start = time.perf_counter()
    yield
    print(json.dumps({"step": name, "seconds": time.perf_counter() - start}), flush=True)
