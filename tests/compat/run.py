"""Run scanpy's own tests with scatlas's functions in place of scanpy's.

    python -m tests.compat.run              every test of passes.txt must pass
    python -m tests.compat.run --update     run all, once with scanpy's functions and once with
                                            scatlas's; write the lists and docs/compatibility.md

The tests come from the source distribution of the installed scanpy, which pip fetches and checks by
the lock's hash; the repository has only the names of the tests. A test counts if it passes with
scanpy's own functions on the machine that updates the lists, and calls one of scatlas's.
`passes.txt` and `failures.txt` list all counted tests, `reasons.toml` the reasons of the failures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.compat import page
from tests.compat.migration import shared_functions
from tests.compat.page import FAILURES, HERE, PASSES

ROOT = HERE.parents[1]
LOCK = ROOT / "envs" / "test.lock.txt"
# Fetched files stay for the next run; `make clean` removes them.
CACHE = ROOT / ".pytest_cache" / "scanpy"
# Files of scanpy's suite that call functions of scatlas. (Tests of plots compare pictures of data
# from the network; `ingest` compiles UMAP for a minute and a half, only to use scatlas's graph.)
FILES = [
    *("aggregated", "backed", "clustering", "combat", "deprecations", "embedding"),
    *("highly_variable_genes", "neighbors_key_added", "normalization", "pca"),
    *("preprocessing", "preprocessing_distributed", "qc_metrics", "rank_genes_groups"),
    *("rank_genes_groups_logreg", "scaling", "score_genes", "scrublet"),
]


class UnavailableError(Exception):
    """The tests could not be fetched; the message gives the reason."""


def fetch() -> Path:
    """Folder of the installed scanpy's source distribution, fetched if missing."""
    wanted = version("scanpy")
    target = CACHE / f"scanpy-{wanted}"
    if target.is_dir():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        requirement = Path(folder) / "requirement.txt"
        requirement.write_text(_locked("scanpy", wanted))
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
        command += ["download", "--quiet", "--no-deps", "--no-binary", "scanpy"]
        command += ["--require-hashes", "--requirement", str(requirement), "--dest", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        archives = list(Path(folder).glob("scanpy-*.tar.gz"))
        if done.returncode or len(archives) != 1:
            last = (done.stderr.strip() or "pip says nothing").splitlines()[-1]
            raise UnavailableError(f"pip did not fetch the source of scanpy {wanted}: {last}")
        with tarfile.open(archives[0]) as archive:
            # Python 3.11.2 of Debian 12 has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(Path(folder) / "unpacked")
        (unpacked,) = (Path(folder) / "unpacked").iterdir()
        try:
            unpacked.rename(target)
        except OSError:  # another run was faster
            if not target.is_dir():
                raise
    return target


def _locked(name: str, wanted: str) -> str:
    """Lines of the lock, with all hashes, for this version of a package."""
    found = re.search(rf"^{name}==(\S+)(?:.*\\\n)+.*\n", LOCK.read_text(), re.MULTILINE)
    if found is None or found[1] != wanted:
        raise UnavailableError(
            f"no hash is known: envs/test.lock.txt does not hold {name} {wanted}"
        )
    return found[0]


def run(whose: str, tests: list[str] | None = None, *, workers: int = 2) -> dict[str, Any]:
    """Outcome of each test by its name (``test_pca.py::test_mask``), with the functions it called.

    Parameters
    ----------
    whose
        ``"scatlas"`` or ``"scanpy"``: whose functions the tests call.
    tests
        Names of the tests to run; all of `FILES` when left out.
    workers
        Processes.
    """
    suite = fetch()
    files = FILES
    with tempfile.TemporaryDirectory() as folder:
        results, only = Path(folder) / "results.json", Path(folder) / "only.json"
        # pytest inside pytest: drop the variables of the outer run.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
        environment |= {"SCATLAS_COMPAT": whose, "SCATLAS_COMPAT_RESULTS": str(results)}
        paths = [str(HERE), os.environ.get("PYTHONPATH")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if tests is not None:
            only.write_text(json.dumps(tests))
            environment["SCATLAS_COMPAT_ONLY"] = str(only)
            files = sorted({name.split(".py::")[0].removeprefix("test_") for name in tests})
        command = [sys.executable, "-m", "pytest", "-c", str(suite / "pyproject.toml")]
        # scanpy's configuration without its additions to the command line.
        command += ["--rootdir", str(suite), "-o", "addopts=", "-o", f"cache_dir={folder}/cache"]
        command += ["--import-mode=importlib", "-p", "testing.scanpy._pytest"]
        command += ["-p", "scanpy_substitutes", "-q"]
        command += ["-n", str(workers), "--dist", "loadfile"] if workers > 1 else []
        command += [str(suite / "tests" / f"test_{name}.py") for name in files]
        done = subprocess.run(
            command, cwd=suite, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1) or not results.exists():
            raise RuntimeError(f"scanpy's tests did not run:\n{done.stdout}\n{done.stderr}")
        outcomes = json.loads(results.read_text())
    return {name.removeprefix("tests/"): outcome for name, outcome in outcomes.items()}


def part() -> list[str]:
    """The first test of each file and each 24th after it: those of `make test`."""
    files = groupby(page.read(PASSES), key=lambda name: name.split("::")[0])
    return [name for _, names in files for name in [*names][::24]]


def check(names: list[str] | None = None, *, workers: int = 2) -> list[str]:
    """Tests of passes.txt, or these of them, that fail, with their errors."""
    recorded, installed = page.recorded_version(), version("scanpy")
    if recorded != installed:
        said = f"the lists are those of scanpy {recorded}, but {installed} is installed"
        return [f"{said}: run python -m tests.compat.run --update"]
    names = page.read(PASSES) if names is None else names
    outcomes = run("scatlas", names, workers=workers)
    lost = []
    for name in names:
        outcome = outcomes.get(name, {"outcome": "not found", "why": ""})
        if outcome["outcome"] != "passed":
            lost.append(f"{name}: {outcome['outcome']}: {outcome['why'][:300]}")
        elif not outcome["calls"]:
            lost.append(f"{name}: passes, but calls none of our functions any more")
    return lost


def update() -> list[str]:
    """Write the lists, and the page if each failure has a reason; return failures without one."""
    theirs, ours = run("scanpy"), run("scatlas")
    judged = {
        name: outcome
        for name, outcome in ours.items()
        if outcome["calls"] and theirs.get(name, {}).get("outcome") == "passed"
    }
    failures = {name for name, outcome in judged.items() if outcome["outcome"] != "passed"}
    _write(PASSES, set(judged) - failures, "pass with our functions")
    _write(FAILURES, failures, "fail with our functions; reasons.toml says why")
    silent = page.unexplained()
    if not silent:
        page.write()
    return [f"{name}: {judged[name]['why'][:300]}" for name in silent]


def _write(path: Path, names: set[str], what: str) -> None:
    head = f"# Tests of scanpy {version('scanpy')} that {what}.\n"
    head += "# Written by `python -m tests.compat.run --update`.\n"
    head += f"# Functions: {' '.join(sorted(shared_functions()))}\n"
    path.write_text(head + page.listed(names))


def main() -> int:
    """Check or update, depending on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="write the lists and the page")
    if parser.parse_args().update:
        faults, said = update(), "failures without a reason in reasons.toml"
    else:
        faults, said = check(), "tests that passed and do not now"
    if faults:
        sys.stderr.write("\n  ".join([f"{len(faults)} {said}:", *faults]) + "\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
