"""Several jobs on one machine take different GPUs, and wait where all are taken.

A job holds a locked file for each GPU that it uses. The system frees the lock when the process
ends, whatever ends it, so that nothing has to be tidied up after a crash. Where a scheduler sets
``CUDA_VISIBLE_DEVICES`` the choice is within it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.compute import gpu_devices
from scatlas.compute.gpu_devices import EXCLUSIVE, MIN_FREE_BYTES, VISIBLE, Device, usable
from scatlas.errors import GpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from scatlas.compute.gpu_devices import Machine

logger = logging.getLogger(__name__)

# Locked files of the GPUs that this process holds: a step's cluster works on the step's own.
_held: dict[str, ExitStack] = {}
# Those that it holds until it ends.
_kept: set[str] = set()

_POLL = 0.2  # seconds between two looks
_TELL = 60  # seconds between two lines in the log
# The driver may give back a job's memory a little after its lock: seconds for which free memory
# has to stand still, where it is enough and where it is not.
_SETTLED, _SHORT = 0.5, 3


@contextmanager
def lock_gpus(
    n: int | None = 1,
    *,
    only: Collection[str] | None = None,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> Iterator[list[Device]]:
    """Context in which ``n`` GPUs are this process's alone, and are all that CUDA shows it.

    Sets ``CUDA_VISIBLE_DEVICES``, so it has to come before anything that starts CUDA, such as the
    first CuPy array. It waits while other jobs of scatlas have too many of the GPUs, and says in
    the log who they are. Processes of others, known by the memory that they use, are not waited
    for. GPUs with the most free memory are taken first.

    The lock files lie in ``/tmp/scatlas-<user id>``, or where ``SCATLAS_CLAIMS_DIR`` says:
    containers that share GPUs have to share that folder.

    Parameters
    ----------
    n
        How many; None for all that are free, at least one.
    only
        Names (``GPU-...``) among which to choose.
    query_gpus
        Asks for the GPUs and their free memory.

    Raises
    ------
    GpuError
        There are fewer than ``n``, also when all jobs of scatlas have ended; one sentence says why.
    """
    start = tell = time.monotonic()
    visible = _visible(n, only, query_gpus)
    returning = _FreeMemoryWait()
    while True:
        with ExitStack() as locks:
            taken, awaited = _take(n, visible, query_gpus, locks, returning)
            if taken:
                locks.enter_context(_shown([device.uuid for device in taken]))
                yield taken
                return
        if (now := time.monotonic()) >= tell:
            what = "a GPU" if (n or 1) == 1 else f"{n} GPUs"
            since = f", for {(now - start) / 60:.0f} min by now" if tell > start else ""
            logger.info("waiting for %s%s: %s", what, since, "; ".join(awaited))
            tell = now + _TELL
        time.sleep(_POLL)


def check(
    n: int | None = 1,
    *,
    only: Collection[str] | None = None,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> list[Device]:
    """The GPUs among which :func:`lock_gpus` would choose; it refuses the same, and never waits."""
    visible = _visible(n, only, query_gpus)
    with ExitStack() as locks:
        _take(n, visible, query_gpus, locks)
    return visible


def hold_until_exit(taken: Collection[Device]) -> None:
    """Hold claimed GPUs on until this process ends, where no other could use them before.

    A GPU in CUDA's mode for one process is that process's until it ends.
    """
    _kept.update(device.uuid for device in taken if device.compute_mode == EXCLUSIVE)


@dataclass
class _FreeMemoryWait:
    """Tells whether a GPU may still get back memory from a job that has ended."""

    most: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Most free memory of a GPU, and when, since it was seen claimed (-1 bytes) or short."""

    def __call__(self, device: Device) -> bool:
        if device.free is None or (device.free >= MIN_FREE_BYTES and device.uuid not in self.most):
            return False
        now = time.monotonic()
        most, since = self.most.get(device.uuid, (-1, 0.0))
        if device.free > most:
            self.most[device.uuid], since = (device.free, now), now
        return now - since < (_SETTLED if device.free >= MIN_FREE_BYTES else _SHORT)


def _visible(
    n: int | None, only: Collection[str] | None, query_gpus: Callable[[], Machine]
) -> list[Device]:
    if n is not None and n < 1:
        msg = f"{n} GPUs cannot be claimed: ask for at least 1"
        raise GpuError(msg)
    return [device for device in usable(query_gpus()) if only is None or device.uuid in only]


