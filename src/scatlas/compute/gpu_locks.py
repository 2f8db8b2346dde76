"""Locks on GPUs: jobs on one machine divide its GPUs, and wait while all are locked.

A GPU has twelve lock files, of which a job locks as many as its share, so that jobs and runs of
different shares never exceed one GPU together. A crash leaves nothing to clean up: the system
releases the locks of a process that ends. filelock would replace ten lines around ``flock``, and no
environment has it.
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
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.compute import gpu_devices
from scatlas.compute.gpu_devices import EXCLUSIVE, MIN_FREE_BYTES, VISIBLE, Device, usable
from scatlas.errors import GpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from scatlas.compute.gpu_devices import Machine

logger = logging.getLogger(__name__)

# Lock files per GPU: halves, thirds, quarters and sixths are whole numbers of them.
_LOCK_FILES = 12
_WHOLE = Fraction(1)

# Locked files of the GPUs that this process holds. A Dask cluster of a job shares the GPUs of the
# job.
_held: dict[str, ExitStack] = {}
# UUIDs of GPUs that this process holds until it ends.
_kept: set[str] = set()

_POLL_SECONDS = 0.2  # between two attempts to lock
_LOG_SECONDS = 60  # between two lines in the log
# The driver may free memory shortly after a lock is released. Wait until free memory is constant
# for this many seconds: if it is enough, and if it is too little.
_ENOUGH_SECONDS, _SHORT_SECONDS = 0.5, 3


@contextmanager
def lock_gpus(
    n: int | None = 1,
    *,
    share: Fraction = _WHOLE,
    only: Collection[str] | None = None,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> Iterator[list[Device]]:
    """Context in which this process holds ``n`` GPUs (None: all free ones, at least one), the only
    ones that CUDA shows to it: enter it before anything that starts CUDA.

    It waits, and logs, while other jobs of scatlas hold too many GPUs, but not for memory that
    other programs use, which is a GpuError. ``only`` lists UUIDs. Lock files are in
    ``/tmp/scatlas-<user id>`` or ``SCATLAS_LOCKS_DIR``: containers that share GPUs must share that
    folder.
    """
    if not 0 < share <= 1:
        raise GpuError(f"the share of a GPU is {share}: give more than 0 and at most 1")
    start = next_log = time.monotonic()
    candidates = _candidates(n, only, query_gpus)
    memory_wait = _FreeMemoryWait()
    while True:
        with ExitStack() as locks:
            locked, blockers = _try_lock(n, candidates, query_gpus, locks, share, memory_wait)
            if locked:
                locks.enter_context(_visible_devices([device.uuid for device in locked]))
                yield locked
                return
        if (now := time.monotonic()) >= next_log:
            what = "a GPU" if (n or 1) == 1 else f"{n} GPUs"
            since = f", for {(now - start) / 60:.0f} min by now" if next_log > start else ""
            logger.info("waiting for %s%s: %s", what, since, "; ".join(blockers))
            next_log = now + _LOG_SECONDS
        time.sleep(_POLL_SECONDS)


def check_gpus(
    n: int | None = 1,
    *,
    only: Collection[str] | None = None,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> list[Device]:
    """GPUs among which :func:`lock_gpus` would choose; the same errors, without waiting."""
    candidates = _candidates(n, only, query_gpus)
    with ExitStack() as locks:
        _try_lock(n, candidates, query_gpus, locks)
    return candidates


def hold_until_exit(locked: Collection[Device]) -> None:
    """Hold locked GPUs in CUDA's exclusive-process mode until this process ends, as CUDA does."""
    _kept.update(device.uuid for device in locked if device.compute_mode == EXCLUSIVE)


