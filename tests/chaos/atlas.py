"""The small atlas that chaos damages, and the results of undisturbed runs of the same inputs."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory
from typing import NamedTuple

import anndata as ad
import numpy as np

from scatlas.datasets import simulate_plate, write_plate
from tests.chaos import writes
from tests.helpers.once import once
from tests.workflow import warm
from tests.workflow.runs import ROOT, VARYING, Project

# Every optional rule; few pictures, because they take the most time.
CONFIG = {
    "plates": "plates.tsv",
    "backend": "cpu",
    "qc": {"filter": "pass_filter == 'full'"},
    "doublets": {"expected_doublet_rate": 0.06},
    "hvg": {"n_top_genes": 100},
    "consensus": {"min_plates": 2},
    "pca": {"n_comps": 8},
    "subset": {"n_cells": 200},
    "pseudobulk": {"by": ["cell_line"]},
    "integrate": {"key": ["plate"], "max_iter_harmony": 3, "umap": False},
    "report": {"colors": ["leiden"]},
    "explore": {"page": False},
    "compute": {"block_budget": "16MB"},
}
SHEET = {"p1": "plates/p1.h5ad", "p2": "plates/p2.h5ad", "p3": "plates/p3.zarr"}
N_CELLS = {"p1": 120, "p2": 100, "p3": 110}
# Each column has files in eight stores.
OBS = ["pass_filter", "cell_line", "drug", "sublibrary", "mread_count"]
_ROOM = 10**9
# Temporary names of incomplete outputs, which are no results.
_HIDDEN = re.compile(r"(^|/)\.[^/]+\.(partial|old)(/|$)|\.refused$")


class Write(NamedTuple):
    """A write of the undisturbed build: its number, its file, and the manifest of its step."""

    path: str
    nth: int
    manifest: str


@dataclass(frozen=True)
class Reference:
    """Result of an undisturbed build: digests of its files, or its error."""

    files: dict[str, str]
    said: str


@dataclass(frozen=True)
class Atlas:
    """Finished atlas in a folder that all workers share: read only."""

    folder: Path

    @property
    def base(self) -> Project:
        return Project(self.folder / "base", dict(CONFIG))

    @property
    def plates(self) -> Path:
        """Other good and bad plates."""
        return self.folder / "plates"

    @cached_property
    def library(self) -> str:
        return writes.library(self.folder)

    def make(self) -> None:
        """Make plates, and the atlas of three of them with a trace of all writes."""
        with once(self.folder / "plates.done") as first:
            if first:
                make_plates(self.plates)
        with once(self.folder / "base.done") as first:
            if not first:
                return
            shutil.rmtree(self.base.folder)
            new = self.base
            new.write_plates(SHEET)
            for path in SHEET.values():
                copy(self.plates / Path(path).name, new.folder / path)
            trace = {"CHAOS_TRACE": str(self.folder / "trace")} if self.library else {}
            code, said = run(new, self.library, trace)
            assert code == 0, said[-6000:]
            # It is undisturbed, so that faults that change no input need no other build.
            files = outputs(new)
            for targets in ((), ("atlas",)):
                path = self._reference_path(new, targets)
                path.write_text(json.dumps({"files": files, "said": said}))
                path.with_suffix(".done").touch()

    @cached_property
    def writes(self) -> list[Write]:
        """Writes of each step to its outputs, in the undisturbed build."""
        owners = {}
        for record in self.base.results.rglob("runs/*.json"):
            manifest = record.parent.parent / record.name
            for output in json.loads(record.read_bytes())["outputs"]:
                path = Path(os.path.normpath(record.parent / output))
                owners[path.relative_to(self.base.results).as_posix()] = manifest
            for path in (manifest, record):
                owners[path.relative_to(self.base.results).as_posix()] = manifest
        seen: Counter[str] = Counter()
        found = []
        for line in (self.folder / "trace").read_text().splitlines():
            path = line.rpartition("results/")[2]
            seen[path] += 1
            final = re.sub(r"(^|/)\.([^/]+)\.partial", r"\1\2", path)
            manifest = next((owners[unit] for unit in lineage(final) if unit in owners), None)
            if manifest is not None and not path.startswith(("logs/", "benchmarks/")):
                name = manifest.relative_to(self.base.results).as_posix()
                found.append(Write(path, seen[path], name))
        return found

    def reference(self, project: Project, *targets: str, but: str | None = None) -> Reference:
        """Result of an undisturbed build of these targets of a project's inputs, built once.

        `but` is a section of the config to build without.
        """
        path = self._reference_path(project, targets, but)
        with once(path.with_suffix(".done")) as first:
            if first:
                with TemporaryDirectory(prefix="scatlas-chaos-", dir=scratch()) as folder:
                    files, said = self._build(project, Path(folder), targets, but)
                path.write_text(json.dumps({"files": files, "said": said}))
        return Reference(**json.loads(path.read_text()))

    def _reference_path(
        self, project: Project, targets: tuple[str, ...], but: str | None = None
    ) -> Path:
        inputs = digests(project.folder, but=("results", ".snakemake"))
        key = hashlib.sha256(json.dumps([inputs, targets, but]).encode()).hexdigest()[:24]
        path = self.folder / "references" / f"{key}.json"
        path.parent.mkdir(exist_ok=True)
        return path

    def _build(
        self, project: Project, folder: Path, targets: tuple[str, ...], but: str | None
    ) -> tuple[dict[str, str], str]:
        for item in project.folder.iterdir():
            if item.name not in ("results", ".snakemake"):
                copy(item, folder / item.name)
        new = Project(folder, {k: v for k, v in project.config.items() if k != but})
        code, said = run(new, self.library, {}, *targets)
        return {} if code else outputs(new), said


def scratch() -> Path | None:
    """Folder for many small files: in memory if there is space, else on disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and disk_usage(memory).free > _ROOM:
        return memory
    return None


