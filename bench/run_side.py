"""Run one side of a benchmark in a separate process; measure its step times and peak memory."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Run:
    """Measurements of one side.

    Attributes
    ----------
    seconds
        Seconds by step, summed over the plates.
    peak
        Peak resident bytes of all processes of the side together, sampled every 50 ms.
    wall
        Seconds of the whole command.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak: int = 0
    wall: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all steps except the start of workers."""
        return sum(s for step, s in self.seconds.items() if step != "start")


def run_side(command: list[str | Path], log: Path) -> Run:
    """Run a command that prints one JSON line per step."""
    result = Run()
    begin = time.perf_counter()
    with log.open("w") as err:
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=err, text=True
        )
        watcher = threading.Thread(target=_watch, args=(process, result))
        watcher.start()
        add_steps(process.stdout, result.seconds)
        code = process.wait()
        watcher.join()
    if code:
        sys.exit(f"{' '.join(map(str, command[:3]))} failed, see {log}")
    result.wall = time.perf_counter() - begin
    return result


def add_steps(lines: Iterable[str], seconds: dict[str, float]) -> None:
    """Add the seconds of each step from the JSON lines that a side prints."""
    for line in lines:
        if line.startswith("{"):
            step = json.loads(line)
            seconds[step["step"]] = seconds.get(step["step"], 0.0) + step["seconds"]


def _watch(process: subprocess.Popen, result: Run) -> None:
    main = psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        try:
            family = [main, *main.children(recursive=True)]
        except psutil.Error:
            break
        for member in family:
            try:
                total += member.memory_info().rss
            except psutil.Error:
                continue
        result.peak = max(result.peak, total)
        time.sleep(0.05)


def machine(*packages: str) -> str:
    """Header line of a result: date, machine, versions."""
    cores = len(os.sched_getaffinity(0))
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = psutil.virtual_memory().total / 1e9
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return (
        f"# {time.strftime('%Y-%m-%d')}, {model}, {cores} cores, {memory:.0f} GB, "
        f"Python {platform.python_version()}, {versions}"
    )


def publish(lines: list[str], out: Path | None) -> None:
    """Print a result, and write it to ``out`` if given."""
    report = "\n".join(lines)
    print(report)
    if out:
        out.write_text(report + "\n")