@dataclass
class _FreeMemoryWait:
    """Whether the driver may still free memory of a GPU after the end of a job."""

    max_free: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Largest free memory of a GPU, and its time, since it was locked (-1 bytes) or short."""

    def __call__(self, device: Device) -> bool:
        if device.free is None or (
            device.free >= MIN_FREE_BYTES and device.uuid not in self.max_free
        ):
            return False
        now = time.monotonic()
        max_free, since = self.max_free.get(device.uuid, (-1, 0.0))
        if device.free > max_free:
            self.max_free[device.uuid], since = (device.free, now), now
        enough = device.free >= MIN_FREE_BYTES
        return now - since < (_ENOUGH_SECONDS if enough else _SHORT_SECONDS)


def _candidates(
    n: int | None, only: Collection[str] | None, query_gpus: Callable[[], Machine]
) -> list[Device]:
    if n is not None and n < 1:
        raise GpuError(f"{n} GPUs cannot be locked: ask for at least 1")
    return [device for device in usable(query_gpus()) if only is None or device.uuid in only]


def _try_lock(
    n: int | None,
    candidates: list[Device],
    query_gpus: Callable[[], Machine],
    locks: ExitStack,
    share: Fraction = _WHOLE,
    memory_wait: _FreeMemoryWait | None = None,
) -> tuple[list[Device], list[str]]:
    """Lock a share of ``n`` GPUs until ``locks`` closes, or none; also returns reasons to wait.

    Used memory of a GPU that no job holds is other programs', unless ``memory_wait`` expects the
    driver to free it.
    """
    free: list[Device] = []
    blockers: list[str] = []
    used: list[str] = []
    won: set[str] = set()
    holders: dict[str, list[str]] = {}
    # One process locks at a time: otherwise two could each get a part of the GPUs that both need.
    with _open(_folder() / "choosing.lock") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            for device in candidates:
                if device.uuid in _held:
                    free.append(device)
                    continue
                # An exclusive GPU runs one process at a time.
                part = _WHOLE if device.compute_mode == EXCLUSIVE else share
                holders[device.uuid] = _lock(device.uuid, ceil(part * _LOCK_FILES))
                if device.uuid in _held:
                    won.add(device.uuid)
                else:
                    blockers.append(f"{_label(device)} is locked by {_processes(holders, device)}")
                    if memory_wait:
                        memory_wait.max_free[device.uuid] = (-1, 0.0)
            # Query again: free memory may be that of a time when another job held the GPU.
            now_free = (
                [device for device in query_gpus().devices if device.uuid in won] if won else []
            )
            # GPUs that no other job uses come first, then those with the most free memory.
            now_free.sort(
                key=lambda d: (len(holders[d.uuid]), -(d.total if d.free is None else d.free))
            )
            for device in now_free:
                if memory_wait and memory_wait(device):
                    reason = "perhaps more when a job that has ended gives it back"
                    blockers.append(f"{_free_memory(device)}, {reason}")
                elif _is_short(device) and holders[device.uuid]:
                    users = _processes(holders, device)
                    blockers.append(f"{_free_memory(device)} beside {users}")
                elif _is_short(device):
                    used.append(f"{_free_memory(device)}, as others use it")
                else:
                    free.append(device)
            wanted = n or 1
            if len(free) + len(blockers) < wanted:
                raise GpuError(_too_few(wanted, len(free) + len(blockers), used))
            locked = free[:n] if len(free) >= wanted else []
            for uuid in won & {device.uuid for device in locked}:
                won.remove(uuid)
                locks.callback(_release, uuid)
        finally:
            for uuid in won:
                _release(uuid)
    order = [device.uuid for device in candidates]
    return sorted(locked, key=lambda device: order.index(device.uuid)), blockers


def _lock(uuid: str, n_files: int) -> list[str]:
    """Lock ``n_files`` files of a GPU, which is then in ``_held``, until :func:`_release`, or none.

    Returns the process of each file that another job holds, to know how much of the GPU is in use.
    """
    holders: list[str] = []
    free: list[ExitStack] = []
    with ExitStack() as surplus:
        for number in range(_LOCK_FILES):
            with ExitStack() as stack:
                file = stack.enter_context(_open(_folder() / f"{uuid}.{number}.lock"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    name = os.pread(file, 200, 0).decode(errors="replace").strip()
                    holders.append(name or "unknown")
                    continue
                free.append(surplus.enter_context(stack.pop_all()))
                if len(free) <= n_files:
                    os.ftruncate(file, 0)
                    name = f"{os.getpid()} ({Path(sys.argv[0]).name or 'python'})"
                    os.pwrite(file, name.encode(), 0)
        if len(free) >= n_files:
            _held[uuid] = ExitStack()
            for stack in free[:n_files]:
                _held[uuid].enter_context(stack.pop_all())
    return holders


def _release(uuid: str) -> None:
    if uuid not in _kept:
        _held.pop(uuid).close()


def _processes(holders: dict[str, list[str]], device: Device) -> str:
    names = list(dict.fromkeys(holders[device.uuid]))
    return f"process{'es' * (len(names) > 1)} {', '.join(names)}"


def _is_short(device: Device) -> bool:
    """Whether a job could not start in the free memory of a GPU."""
    return device.free is not None and device.free < MIN_FREE_BYTES


def _label(device: Device) -> str:
    return f"{device.uuid} ({device.name})"


def _free_memory(device: Device) -> str:
    return (
        f"{_label(device)} has {(device.free or 0) / 1e9:.1f} of {device.total / 1e9:.0f} GB free"
    )


@contextmanager
def _open(path: Path) -> Iterator[int]:
    # Never remove a lock file: one process could lock the old file and another process a new one.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _folder() -> Path:
    """Folder of the lock files of this user, the same in all sessions and jobs."""
    # Not XDG_RUNTIME_DIR, which ends with the login: a job that outlives it and a later job would
    # use different folders. Not TMPDIR, which schedulers set per job.
    base = Path("/tmp")  # noqa: S108
    if not os.access(base, os.W_OK):
        base = Path(tempfile.gettempdir())
    set_folder = os.environ.get("SCATLAS_LOCKS_DIR")
    folder = Path(set_folder) if set_folder else base / f"scatlas-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, parents=bool(set_folder), exist_ok=True)
        mine = set_folder or (folder.stat().st_uid == os.getuid() and not folder.is_symlink())
    except OSError as error:
        msg = f"{folder}, the folder of the GPU locks, cannot be created: {error.strerror}"
        raise GpuError(msg) from None
    if not mine:
        raise GpuError(
            f"{folder}, the folder of the GPU locks, is not yours: set SCATLAS_LOCKS_DIR to another"
        )
    return folder


@contextmanager
def _visible_devices(tokens: list[str]) -> Iterator[None]:
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
    head = f"{wanted} GPUs are wanted and {available} are available"
    return f"{head} ({reasons}): ask for fewer, or wait for these jobs"
