"""Shared by the GPU benchmarks: processes with peak memory, the machine, the disk."""

from __future__ import annotations

import mmap
import os
import platform
import re
import shlex
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from run_side import add_steps  # noqa: E402

_PIECE = 2**24


@dataclass
class Run:
    """Measurements of one process.

    Attributes
    ----------
    seconds
        Seconds by step, as the process printed them.
    wall
        Seconds from its start to its end.
    host, gpu
        Peak bytes: resident (``VmHWM``), and on the GPUs in addition to earlier allocations.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0
    host: int = 0
    gpu: int = 0

    @property
    def total(self) -> float:
        """Seconds of all steps except the start (imports, the GPU's context)."""
        return sum(s for step, s in self.seconds.items() if step != "start")


def run_process(
    command: list[object], log: Path, *, gpus: list[int], env: dict[str, str] | None = None
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
    log.parent.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with (
        log.open("w") as err,
        gpu_memory(gpus) as taken,
        subprocess.Popen(
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env=os.environ | (env or {}),
        ) as process,
    ):
        watcher = threading.Thread(target=_watch, args=(process, run))
        watcher.start()
        add_steps(process.stdout, run.seconds)
        code = process.wait()
        watcher.join()
    run.wall = time.perf_counter() - begin
    run.gpu = max(taken, default=0)
    if code:
        print(log.read_text()[-3000:], file=sys.stderr)
        msg = f"{shlex.join(map(str, command[:4]))} ended with exit status {code}, see {log}"
        raise RuntimeError(msg)
    return run


def _watch(process: subprocess.Popen, run: Run) -> None:
    while process.poll() is None:
        with suppress(OSError, TypeError):  # the process has ended
            status = Path(f"/proc/{process.pid}/status").read_text()
            run.host = max(run.host, 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1]))
        time.sleep(0.02)


@contextmanager
def gpu_memory(gpus: list[int]) -> Iterator[list[int]]:
    """Yield a list with the peak of additional bytes on each GPU inside the context."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in gpus]
    except Exception:  # noqa: BLE001 - no package, no driver or no GPU: nothing to watch
        yield []
        return
    before = [pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles]
    most = [0] * len(handles)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for i, handle in enumerate(handles):
                used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
                most[i] = max(most[i], used - before[i])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def head(*packages: str) -> list[str]:
    """Header lines of a result: command, date, machine, versions."""
    import scatlas

    command = shlex.join(["python", os.path.relpath(sys.argv[0], ROOT), *sys.argv[1:]])
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    ask = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        gpus = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        gpus = "no GPU"
    cores = len(os.sched_getaffinity(0))
    told = ", ".join(f"{package} {version(package)}" for package in packages)
    return [
        f"# {command}",
        f"# {time.strftime('%Y-%m-%d')}, {'; '.join(gpus.split(chr(10))).strip('; ')}",
        f"# {cpu[1] if cpu else platform.machine()}, {cores} cores, "
        f"Python {platform.python_version()}, scatlas {scatlas.__version__}, {told}",
    ]


def size_of(path: Path) -> int:
    """Bytes of a file or of all files in a folder."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def warm(path: Path) -> None:
    """Read a file or all files in a folder into the page cache."""

    def read(file: Path) -> None:
        with file.open("rb", buffering=0) as raw:
            while raw.read(_PIECE):
                pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, _files(path)))


def cold(path: Path) -> None:
    """Drop a file or all files in a folder from the page cache."""
    for name in _files(path):
        file = os.open(name, os.O_RDONLY)
        os.fsync(file)  # unwritten pages would stay
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def disk_speed(folder: Path, n_bytes: int = 2**32, threads: int = 8) -> tuple[float, float]:
    """GB/s of writing and reading a file in the folder without the page cache (O_DIRECT)."""
    path = folder / "disk_speed.tmp"
    n_pieces = max(threads, n_bytes // _PIECE)
    page = mmap.mmap(-1, _PIECE)  # aligned, as O_DIRECT requires
    page.write(os.urandom(_PIECE))

    def timed(flags: int, work: str) -> float:
        file = os.open(path, flags | os.O_DIRECT, 0o600)

        def some(first: int) -> None:
            buffer = page if work == "write" else mmap.mmap(-1, _PIECE)
            for piece in range(first, n_pieces, threads):
                if work == "write":
                    os.pwrite(file, buffer, piece * _PIECE)
                else:
                    os.preadv(file, [buffer], piece * _PIECE)

        begin = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, range(threads)))
        os.fsync(file)
        os.close(file)
        return n_pieces * _PIECE / (time.perf_counter() - begin) / 1e9

    try:
        written = timed(os.O_RDWR | os.O_CREAT | os.O_TRUNC, "write")
        return written, timed(os.O_RDONLY, "read")
    finally:
        path.unlink(missing_ok=True)
