"""Run the workflow in a new folder, and list the jobs that ran."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.workflow import warm

ROOT = Path(__file__).parents[2]
# Files that differ from run to run: run times, logs, and the page that shows both.
VARYING = ("logs", "benchmarks", "report.html", "tables/runs.tsv")


@dataclass
class Project:
    """Folder with a config and a plate sheet, like a user's."""

    folder: Path
    config: dict
    cold: bool = False  # each process starts as for a user, which takes three times as long

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_config()

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def write_config(self) -> None:
        text, path = yaml.safe_dump(self.config), self.folder / "my.yaml"
        # Other workers may read a shared project: do not truncate its files.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)

    def write_plates(self, plates: dict[str, Path | str]) -> None:
        """Write the plate sheet: each plate with its path and a label, its donor."""
        rows = [f"{name}\t{path}\tdonor of {name}" for name, path in plates.items()]
        (self.folder / "plates.tsv").write_text("\n".join(["plate\tpath\tdonor", *rows, ""]))

    def command(self, *targets: str, cores: int = 2) -> list[str]:
        return [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
            *("--directory", str(self.folder), "--configfile", str(self.folder / "my.yaml")),
            *("--cores", str(cores), "--retries", "0", "--nocolor", *targets),
        ]

    def run(self, *targets: str, cores: int = 2) -> subprocess.CompletedProcess[str]:
        return run_python(*self.command(*targets, cores=cores)[1:], cold=self.cold)

    def change(self, **config: Any) -> None:
        """Write a config with other values of these keys."""
        self.config |= config
        self.write_config()

    def planned(self, *targets: str) -> set[str]:
        """Rules with jobs in a dry run."""
        said = self.run("-n", "--quiet", "progress", *targets).stdout
        return set(re.findall(r"^(\w+) +\d+ ", said, re.MULTILINE)) - {"all"}

    def build(self, *targets: str, cores: int = 2) -> set[str]:
        """Run, expect success, and return the names of the jobs that ran: ``load/p1``, ``pca``."""
        before = self.records()
        done = self.run(*targets, cores=cores)
        assert done.returncode == 0, done.stdout[-6000:]
        after = self.records()
        return {name for name, stamp in after.items() if before.get(name) != stamp}

    def records(self) -> dict[str, tuple[str, float]]:
        """End and seconds of each job that has run."""
        folder = self.results / "manifests"
        records = {path: json.loads(path.read_bytes()) for path in folder.rglob("runs/*.json")}
        return {
            (path.parent.parent / path.stem).relative_to(folder).as_posix(): (
                record["finished"],
                record["seconds"],
            )
            for path, record in records.items()
        }

    def copied(self, folder: Path) -> Project:
        """Copy of the project with Snakemake's records, which a test may change."""
        # Keeps times, but not the hard links between stores.
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Project(folder, dict(self.config), self.cold)

    def outputs(self) -> dict[str, bytes]:
        """Contents of all results that must be the same in each run."""
        return {
            name: path.read_bytes()
            for path in sorted(self.results.rglob("*"))
            if path.is_file()
            and "/runs/" not in (name := path.relative_to(self.results).as_posix())
            and not name.startswith(VARYING)
        }


def run_python(
    *words: str | Path, cwd: Path = ROOT, cold: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run Python, warm unless ``cold``, with what it prints in one text."""
    python, env = (sys.executable, os.environ) if cold else (warm.python(), warm.environment())
    return subprocess.run(
        [python, *words], cwd=cwd, env=env | {"COLUMNS": "200"} | variables, text=True,
        check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def errors(said: str) -> set[str]:
    """Sentences of all jobs that failed.

    Jobs and Snakemake write to one terminal: a sentence may follow other words on its line.
    """
    return {line.partition("error: ")[2].strip() for line in said.splitlines() if "error: " in line}


def assert_same_outputs(a: dict[str, bytes], b: dict[str, bytes]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []
