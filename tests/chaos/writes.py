"""Faults of single writes: compiles ``fail_writes.c`` and sets its environment variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fail_writes.c")
_STATE_BYTES = 16


def library(folder: Path) -> str:
    """Path of the shared library, compiled once per folder; empty without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return ""
    path = folder / "fail_writes.so"
    if not path.exists():
        own = path.with_suffix(f".{os.getpid()}")
        flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC"]
        subprocess.run([compiler, *flags, "-o", str(own), str(SOURCE), "-ldl"], check=True)
        own.replace(path)
    return str(path)


def environment(state: Path, kind: str, path: str, nth: int, root: str = "") -> dict[str, str]:
    """Environment of a run whose `nth` write to a result fails: see ``fail_writes.c``."""
    state.write_bytes(bytes(_STATE_BYTES))
    return {
        "CHAOS_FAULT": kind,
        "CHAOS_STATE": str(state),
        "CHAOS_PATH": f"results/{path}",
        "CHAOS_NTH": str(nth),
        "CHAOS_ROOT": root,
    }


def is_hit(state: Path) -> bool:
    return any(state.read_bytes()[8:])
