"""Arguments and step times shared by the sides of a comparison."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def parser(doc: str) -> argparse.ArgumentParser:
    """Arguments of each side from plates to X_pca, described by the first line of ``doc``."""
    made = argparse.ArgumentParser(description=doc.partition("\n")[0])
    made.add_argument("out", type=Path)
    made.add_argument("--plates", nargs="+", type=Path, required=True)
    made.add_argument("--comps", type=int, default=300)
    made.add_argument("--min-plates", type=int, default=3)
    return made


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the seconds of the body as a JSON line for the benchmark."""
    start = time.perf_counter()
    yield
    print(json.dumps({"step": name, "seconds": time.perf_counter() - start}), flush=True)
