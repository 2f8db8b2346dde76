"""Several jobs on one machine take different GPUs.

A job holds a locked file for each GPU that it uses. The system frees the lock when the process
ends, whatever ends it, so that nothing has to be tidied up after a crash. Where a scheduler sets
``CUDA_VISIBLE_DEVICES`` the choice is within it.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scatlas.compute.devices import LEAST_FREE, VISIBLE, Device, ask, usable
from scatlas.errors import GpuError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from scatlas.compute.devices import Machine

# GPUs that this process holds: a step's cluster works on the step's own.
_held: set[str] = set()


@contextmanager
def claim(
    n: int | None = 1, *, only: Collection[str] | None = None, machine: Machine | None = None
) -> Iterator[list[Device]]:
    """Context in which ``n`` GPUs are this process's alone, and are all that CUDA shows it.

    Sets ``CUDA_VISIBLE_DEVICES``, so it has to come before anything that starts CUDA, such as the
    first CuPy array. It does not wait: a job that finds no GPU says who has them. GPUs with the
    most free memory are taken first. Other users' jobs are known by the memory that they use.

    The lock files lie in ``/tmp/scatlas-<user id>``, or where ``SCATLAS_CLAIMS_DIR`` says:
    containers that share GPUs have to share that folder.

    Parameters
    ----------
    n
        How many; None for all that are free.
    only
        Names (``GPU-...``) among which to choose.
    machine
        What :func:`scatlas.compute.devices.ask` has found; it is asked when left out.

    Raises
    ------
    GpuError
        Fewer than ``n`` are free; the sentence names the processes that hold them.
    """
    if n is not None and n < 1:
        msg = f"{n} GPUs cannot be claimed: ask for at least 1"
        raise GpuError(msg)
    machine = ask() if machine is None else machine
    visible = [d for d in usable(machine) if only is None or d.uuid in only]
    with ExitStack() as locks:
        taken: list[Device] = []
        why_not: list[str] = []
        # One process chooses at a time: two that want several would take some from each other.
        with _open(_folder() / "choosing.lock") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            for device in sorted(visible, key=_order):
                if n is not None and len(taken) == n:
                    break
                reason = _take(device, locks)
                why_not += [reason] if reason else []
                taken += [] if reason else [device]
        if len(taken) < (n or 1):
            raise GpuError(_none_free(n or 1, len(taken), why_not))
        taken.sort(key=machine.devices.index)
        if len(taken) < len(machine.devices):
            locks.enter_context(_shown([device.token for device in taken]))
        yield taken


def _order(device: Device) -> tuple[bool, int]:
    return device.uuid not in _held, -(device.total if device.free is None else device.free)


def _take(device: Device, locks: ExitStack) -> str | None:
    """Lock a GPU until ``locks`` is left, or say why not."""
    if device.uuid in _held:
        return None
    if device.free is not None and device.free < LEAST_FREE:
        used = f"{device.free / 1e9:.1f} of {device.total / 1e9:.0f} GB free"
        return f"{device.token} ({device.name}) has {used}, as others use it"
    file = locks.enter_context(_open(_folder() / f"{device.uuid}.lock"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
        return f"{device.token} ({device.name}) is claimed by process {holder}"
    os.ftruncate(file, 0)
    os.pwrite(file, str(os.getpid()).encode(), 0)
    _held.add(device.uuid)
    locks.callback(_held.discard, device.uuid)
    return None


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


def _none_free(wanted: int, free: int, why_not: list[str]) -> str:
    head = "no GPU is free" if wanted == 1 else f"{wanted} GPUs are wanted and {free} are free"
    reasons = "; ".join(why_not) or "this job may use no more"
    return f"{head} ({reasons}): wait for these jobs, or use backend: cpu"
