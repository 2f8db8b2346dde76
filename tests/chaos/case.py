"""One fault: a copy of the finished atlas, runs of a user, and the check of the result."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.chaos.atlas import Atlas, outputs, remove
from tests.workflow import warm
from tests.workflow.runs import ROOT, Project

RUNS = 3
_SECONDS = 300  # no run of this small atlas takes longer, even on a busy machine
# Results for users; an atlas is complete without the others.
_PRODUCTS = ("atlas.zarr", "umap.h5ad", "integrated.h5ad", "pseudobulk.h5ad", "report.html")
_PRODUCTS += ("consensus_genes.tsv", "markers.h5ad", "manifests/", "figures/", "tables/")
# Results that `snakemake atlas` does not make.
_BEYOND_ATLAS = re.compile(
    r"(umap|integrated|pseudobulk)\.h5ad|report\.html|(figures|tables)/|manifests/pseudobulk/"
    r"|manifests/(embedding|integrate|report|merge_pseudobulk)\.json|plates/[^/]+/pseudobulk\.zarr"
    r"|markers\.h5ad|cell_groups\.h5|plates/[^/]+/group_sums\.h5|manifests/group_sums/"
    r"|manifests/(merge_by_gene|cell_groups|markers)\.json|by_gene\.zarr|manifests/by_gene/"
    r"|plates/[^/]+/by_gene\.zarr"
)


class WrongEnd(Exception):  # noqa: N818
    """Neither the right bytes nor a sentence."""


class Done(NamedTuple):
    """How a run ended."""

    code: int
    said: str


@dataclass
class Case:
    """A copy of the atlas that a fault damages."""

    atlas: Atlas
    project: Project
    rng: Random
    quick: bool = False  # with few undisturbed builds
    log: list[str] = field(default_factory=list)  # events in words, with the output of the runs
    targets: tuple[str, ...] = ()  # of the user's command: everything, or the atlas alone
    said: set[str] = field(default_factory=set)  # last sentences of the workflow
    n_runs: int = 0

    def __post_init__(self) -> None:
        if self.rng.random() < (0.8 if self.quick else 0.2):
            self.targets = ("atlas",)
            self.note("asked for: atlas")

    def is_asked_for(self, name: str) -> bool:
        """Whether the user's command makes a file of the results."""
        return not (self.targets and _BEYOND_ATLAS.match(name))

    def goes_without(self, section: str) -> bool:
        """Whether the user's command does not need a section of the changed config."""
        changed = self.project.config.get(section)
        same = changed == self.atlas.base.config.get(section)
        return bool(self.targets) and not same and (changed or {}).get("cells") != "all"

    @property
    def results(self) -> Path:
        return self.project.results

    @property
    def mark(self) -> str:
        """Variable that marks the processes of the case in their environment."""
        return f"CHAOS_CASE={self.project.folder}"

    def note(self, what: str) -> None:
        self.log.append(what)

    # --- runs -------------------------------------------------------------------------------------

    def start(self, *targets: str, environment: dict[str, str] | None = None) -> Run:
        """Start a run, by default of the user's command."""
        targets = targets or self.targets
        self.n_runs += 1
        cores = self.rng.choice([1, 2])
        log = self.project.folder.parent / f"{self.project.folder.name}-{self.n_runs}.txt"
        command = self.project.command(*targets, cores=cores)
        command[0] = warm.python(self.atlas.library)
        name, _, value = self.mark.partition("=")
        own = {"COLUMNS": "200", name: value}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=warm.environment(self.atlas.library) | own | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        return Run(self, process, log, " ".join(targets))

    def run(self, *targets: str, environment: dict[str, str] | None = None) -> Done:
        return self.start(*targets, environment=environment).end()

    def settle(self) -> str:
        """Act like a user: give the same command up to three times, and follow its sentences.

        The end is ``right`` or ``sentence``; any other is a :class:`WrongEnd`.
        """
        before = set()
        for _ in range(RUNS):
            done = self.run()
            if done.code == 0 and self.denies_edits(done):
                continue
            if done.code == 0:
                self.judge()
                return "right"
            self.check_sentence(done)
            if not self.obey(done) and self.said == before:
                break
            before = self.said
        return "sentence"

    def disturbed(self, done: Done) -> None:
        """Check that a run with a fault has succeeded or printed its error."""
        if done.code:
            self.check_sentence(done)
            self.obey(done)
        elif not self.denies_edits(done):
            self.judge()

    def denies_edits(self, done: Done) -> bool:
        """Remove results that a run takes for edited; return whether there are some."""
        return "stays as it is; if you have not edited it" in done.said and self.obey(done)

    def obey(self, done: Done) -> bool:
        """Do what the sentences request; return whether they request anything."""
        asked = False
        for paths in re.findall(r"\(rm -r (.*?)\)", done.said):
            for path in map(self.project.folder.joinpath, shlex.split(paths)):
                if not path.resolve().is_relative_to(self.results.resolve()):
                    raise WrongEnd(f"asks to remove what is not its own: {path}")
                self.note(f"user: rm -r {path.relative_to(self.project.folder)}")
                asked |= path.exists() or path.is_symlink()
                remove(path)
        if "--unlock" in done.said:
            self.note("user: --unlock")
            asked = True
            unlocked = self.run("--unlock")
            if unlocked.code:
                raise WrongEnd("cannot be unlocked")
        return asked

    def check_sentence(self, done: Done) -> None:
        """Check that a failed run prints one sentence per error."""
        self.said = sentences(done.said)
        if "Traceback (most recent call last)" in done.said:
            last = re.findall(r"(?m)^\s*(\w[\w.]*(?:Error|Exception|Exit)\b.*)$", done.said)
            raise WrongEnd(f"traceback: {last[0] if last else ''}")
        if not self.said or not all(self.said):
            raise WrongEnd("no sentence")
        for sentence in sorted(self.said):
            self.note(f"said: {sentence}")

    # --- ends -------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare the results of a successful run with those of an undisturbed one."""
        self.wait_for_orphans()
        ours = outputs(self.project)
        theirs = self.atlas.reference(self.project, *self.targets)
        for section in ("integrate", "pseudobulk"):
            # A new build of everything refuses what these sections ask for.
            if not theirs.files and self.goes_without(section):
                theirs = self.atlas.reference(self.project, *self.targets, but=section)
        if not theirs.files:
            said = sorted(sentences(theirs.said))
            raise WrongEnd(f"stale success: an undisturbed build fails ({'; '.join(said)})")
        expected = {name: text for name, text in theirs.files.items() if self.is_asked_for(name)}
        wrong = differences(ours, expected)
        if wrong:
            more = f" and {len(wrong) - 4} more" * (len(wrong) > 4)
            raise WrongEnd("; ".join(wrong[:4]) + more)

    def kill(self) -> None:
        """SIGKILL for every process of this case at once, as a power cut."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Running processes of this case."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # ended, or of another user
                if self.mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def wait_for_orphans(self) -> None:
        """Wait for jobs that outlive their Snakemake."""
        deadline = time.monotonic() + _SECONDS
        while self.processes():
            if time.monotonic() > deadline:
                self.kill()
                raise WrongEnd("a job never ends")
            time.sleep(0.05)


@dataclass
class Run:
    """A running command."""

    case: Case
    process: subprocess.Popen[bytes]
    log: Path
    targets: str

    def kill(self) -> None:
        """Kill (SIGKILL) Snakemake alone: its jobs continue."""
        self.process.kill()

    def end(self) -> Done:
        try:
            code = self.process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.case.kill()
            self.process.wait()
            self.case.note(self.log.read_text(errors="replace"))
            raise WrongEnd("hangs") from None
        said = self.log.read_text(errors="replace")
        self.case.note(f"--- run {self.targets}: exit {code}\n{said}---")
        return Done(code, said)


def sentences(said: str) -> set[str]:
    """Error sentences of a run."""
    found = re.findall(r"(?m)\berror: (.*)$", said)
    found += re.findall(r"(?m)^\w+(?:Error|Exception)(?: in (?:file|rule) .*?)?:\n(.+)$", said)
    ours = {text.strip() for text in found}
    return {text for text in ours if not text.startswith("At least one job did not complete")}


def unit_of(name: str) -> str:
    """Store, folder of pictures or file that contains a file of the results."""
    store = re.match(r".*?\.zarr(?=/)|figures/[^/]+(?=/)", name)
    return store[0] if store else name


def differences(ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    """Differences between results and those of an undisturbed build.

    Results of a plate or a rule that is no longer requested may stay. Results that no step needs
    may be missing completely: a store without its root metadata cannot be opened.
    """
    wrong = []
    units = {unit_of(name) for name in theirs}
    kept = {unit_of(name) for name in ours}
    kept -= {unit for unit in kept if unit.endswith(".zarr") and f"{unit}/zarr.json" not in ours}
    lost = sorted(unit for unit in units - kept if unit.startswith(_PRODUCTS))
    wrong += [f"{unit} is missing" for unit in lost]
    for name in sorted(ours.keys() | theirs.keys()):
        unit = unit_of(name)
        if unit not in units or unit not in kept or name.startswith(("logs/", "benchmarks/")):
            continue
        if name not in ours:
            wrong.append(f"{name} is lost")
        elif name not in theirs:
            wrong.append(f"{name} is from elsewhere")
        elif ours[name] != theirs[name]:
            wrong.append(f"{name} has other bytes")
    return wrong
