"""Arguments, step times and results shared by the sides of a comparison."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator


def parser(doc: str) -> argparse.ArgumentParser:
    """Arguments of each side from plates to X_pca, described by the first line of ``doc``."""
    made = argparse.ArgumentParser(description=doc.partition("\n")[0])
    made.add_argument("out", type=Path)
    made.add_argument("--plates", nargs="+", type=Path, required=True)
    made.add_argument("--top", type=int, default=2000, help="highly variable genes of a plate")
    made.add_argument("--comps", type=int, default=300)
    made.add_argument("--min-plates", type=int, default=3)
    return made


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the seconds of the body, and of its processor, as a JSON line for the benchmark."""
    start, cpu = time.perf_counter(), time.process_time()
    yield
    spent = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
    print(json.dumps({"step": name, **spent}), flush=True)


def write_result(out: Path, PCs: np.ndarray, **facts: object) -> None:
    """Write what a benchmark compares: the components, and cells, genes and variances."""
    (out / "result.json").write_text(json.dumps(facts))
    np.save(out / "PCs.npy", np.asarray(PCs))
