"""``scatlas status``: what is done, running and failed, by step and plate."""

from __future__ import annotations

import fcntl
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from scatlas.workflow.code_hash import workflow_folder
from scatlas.workflow.command_line import DONE, PROBLEM, Problem, say, say_json, say_table
from scatlas.workflow.command_line.check import columns_of_labels
from scatlas.workflow.command_line.run import plan
from scatlas.workflow.config.loading import read_project
from scatlas.workflow.integrity import edited_results, run_record
from scatlas.workflow.run_lock import jobs_of_last_run

if TYPE_CHECKING:
    from collections.abc import Iterator

_RULE = re.compile(r"^ *(?:rule|checkpoint) (\w+):", re.MULTILINE)
STATES = ("done", "running", "failed", "to run")


class Step(NamedTuple):
    """A step of a plate, or of the atlas, whose plate is empty."""

    rule: str
    plate: str
    state: str
    reason: str = ""
    files: tuple[str, ...] = ()


def status(config_file: Path, *, as_json: bool = False) -> int:
    """Print the number of steps in each state, each step that runs or has failed, and jobs that
    Slurm does not let begin or has ended; as JSON all steps. Return 1 if a step has failed, else 0.
    """
    config, _ = read_project(config_file)
    out = plan(config_file, "--summary", "--quiet")
    order = _rules()
    steps = sorted(
        steps_of(out, Path(config.folder)), key=lambda step: (order.index(step.rule), step.plate)
    )
    edited = edited_results(Path(config.folder))
    if as_json:
        states = Counter(step.state for step in steps)
        failed = [s for s in steps if s.state == "failed"]
        return say_json(
            *("status", config_file, [Problem(s.reason, s.plate or None) for s in failed]),
            folder=config.folder,
            n_steps={state: states[state] for state in STATES},
            steps=[{k: v or None for k, v in step._asdict().items()} for step in steps],
            slurm=[job._asdict() for job in jobs_of_last_run(Path(config.folder))[1]],
            edited=edited,
        )
    numbers: dict[str, Counter[str]] = {}
    for step in steps:
        numbers.setdefault(step.rule, Counter())[step.state] += 1
    say_table(
        [
            ["step", *STATES],
            *([rule, *(f"{n[state]:,}" for state in STATES)] for rule, n in numbers.items()),
        ]
    )
    for step in steps:
        if step.state in ("running", "failed"):
            of = f" of {step.plate}" if step.plate else ""
            say(f"{step.state}: {step.rule}{of}{f': {step.reason}' if step.reason else ''}")
    for job in jobs_of_last_run(Path(config.folder))[1]:
        if job.is_held_up or not (job.is_live or job.state == "COMPLETED"):
            say(f"Slurm's job {job.number}: {job.step}: {job.state} ({job.reason})")
    for sentence in [*edited, *columns_of_labels(config)[1]]:
        say(sentence)
    if all(step.state == "done" for step in steps):
        say("everything is done: scatlas open")
    return PROBLEM if any(step.state == "failed" for step in steps) else DONE


def _rules() -> list[str]:
    """Names of all rules, in the order of their files, which is about that of the steps."""
    folder = workflow_folder()
    files = re.findall(r'include: "(.+)"', (folder / "Snakefile").read_text("utf-8"))
    named = [folder / name for name in files]
    texts = [
        path.read_text("utf-8")
        for path in dict.fromkeys([*named, *sorted(folder.glob("workflow/rules/*.smk"))])
    ]
    return [name for text in texts for name in _RULE.findall(text)]


def steps_of(summary: str, outdir: Path) -> Iterator[Step]:
    """Steps of the workflow, from the output of snakemake --summary: a table with one row per
    output, of which the last of a step is that of its manifest.
    """
    header, *lines = summary.splitlines() or [""]
    rows = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    folder = outdir / "manifests"
    files: list[str] = []
    for row in rows:
        manifest = Path(row["output_file"])
        # A store is named by its folder.
        files.append(row["output_file"].removesuffix("/zarr.json"))
        if not manifest.is_relative_to(folder):
            continue
        plate = manifest.stem if manifest.parent != folder else ""
        yield Step(row["rule"], plate, *_state(manifest, row["plan"] == "no update"), tuple(files))
        files = []


def _state(manifest: Path, is_done: bool) -> tuple[str, str]:
    """State of a step, and the reason of a failure."""
    record = run_record(manifest)
    lock = record.with_suffix(".lock")
    if _is_locked(lock):
        return "running", ""
    refusal = manifest.with_suffix(".refused")
    if refusal.exists():
        return "failed", refusal.read_text("utf-8")
    if is_done:
        return "done", ""
    # A step writes its record at its end.
    if lock.exists() and (not record.exists() or _time(lock) > _time(record)):
        log = manifest.parents[1] if manifest.parent.name != "manifests" else manifest.parent
        name = manifest.relative_to(log).with_suffix(".log")
        return "failed", f"it was stopped or has failed: see {log.parent / 'logs' / name}"
    return "to run", ""


def _time(path: Path) -> int:
    return path.stat().st_mtime_ns


def _is_locked(path: Path) -> bool:
    """Whether the process of a step runs; it locks this file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        return False
    return False
