"""The GPUs that CUDA shows to this job, looked at without starting CUDA in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scatlas.errors import GpuError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Volta: the first that nvrtc of CUDA 12 and our kernels (64-bit atomics, warp shuffles) share.
OLDEST_CAPABILITY = (7, 0)
# A context, the kernels and a few blocks.
LEAST_FREE = 10**9
_SECONDS = 120  # a driver that does not answer for so long is taken for broken
_PROHIBITED = 2
_NO_DRIVER = -1
# Of CUresult in cuda.h, by what a user can do about it.
_STARTS = {
    100: "the NVIDIA driver shows no GPU to this job",
    35: "the NVIDIA driver is too old for its own CUDA library: install the driver anew",
    46: "all GPUs are busy or reserved (compute mode): wait for their processes to end",
    802: "the GPUs are not ready: start the machine's NVIDIA Fabric Manager service",
    803: "the NVIDIA driver and its CUDA library are of different versions: restart the machine",
    804: "this GPU model cannot run the installed CUDA compatibility library: remove it",
    999: "the NVIDIA driver failed to start: restart the machine, and see its log (dmesg)",
}


@dataclass(frozen=True)
class Device:
    """One GPU as CUDA shows it."""

    uuid: str
    """``GPU-...``, the same in every process."""
    token: str
    """What ``CUDA_VISIBLE_DEVICES`` calls it."""
    name: str
    total: int
    """Bytes of memory."""
    free: int | None
    """Bytes of memory that nobody uses, where NVML tells."""
    capability: tuple[int, int] = (9, 0)
    compute_mode: int = 0


@dataclass(frozen=True)
class Machine:
    """What CUDA says of this machine."""

    driver: int
    """Newest CUDA version that the driver runs, 12040 for 12.4; 0 without a driver."""
    status: int
    """0, CUDA's error code, or -1 where there is no driver."""
    devices: tuple[Device, ...] = ()


def ask() -> Machine:
    """Ask CUDA, in a process of its own.

    This process could not see other GPUs afterwards, and :func:`scatlas.compute.claims.claim` has
    to choose before CUDA starts.
    """
    program = Path(__file__).with_name("_ask_cuda.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(program)],
            capture_output=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        msg = f"the NVIDIA driver has not answered within {_SECONDS} s: restart the machine"
        raise GpuError(msg) from None
    except subprocess.CalledProcessError as error:
        msg = f"the NVIDIA driver ended the process that asked for GPUs (code {error.returncode})"
        raise GpuError(msg) from None
    found = json.loads(done.stdout)
    shown = found.pop("devices")
    # CUDA shows the listed devices in the order of the list, and none behind one that is not there.
    listed = [token.strip() for token in os.environ.get(VISIBLE, "").split(",")]
    tokens = listed if VISIBLE in os.environ else [device["uuid"] for device in shown]
    return Machine(
        devices=tuple(
            Device(token=token, **device | {"capability": tuple(device["capability"])})
            for token, device in zip(tokens, shown, strict=False)
        ),
        **found,
    )


def usable(machine: Machine) -> tuple[Device, ...]:
    """The GPUs that this job may use and that can run the kernels.

    Raises
    ------
    GpuError
        There is none; the sentence says why.
    """
    if machine.status == _NO_DRIVER:
        msg = "there is no NVIDIA driver (libcuda.so.1) on this machine, or not in this container"
        raise GpuError(msg)
    if machine.status or not machine.devices:
        why = _STARTS.get(machine.status or 100, f"CUDA does not start (error {machine.status})")
        hidden = os.environ.get(VISIBLE)
        if machine.status in (0, 100) and hidden is not None:
            why += f": {VISIBLE} is {hidden!r}; unset it, or ask the scheduler for a GPU"
        raise GpuError(why)
    good = tuple(
        device
        for device in machine.devices
        if device.capability >= OLDEST_CAPABILITY and device.compute_mode != _PROHIBITED
    )
    if not good:
        device = machine.devices[0]
        if device.compute_mode == _PROHIBITED:
            msg = f"{device.name} is closed to CUDA (compute mode 'prohibited'): ask its admin"
        else:
            has, needed = (f"{a}.{b}" for a, b in (device.capability, OLDEST_CAPABILITY))
            msg = f"{device.name} is too old: it has compute capability {has}, {needed} is needed"
        raise GpuError(msg)
    return good


def version(number: int) -> str:
    """A CUDA version in words: 12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"