def run(
    project: Project, library: str, environment: dict[str, str], *targets: str
) -> tuple[int, str]:
    """Run the workflow undisturbed; return exit code and output."""
    done = subprocess.run(
        [warm.python(library), *project.command(*targets)[1:]],
        env=warm.environment(library) | {"COLUMNS": "200"} | environment,
        cwd=ROOT, text=True, check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def copy(old: Path, new: Path) -> None:
    """Replace a path by a copy of a file, link or folder with its times."""
    remove(new)
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir() and not old.is_symlink():
        shutil.copytree(old, new, symlinks=True)
    else:
        shutil.copy2(old, new, follow_symlinks=False)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def lineage(path: str) -> list[str]:
    """A relative path and its folders, innermost first."""
    return [path, *map(str, Path(path).parents)][:-1]


def digests(folder: Path, but: tuple[str, ...] = ()) -> dict[str, str]:
    """Digest of each file, link or empty folder below a folder."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in but or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def outputs(project: Project) -> dict[str, str]:
    """Digests of the results that are the same in each undisturbed build."""
    found = {
        name: hashlib.sha256(data).hexdigest()
        for name, data in project.outputs().items()
        if not _HIDDEN.search(name)
    }
    for name in VARYING:
        path = project.results / name
        if path.is_file():
            text = path.read_bytes()
            found[name] = hashlib.sha256(_without_times(name, text)).hexdigest()
    return found


def _without_times(name: str, text: bytes) -> bytes:
    """The page without its table of times; of the file of times only the header."""
    if name.endswith(".html"):
        return re.sub(rb"<table\b(?:(?!</table>).)*>load<.*?</table>", b"", text, flags=re.DOTALL)
    return text.partition(b"\n")[0]


def code_digest() -> str:
    """Digest of the workflow, the package and the code of this small atlas."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
         "Snakefile", "workflow", "scripts", "src", "config", "profiles", "tests/chaos/atlas.py"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    whole = hashlib.sha256()
    for name in sorted(filter(None, listed.split("\0"))):
        path = ROOT / name
        whole.update(f"{name}\0".encode() + (path.read_bytes() if path.exists() else b""))
    return whole.hexdigest()[:12]


# --- plates ---------------------------------------------------------------------------------------


def make_plates(folder: Path) -> None:
    """Make the three plates, one more, others with the same names, and bad ones."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, (name, path) in enumerate(SHEET.items(), start=1):
        end = Path(path).suffix
        plate = simulated(number, N_CELLS[name])
        save(plate, folder / f"{name}{end}")
        save(simulated(number + 10, N_CELLS[name] - 7), folder / f"{name}-other{end}")
        one_more = plate.copy()
        one_more.X.data[one_more.X.indptr[5]] += 1
        save(one_more, folder / f"{name}-count{end}")
        relabelled = plate.copy()
        lines = relabelled.obs["cell_line"]
        relabelled.obs["cell_line"] = lines.cat.rename_categories(list(lines.cat.categories)[::-1])
        save(relabelled, folder / f"{name}-obs{end}")
        for kind, value in (("fractional", 1.5), ("negative", -1), ("nan", np.nan)):
            bad = plate.copy()
            bad.X = bad.X.astype(np.float32)
            bad.X.data[7] = value
            save(bad, folder / f"{name}-{kind}{end}")
    save(simulated(4, 90), folder / "p4.h5ad")
    save(simulated(5, 80, n_genes=310), folder / "p5.h5ad")


def simulated(number: int, n_cells: int, n_genes: int = 300) -> ad.AnnData:
    plate = simulate_plate(number, n_cells=n_cells, n_genes=n_genes, n_lines=3, n_drugs=2)
    plate.obs = plate.obs[OBS].copy()
    return plate


def save(plate: ad.AnnData, path: Path) -> None:
    if path.suffix == ".h5ad":
        write_plate(path, plate)
    else:
        # zarr-python and anndata announce changes.
        with warnings.catch_warnings(action="ignore"), ad.settings.override(zarr_write_format=3):
            plate.write_zarr(path)
