"""What benchmarks share: options, processes and what they take, the lines above a result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]


def parser(doc: str, *, folder: str | None = None, **sizes: int) -> argparse.ArgumentParser:
    """Options with ``--out``, an argument ``folder`` if it has a help text, and whole numbers."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if folder:
        made.add_argument("folder", type=Path, help=folder)
    for name, default in sizes.items():
        made.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    made.add_argument("--out", type=Path, help="also write the result to this file")
    return made


@dataclass
class Run:
    """Measurements of one process.

    Attributes
    ----------
    seconds
        Seconds by step, as the process printed them; steps of one name are added.
    wall
        Seconds from its start to its end.
    peak
        Peak resident bytes of the process and its children together, sampled every 50 ms.
    host, gpu
        Peak bytes: resident of the process alone (``VmHWM``), and on one of the GPUs in addition
        to earlier allocations.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0
    peak: int = 0
    host: int = 0
    gpu: int = 0

    @property
    def total(self) -> float:
        """Seconds of all steps except the start (imports, workers, the GPU's context)."""
        return sum(s for step, s in self.seconds.items() if step != "start")


def run_process(
    command: Iterable[object], log: Path, *, gpus: Sequence[int] = (), **env: str
) -> Run:
    """Run a command, which may print a JSON line ``{"step", "seconds"}`` per step.

    Its errors go to ``log``; if it fails, the end of the log is printed and an error is raised.

    Parameters
    ----------
    gpus
        Numbers of the GPUs whose memory is watched.
    env
        Additional environment variables.
    """
    run = Run()
    words = [str(part) for part in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    taken = gpu_memory(gpus)
    begin = time.perf_counter()
    with (
        log.open("w") as err,
        subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=err, text=True, env=os.environ | env
        ) as process,
        sampled(lambda: _resident(process.pid), 0.05) as resident,
        sampled(taken, 0.02) as on_gpus,
    ):
        for line in filter(lambda line: line.startswith("{"), process.stdout):
            step = json.loads(line)
            name = step["step"]
            run.seconds[name] = run.seconds.get(name, 0.0) + step["seconds"]
        code = process.wait()
    run.wall = time.perf_counter() - begin
    run.peak, run.host = (max(column) for column in zip(*resident, strict=True))
    run.gpu = max(on_gpus)
    if code:
        print(log.read_text()[-3000:], file=sys.stderr)
        msg = f"{shlex.join(words[:4])} ended with exit status {code}, see {log}"
        raise RuntimeError(msg)
    return run


def say_step(step: str, seconds: float) -> None:
    """Print the line of a step for :func:`run_process`."""
    print(json.dumps({"step": step, "seconds": seconds}), flush=True)


def _resident(pid: int) -> tuple[int, int]:
    """Bytes of a process and its children, and the most that it has had alone."""
    together, alone = 0, 0
    with suppress(psutil.Error):
        main = psutil.Process(pid)
        for member in [main, *main.children(recursive=True)]:
            with suppress(psutil.Error):
                together += member.memory_info().rss
    with suppress(OSError, TypeError):  # the process has ended
        status = Path(f"/proc/{pid}/status").read_text()
        alone = 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])
    return together, alone


@contextmanager
def sampled(read: Callable[[], T], seconds: float) -> Iterator[list[T]]:
    """Yield a list with what ``read`` returns at the start, and at such intervals of the body."""
    found = [read()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            found.append(read())

    watcher = threading.Thread(target=watch, name="watcher")
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def gpu_memory(gpus: Sequence[int]) -> Callable[[], int]:
    """Function that returns the most bytes on one of the GPUs that were not taken before."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in gpus]
    except Exception:  # noqa: BLE001 - no package, no driver or no GPU: nothing to watch
        return lambda: 0

    def used() -> list[int]:
        return [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]

    before = used()
    return lambda: max((b - a for a, b in zip(before, used(), strict=True)), default=0)


def head(*packages: str) -> list[str]:
    """Lines above a result: command with the names alone of folders, date, machine, versions."""
    import scatlas  # from a checkout, too, which is not installed

    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    command = shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *words])
    commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    ask = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    gpus = _output("nvidia-smi", *ask).splitlines()
    cores, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().total / 1e9
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    where = [cpu[1] if cpu else platform.machine(), f"{cores} cores, {memory:.0f} GB", *gpus]
    return [
        f"# {command}",
        f"# {time.strftime('%Y-%m-%d')}, commit {commit or 'unknown'}, {', '.join(where)}",
        f"# Python {platform.python_version()}, scatlas {scatlas.__version__}, {versions}",
    ]


def _output(*command: str) -> str:
    """What a command prints; nothing where it is not installed or fails."""
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return ""


def publish(lines: list[str], out: Path | None) -> None:
    """Print a result, and write it to ``out`` if given."""
    report = "\n".join(lines)
    print(report)
    if out:
        out.write_text(report + "\n")


def files_of(path: Path) -> list[Path]:
    """A file, or all files in a folder."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def size_of(path: Path) -> int:
    """Bytes of a file or of all files in a folder."""
    return sum(file.stat().st_size for file in files_of(path))


def warm(path: Path) -> None:
    """Read a file or all files in a folder into the page cache."""

    def read(file: Path) -> None:
        with file.open("rb", buffering=0) as raw:
            while raw.read(2**24):
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, files_of(path)))
