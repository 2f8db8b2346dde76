"""Print as JSON what CUDA shows of this machine.

A program rather than a module: a process that has asked CUDA once keeps the GPUs of that moment,
so :func:`scatlas.compute.devices.ask` lets another process ask. It needs the standard library
alone and no part of scatlas.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

# Of cuda.h.
_COMPUTE_MODE, _MAJOR, _MINOR = 20, 75, 76
NO_DRIVER = -1  # no status of CUDA's own


def ask() -> dict[str, Any]:
    """CUDA version of the driver, status of the start, and what is known of each GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"status": NO_DRIVER, "driver": 0, "devices": []}
    status = cuda.cuInit(0)
    driver, count = ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDriverGetVersion(ctypes.byref(driver))
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    free = _free_memory()
    devices = [_device(cuda, ordinal, free) for ordinal in range(count.value)]
    return {"status": status, "driver": driver.value, "devices": devices}


def _device(cuda: ctypes.CDLL, ordinal: int, free: Any) -> dict[str, Any]:
    handle, total, number = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.c_int(0)
    name, code = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    cuda.cuDeviceGet(ctypes.byref(handle), ordinal)
    cuda.cuDeviceGetName(name, len(name), handle)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), handle)
    # The second version, of CUDA 11.4, tells the parts of a divided GPU (MIG) apart.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    get_uuid(code, handle)
    attributes = []
    for attribute in (_MAJOR, _MINOR, _COMPUTE_MODE):
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, handle)
        attributes.append(number.value)
    name_of_gpu = f"GPU-{uuid.UUID(bytes=code.raw[:16])}"
    return {
        "uuid": name_of_gpu,
        "name": name.value.decode(errors="replace"),
        "total": total.value,
        "free": free(name_of_gpu),
        "capability": attributes[:2],
        "compute_mode": attributes[2],
    }


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


def _free_memory() -> Any:
    """Function of a GPU's name: its free bytes by NVML, which needs no context, or None."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        failed = nvml.nvmlInit_v2() != 0
    except (OSError, AttributeError):
        failed = True

    def free(name: str) -> int | None:
        handle, memory = ctypes.c_void_p(), _Memory()
        if failed or nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) != 0:
            return None
        status = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return memory.free if status == 0 else None

    return free


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask()))