def _take(
    n: int | None,
    visible: list[Device],
    query_gpus: Callable[[], Machine],
    locks: ExitStack,
    returning: _FreeMemoryWait | None = None,
) -> tuple[list[Device], list[str]]:
    """Lock ``n`` GPUs until ``locks`` is left, or none; then, whom to wait for.

    Memory used on a claimed GPU counts as the holder's, on another as that of others: at once, or
    after the patience of ``returning``.
    """
    free: list[Device] = []
    awaited: list[str] = []
    used: list[str] = []
    won: set[str] = set()
    # One process chooses at a time: two that want several would take some from each other.
    with _open(_folder() / "choosing.lock") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            for device in visible:
                if device.uuid in _held:
                    free.append(device)
                elif holder := _lock(device.uuid):
                    awaited.append(f"{_called(device)} is claimed by process {holder}")
                    if returning:
                        returning.most[device.uuid] = (-1, 0.0)
                else:
                    won.add(device.uuid)
            # Anew, as it may have been claimed when it was looked at before.
            now_free = (
                [device for device in query_gpus().devices if device.uuid in won] if won else []
            )
            for device in sorted(now_free, key=lambda d: -(d.total if d.free is None else d.free)):
                if returning and returning(device):
                    has = f"{_memory(device)}, perhaps more when a job that has ended gives it back"
                    awaited.append(has)
                elif device.free is not None and device.free < MIN_FREE_BYTES:
                    used.append(f"{_memory(device)}, as others use it")
                else:
                    free.append(device)
            wanted = n or 1
            if len(free) + len(awaited) < wanted:
                raise GpuError(_too_few(wanted, len(free) + len(awaited), used))
            taken = free[:n] if len(free) >= wanted else []
            for uuid in won & {device.uuid for device in taken}:
                won.remove(uuid)
                locks.callback(_release, uuid)
        finally:
            for uuid in won:
                _release(uuid)
    order = [device.uuid for device in visible]
    return sorted(taken, key=lambda device: order.index(device.uuid)), awaited


def _lock(uuid: str) -> str | None:
    """Lock a GPU until :func:`_release`, or say which process has it."""
    with ExitStack() as stack:
        file = stack.enter_context(_open(_folder() / f"{uuid}.lock"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.pread(file, 200, 0).decode(errors="replace").strip() or "unknown"
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()} ({Path(sys.argv[0]).name or 'python'})".encode(), 0)
        _held[uuid] = stack.pop_all()
    return None


def _release(uuid: str) -> None:
    if uuid not in _kept:
        _held.pop(uuid).close()


def _called(device: Device) -> str:
    return f"{device.uuid} ({device.name})"


def _memory(device: Device) -> str:
    return f"{_called(device)} has {device.free / 1e9:.1f} of {device.total / 1e9:.0f} GB free"


@contextmanager
def _open(path: Path) -> Iterator[int]:
    # Never removed: a process could lock the old file while another makes a new one.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _folder() -> Path:
    """Where this user's locks lie, in every session and job of theirs."""
    # Not XDG_RUNTIME_DIR: it goes with the login, so that a job that outlives it and a later one
    # would look in two places. Not TMPDIR, which schedulers set for each job.
    base = Path("/tmp")  # noqa: S108
    if not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    set_folder = os.environ.get("SCATLAS_CLAIMS_DIR")
    folder = Path(set_folder) if set_folder else base / f"scatlas-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=bool(set_folder), exist_ok=True)
        mine = set_folder or (folder.stat().st_uid == os.getuid() and not folder.is_symlink())
    except OSError as error:
        msg = f"{folder}, where claims on GPUs lie, cannot be made: {error.strerror}"
        raise GpuError(msg) from None
    if not mine:
        msg = f"{folder}, where claims on GPUs lie, is not yours: set SCATLAS_CLAIMS_DIR to another"
        raise GpuError(msg)
    return folder


@contextmanager
def _shown(tokens: list[str]) -> Iterator[None]:
    before = os.environ.get(VISIBLE)
    os.environ[VISIBLE] = ",".join(tokens)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before


def _too_few(wanted: int, available: int, why_not: list[str]) -> str:
    reasons = "; ".join(why_not) or "this job may use no more"
    if wanted == 1:
        return f"no GPU is free ({reasons}): wait for these jobs, or use backend: cpu"
    head = f"{wanted} GPUs are wanted and {available} can be had"
    return f"{head} ({reasons}): ask for fewer, or wait for these jobs"
