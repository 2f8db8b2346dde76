"""Choice of the backend of a job, CPU or GPU.

It must not depend on what other jobs run, because results of the two differ in the last bits: a job
waits while others of scatlas hold all GPUs, and takes the CPU only if no GPU is usable.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from scatlas.compute import gpu_devices
from scatlas.compute.cluster import check_guard, cluster, requested_gpus
from scatlas.compute.device_memory import current_mode, first_line, memory, peak_bytes
from scatlas.compute.gpu_locks import check_gpus, hold_until_exit, lock_gpus
from scatlas.errors import ConfigError, GpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scatlas.compute.device_memory import Mode
    from scatlas.compute.gpu_devices import Device, Machine

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "cpu", "gpu")
# Extra that installs CuPy, by CUDA version.
_EXTRAS = {12: "gpu-cu12", 13: "gpu-cu13"}

_current: Literal["cpu", "gpu"] = "cpu"
# UUID of the GPU on which CUDA runs in this process, until the process ends.
_started: str | None = None
# Dask client of the current cluster.
_client: Any = None


def choose_backend(
    backend: Literal["auto", "cpu", "gpu"] = "auto",
    *,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> Literal["cpu", "gpu"]:
    """Backend that :func:`use_backend` would use on this machine now; locks and starts nothing.

    ``"auto"`` without a usable GPU logs the reason and is the CPU, where ``"gpu"`` is a GpuError.
    """
    return "gpu" if _find_gpus(backend, query_gpus, 1, check_gpus) else "cpu"


def current_backend() -> Literal["cpu", "gpu"]:
    """Backend of the enclosing :func:`use_backend`; ``"cpu"`` outside of one."""
    return _current


@contextmanager
def use_backend(
    backend: Literal["auto", "cpu", "gpu"] = "auto",
    *,
    memory_mode: Mode = "pool",
    memory_limit: str | None = None,
    share: Fraction = Fraction(1),
    on: Mapping[str, Any] | None = None,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> Iterator[Literal["cpu", "gpu"]]:
    """Context in which work runs on the CPU, or on a GPU of which this process holds a share; it
    waits, and logs, while other jobs of scatlas hold all GPUs.

    Enter it before anything that starts CUDA, such as the first CuPy array. ``on`` are the options
    of :func:`scatlas.cluster`, whose ``"local-gpu"`` workers have a whole GPU each; ``memory_mode``
    and ``memory_limit`` those of :func:`scatlas.memory`, for this process alone.
    """
    global _current, _client
    options = dict(on or {"kind": "in-process"})
    check_guard(options["kind"])
    on_workers = options["kind"] == "local-gpu"
    devices = options.pop("devices", None) if on_workers else 1
    share = Fraction(1) if on_workers else share
    with ExitStack() as stack:

        def lock(n: int | None, **options: Any) -> list[Device]:
            return stack.enter_context(lock_gpus(n, share=share, **options))

        locked = _find_gpus(backend, query_gpus, devices, lock)
        if locked:
            try:
                _start_cuda(locked)
                # Workers have the pools; this process uses little memory of their GPUs.
                mode: Mode = "default" if on_workers else memory_mode
                memory(mode, maximum=memory_limit, share=float(share))
            except GpuError as error:
                _fall_back(backend, error)
                stack.close()
                locked = []
        if locked or not on_workers:
            _client = stack.enter_context(cluster(**options))
        before, _current = _current, "gpu" if locked else "cpu"
        for device in locked:
            gigabytes = f", {device.total / 1e9:.0f} GB" if device.total else ""
            logger.info("working on %s%s", device.name, gigabytes)
        try:
            yield _current
        finally:
            _current, _client = before, None
            if locked:
                # After a CUDA error all later calls fail: keep the first error.
                with suppress(RuntimeError):
                    memory("default")


def gpu_record() -> dict[str, Any]:
    """Entry of a run record for the GPU in use: device, versions, peak memory on one GPU."""
    cupy = import_module("cupy")
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(runtime.getDevice())["name"]
    peaks = {"here": peak_bytes()} if _client is None else _client.run(peak_bytes)
    return {
        "name": name.decode() if isinstance(name, bytes) else name,
        "memory_mode": current_mode(),
        "peak_memory_bytes": max(peaks.values()),
        "versions": {
            "driver_cuda": gpu_devices.version(runtime.driverGetVersion()),
            "cuda": gpu_devices.version(runtime.runtimeGetVersion()),
            "cupy": cupy.__version__,
            "rmm": _rmm_version(),
        },
    }


def _find_gpus(
    backend: str,
    query_gpus: Callable[[], Machine],
    devices: int | Sequence[int] | None,
    lock: Callable[..., list[Device]],
) -> list[Device]:
    """GPUs that ``lock`` returns for the requested devices; none for the CPU."""
    if backend not in BACKENDS:
        msg = f"backend {backend!r} is unknown: use {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
        raise ConfigError(msg)
    if backend == "cpu":
        return []
    try:
        # The cheapest checks come first.
        _check_installed()
        machine = query_gpus()
        gpu_devices.usable(machine)
        _check_version(machine)
        n, only = requested_gpus(devices, machine)
        only = {_started} if _started and n == 1 and only is None else only
        return lock(n, only=only, query_gpus=query_gpus)
    except GpuError as error:
        _fall_back(backend, error)
        return []


def _fall_back(backend: str, error: GpuError) -> None:
    if backend == "gpu":
        raise GpuError(f"backend: gpu cannot be used, as {error}") from None
    logger.info("backend: auto works on the CPU, as %s", error)


def _check_installed() -> None:
    if find_spec("cupy") is None:
        raise GpuError("CuPy is not installed: install scatlas[gpu-cu12] or scatlas[gpu-cu13]")


def _check_version(machine: Machine) -> None:
    """Refuse a CuPy for a newer CUDA than the driver runs, or without its libraries."""
    try:
        cupy = import_module("cupy")
        built = cupy.cuda.runtime.runtimeGetVersion()
    except (ImportError, AttributeError, RuntimeError) as error:
        msg = f"CuPy is installed and does not load ({first_line(error)}): reinstall it"
        raise GpuError(msg) from None
    if built // 1000 > machine.driver // 1000:
        has = f"the NVIDIA driver runs CUDA up to {gpu_devices.version(machine.driver)}"
        extra = _EXTRAS.get(machine.driver // 1000)
        if extra is None:
            msg = f"{has}, which is too old: install a driver for CUDA {built // 1000} or newer"
        else:
            msg = (
                f"CuPy is for CUDA {built // 1000} and {has}: install scatlas[{extra}] instead, or "
                "a newer driver"
            )
        raise GpuError(msg)
    try:
        cupy.cuda.nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:
        major = built // 1000
        raise GpuError(
            f"CuPy for CUDA {major} does not find that version's compiler, nvrtc "
            f"({first_line(error)}): install cupy-cuda{major}x[ctk]"
        ) from None


def _start_cuda(locked: Sequence[Device]) -> None:
    """Start CUDA on the first of the locked GPUs, which must be the only visible ones."""
    global _started
    device = locked[0]
    runtime = import_module("cupy").cuda.runtime
    # Reason and remedy by number of cudaError_t.
    reasons = {
        2: f"{device.name} has no memory left even to start: others use it",
        35: "the NVIDIA driver is too old for this CuPy: install a newer driver",
        46: f"{device.name} is taken by another process, which has it alone (compute mode)",
        100: "CUDA shows no GPU to this job",
        802: "the GPUs are not ready: start the machine's NVIDIA Fabric Manager service",
        803: "the NVIDIA driver and CUDA's library are of different versions: restart the machine",
        804: f"{device.name} cannot run the installed CUDA compatibility library: remove it",
        999: "the NVIDIA driver failed to start: restart the machine, and see its log (dmesg)",
    }
    try:
        runtime.memGetInfo()  # creates the context
        n_shown = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise GpuError(reasons.get(error.status, f"CUDA does not start: {error}")) from None
    if n_shown > len(locked):
        raise GpuError(
            "CUDA was started in this process before a GPU was locked for it, and may run on "
            "another job's: choose the backend before the first CuPy array"
        )
    _started = device.uuid
    hold_until_exit(locked)


def _rmm_version() -> str | None:
    for name in ("rmm", *(f"rmm-cu{major}" for major in _EXTRAS)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
