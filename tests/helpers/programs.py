"""Programs of tests in new processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any


def run_program(program: str, *args: str, file: Path | None = None, **env: str) -> Any:
    """Last line of JSON of a program; its workers import it from ``file``."""
    source = textwrap.dedent(program)
    if file is not None:
        file.write_text(source)
    done = subprocess.run(
        [sys.executable, *(["-c", source] if file is None else [str(file)]), *args],
        env=os.environ | env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])
