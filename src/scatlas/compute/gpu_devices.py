"""The GPUs that CUDA shows to this job, by the driver's NVML: a process that starts CUDA keeps the
GPUs visible then, and :func:`scatlas.compute.gpu_locks.lock_gpus` must choose before. nvidia-ml-py
would replace 40 lines of ctypes, but only the GPU environments have it, and ``backend: auto`` names
a GPU that the CPU environment cannot use, too.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from scatlas.errors import GpuError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Volta: the oldest that nvrtc of CUDA 12 and the kernels (64-bit atomics, warp shuffles) support.
OLDEST_CAPABILITY = (7, 0)
# Free memory that a job needs: a context, the kernels and a few blocks.
MIN_FREE_BYTES = 10**9
# Values of CUDA's compute mode.
_PROHIBITED, EXCLUSIVE = 2, 3
_NVML = "libnvidia-ml.so.1"
_BUFFER_BYTES = 96  # for NVML's names and UUIDs
# Reason and remedy by value of nvmlReturn_t.
_START_ERRORS = {
    4: "this user may not use the NVIDIA driver: ask the machine's admin",
    9: "the NVIDIA driver is not loaded: load it, or restart the machine",
    12: "there is no CUDA library (libcuda.so.1) on this machine, or not in this container",
    18: "the NVIDIA driver and its libraries are of different versions: restart the machine",
    999: "the NVIDIA driver failed to start: restart the machine, and see its log (dmesg)",
}


@dataclass(frozen=True)
class Device:
    """One GPU, or one part of a divided GPU (MIG), as NVML shows it."""

    uuid: str
    """``GPU-...`` or ``MIG-...``, the same in every process; CUDA_VISIBLE_DEVICES takes it."""
    name: str
    total: int
    """Bytes of memory; 0 if NVML does not report it."""
    free: int | None
    """Bytes of free memory; None if NVML does not report it."""
    capability: tuple[int, int] = (9, 0)
    compute_mode: int = 0


@dataclass(frozen=True)
class Machine:
    """Driver and GPUs of this machine, from NVML."""

    driver: int
    """Newest CUDA version that the driver supports, 12040 for 12.4."""
    devices: tuple[Device, ...] = ()
    """GPUs that ``CUDA_VISIBLE_DEVICES`` shows, in its order."""


def query_gpus() -> Machine:
    """Driver and GPUs that NVML shows; numbers in ``CUDA_VISIBLE_DEVICES`` are those of nvidia-smi,
    which are CUDA's with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``, and if all GPUs are of one model.
    """
    driver, count = ctypes.c_int(), ctypes.c_uint()
    try:
        nvml = _nvml()
        _check(nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(driver)))
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        gpus = [_devices_of_gpu(nvml, handle) for handle in _handles(nvml, count.value)]
    except AttributeError:
        raise GpuError("the NVIDIA driver is too old: install a newer one") from None
    return Machine(driver.value, _visible(gpus))


@cache
def _nvml() -> ctypes.CDLL:
    try:
        nvml = ctypes.CDLL(_NVML)
    except OSError:
        raise GpuError(
            f"there is no NVIDIA driver ({_NVML}) on this machine, or not in this container, which "
            "needs NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ) from None
    _check(nvml.nvmlInit_v2())
    return nvml


def _check(status: int) -> None:
    if status:
        raise GpuError(
            _START_ERRORS.get(status, f"the NVIDIA driver does not start (error {status})")
        )


def _handles(nvml: ctypes.CDLL, count: int) -> list[ctypes.c_void_p]:
    """GPUs that this user may use and that respond; CUDA does not count others either."""
    handles = [ctypes.c_void_p() for _ in range(count)]
    get = nvml.nvmlDeviceGetHandleByIndex_v2
    return [handle for i, handle in enumerate(handles) if get(i, ctypes.byref(handle)) == 0]


def _devices_of_gpu(nvml: ctypes.CDLL, gpu: ctypes.c_void_p) -> list[Device]:
    """Devices of one GPU: itself, or the parts of a divided GPU (MIG)."""
    major, minor, mode = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetCudaComputeCapability(gpu, ctypes.byref(major), ctypes.byref(minor))
    nvml.nvmlDeviceGetComputeMode(gpu, ctypes.byref(mode))
    divided, count = ctypes.c_uint(), ctypes.c_uint()
    # Fails for a GPU without MIG; `divided` stays 0.
    nvml.nvmlDeviceGetMigMode(gpu, ctypes.byref(divided), ctypes.byref(ctypes.c_uint()))
    parts = [gpu]
    if divided.value:
        nvml.nvmlDeviceGetMaxMigDeviceCount(gpu, ctypes.byref(count))
        handles = [ctypes.c_void_p() for _ in range(count.value)]
        get = nvml.nvmlDeviceGetMigDeviceHandleByIndex
        parts = [part for i, part in enumerate(handles) if get(gpu, i, ctypes.byref(part)) == 0]
    return [_device(nvml, part, (major.value, minor.value), mode.value) for part in parts]


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _device(nvml: ctypes.CDLL, handle: ctypes.c_void_p, *properties: Any) -> Device:
    uuid, name = (
        ctypes.create_string_buffer(_BUFFER_BYTES),
        ctypes.create_string_buffer(_BUFFER_BYTES),
    )
    memory = _Memory()
    nvml.nvmlDeviceGetUUID(handle, uuid, _BUFFER_BYTES)
    nvml.nvmlDeviceGetName(handle, name, _BUFFER_BYTES)
    known = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    return Device(
        uuid.value.decode(),
        name.value.decode(errors="replace"),
        memory.total if known else 0,
        memory.free if known else None,
        *properties,
    )


def _visible(gpus: list[list[Device]]) -> tuple[Device, ...]:
    """Devices that CUDA shows: all, or those listed by number or by the start of their UUID."""
    every = [device for parts in gpus for device in parts]
    if VISIBLE not in os.environ:
        return tuple(every)
    shown: list[Device] = []
    for token in map(str.strip, os.environ[VISIBLE].split(",")):
        if token.isdecimal():
            fits = [parts[0] for parts in gpus[int(token) :][:1] if parts]
        else:
            fits = [device for device in every if token and device.uuid.startswith(token)]
        # CUDA ignores the list from the first entry that is missing or ambiguous.
        if len(fits) != 1 or fits[0] in shown:
            break
        shown += fits
    return tuple(shown)


def usable(machine: Machine) -> tuple[Device, ...]:
    """GPUs that this job may use and that can run the kernels; if there is none, a GpuError."""
    if not machine.devices:
        msg = "the NVIDIA driver shows no GPU to this job"
        hidden = os.environ.get(VISIBLE)
        if hidden is not None:
            msg += f": {VISIBLE} is {hidden!r}; unset it, or ask the scheduler for a GPU"
        raise GpuError(msg)
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


def find_gpus() -> tuple[Device, ...]:
    """GPUs that jobs may use; none without a driver or a usable GPU."""
    try:
        return usable(query_gpus())
    except GpuError:
        return ()


def version(number: int) -> str:
    """CUDA version as text: 12040 is 12.4."""
    return f"{number // 1000}.{number % 1000 // 10}"
