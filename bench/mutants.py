"""Check that the tests find faults: plant each fault of a table and run the tests that must fail.

    python bench/mutants.py                      # all rows of tests/helpers/mutants.tsv
    python bench/mutants.py --rows 3 17      # some of them

Each row names a file below src/scatlas, a text that occurs once in it, the text in its place, what
breaks, and the tests (arguments of pytest). Works in a copy of the working tree. A test that fails
without the fault, too, is no catch. Ends with an error if a fault is not found.
"""

from __future__ import annotations

import argparse
import csv
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/helpers/mutants.tsv"
FAILED = 1  # pytest's exit code for tests that fail; another one means that they did not run


class Mutant(NamedTuple):
    """A row of the table."""

    number: int
    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]

    def source(self, root: Path) -> Path:
        """The file in a copy of the tree."""
        return root / "src/scatlas" / self.file

    def plant(self, root: Path) -> None:
        """Replace the text, which occurs once."""
        text = self.source(root).read_text()
        if text.count(self.old) != 1:
            sys.exit(f"row {self.number}: {self.file} has {text.count(self.old)} times: {self.old}")
        self.source(root).write_text(text.replace(self.old, self.new))


def read_table() -> list[Mutant]:
    """All rows; the first line names the columns."""
    with TABLE.open(newline="") as lines:
        _, *rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return [
        Mutant(i, file, old, new, breaks, shlex.split(tests))
        for i, (file, old, new, breaks, tests) in enumerate(rows, 1)
    ]


def copy_of_tree(folder: Path) -> None:
    """Copy the files of the working tree, tracked and new, and compiled kernels."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    files = [ROOT / name for name in filter(None, listed.decode().split("\0"))]
    for file in (*files, *ROOT.glob("src/scatlas/**/__pycache__/*.nbc")):
        if file.is_file():
            to = folder / file.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(file.read_bytes())


def run_tests(folder: Path, tests: list[str]) -> int:
    """Exit code of pytest, which stops at the first failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of rows; all when left out")
    args = parser.parse_args()
    chosen = [m for m in read_table() if args.rows is None or m.number in args.rows]
    missed, sound_codes = [], {}
    with tempfile.TemporaryDirectory(prefix="scatlas-mutants-") as name:
        folder = Path(name)
        copy_of_tree(folder)
        for mutant in chosen:
            begin = time.perf_counter()
            source = mutant.source(folder)
            sound = source.read_bytes()
            mutant.plant(folder)
            code = run_tests(folder, mutant.tests)
            source.write_bytes(sound)
            # Tests that fail without the fault, too, find nothing.
            key = tuple(mutant.tests)
            if code == FAILED and key not in sound_codes:
                sound_codes[key] = run_tests(folder, mutant.tests)
            caught = code == FAILED and sound_codes[key] == 0
            said = "caught" if caught else f"NOT caught (exit code {code})"
            seconds = time.perf_counter() - begin
            print(
                f"{mutant.number:>3} {said:<10} {seconds:>5.0f} s  {mutant.file}: {mutant.breaks}",
                flush=True,
            )
            missed += [] if caught else [mutant.number]
    if missed:
        sys.exit(f"{len(missed)} of {len(chosen)} faults are not found: rows {missed}")


if __name__ == "__main__":
    main()
