"""CPU or GPU: what a job runs on, and why.

Which of the two must not depend on what else happens to run, as their results differ in the last
bits: where other jobs of scatlas have all GPUs, a job waits. Only GPUs that cannot be used, among
them those that processes of others have filled, are a reason to work on the CPU.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from scatlas.compute import gpu_devices
from scatlas.compute.cluster import choice, cluster
from scatlas.compute.device_memory import current_mode, memory, peak_bytes
from scatlas.compute.gpu_locks import check, hold_until_exit, lock_gpus
from scatlas.errors import ConfigError, GpuError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from scatlas.compute.gpu_devices import Device, Machine

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "cpu", "gpu")
# CUDA versions that CuPy is packaged for, by the extra that brings it.
_EXTRAS = {12: "gpu-cu12", 13: "gpu-cu13"}

_current: Literal["cpu", "gpu"] = "cpu"
# The GPU on which CUDA runs in this process: it stays there until the process ends.
_started: str | None = None
# Of the cluster that the work runs on.
_client: Any = None


def choose(
    backend: Literal["auto", "cpu", "gpu"] = "auto",
    *,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> Literal["cpu", "gpu"]:
    """What a backend means on this machine at this moment; nothing is claimed or started.

    A GPU that another job of scatlas has counts: :func:`use` would wait for it.

    Parameters
    ----------
    backend
        ``"gpu"`` refuses to go on without a GPU that CuPy can use; ``"auto"`` takes the CPU then
        and says why in the log.
    query_gpus
        Asks for the driver's CUDA version and the GPUs.

    Raises
    ------
    GpuError
        ``"gpu"`` is wanted and cannot be had; one sentence says why.
    """
    return "gpu" if _gpus(backend, query_gpus, 1, check) else "cpu"


def current() -> Literal["cpu", "gpu"]:
    """What the work inside :func:`use` runs on; the CPU elsewhere."""
    return _current


@contextmanager
def use(
    backend: Literal["auto", "cpu", "gpu"] = "auto",
    *,
    memory_mode: str = "pool",
    memory_limit: str | None = None,
    on: Mapping[str, Any] | None = None,
    query_gpus: Callable[[], Machine] = gpu_devices.query_gpus,
) -> Iterator[Literal["cpu", "gpu"]]:
    """Context in which work runs on the CPU, or on a GPU that no other job has.

    It waits while other jobs of scatlas have all GPUs, and says in the log who they are. It has to
    come before anything that starts CUDA, such as the first CuPy array.

    Parameters
    ----------
    backend, query_gpus
        As for :func:`choose`.
    memory_mode, memory_limit
        ``mode`` and ``maximum`` of :func:`scatlas.memory`, for this process. Workers have the
        memory that ``on`` says.
    on
        Options of :func:`scatlas.cluster`, on which Dask arrays are worked on meanwhile. One of
        kind ``"local-gpu"`` is not started where the backend turns out to be the CPU.

    Yields
    ------
    ``"cpu"`` or ``"gpu"``, also told by :func:`current` meanwhile.

    Raises
    ------
    GpuError
        As for :func:`choose`.
    """
    global _current, _client
    options = dict(on or {"kind": "in-process"})
    of_gpus = options["kind"] == "local-gpu"
    wanted = options.pop("devices", None) if of_gpus else 1
    with ExitStack() as stack:

        def take(n: int | None, **options: Any) -> list[Device]:
            return stack.enter_context(lock_gpus(n, **options))

        claimed = _gpus(backend, query_gpus, wanted, take)
        if claimed:
            try:
                _start(claimed)
                # Workers have the pools; what this process holds of their GPUs is small.
                memory("default" if of_gpus else memory_mode, maximum=memory_limit)
            except GpuError as error:
                _fall_back(backend, error)
                stack.close()
                claimed = []
        if claimed or not of_gpus:
            _client = stack.enter_context(cluster(**options))
        before, _current = _current, "gpu" if claimed else "cpu"
        for device in claimed:
            gigabytes = f", {device.total / 1e9:.0f} GB" if device.total else ""
            logger.info("working on %s%s", device.name, gigabytes)
        try:
            yield _current
        finally:
            _current, _client = before, None
            if claimed:
                # After an error of CUDA's every further call fails: the first is the one to tell.
                with suppress(RuntimeError):
                    memory("default")


def record() -> dict[str, Any]:
    """What a run record says of the GPU in use: device, versions, most memory on one GPU."""
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


def _gpus(
    backend: str,
    query_gpus: Callable[[], Machine],
    wanted: int | Sequence[int] | None,
    take: Callable[..., list[Device]],
) -> list[Device]:
    """What ``take`` makes of the wanted GPUs where CuPy fits them, none for the CPU."""
    if backend not in BACKENDS:
        msg = f"backend {backend!r} is unknown: use {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
        raise ConfigError(msg)
    if backend == "cpu":
        return []
    try:
        # What is quick to find out comes first.
        _check_installed()
        machine = query_gpus()
        gpu_devices.usable(machine)
        _check_version(machine)
        n, only = choice(wanted, machine)
        only = {_started} if _started and n == 1 and only is None else only
        return take(n, only=only, query_gpus=query_gpus)
    except GpuError as error:
        _fall_back(backend, error)
        return []


def _fall_back(backend: str, error: GpuError) -> None:
    if backend == "gpu":
        msg = f"backend: gpu cannot be used, as {error}"
        raise GpuError(msg) from None
    logger.info("backend: auto works on the CPU, as %s", error)


def _check_installed() -> None:
    if find_spec("cupy") is None:
        msg = "CuPy is not installed: install scatlas[gpu-cu12] or scatlas[gpu-cu13]"
        raise GpuError(msg)


def _check_version(machine: Machine) -> None:
    """Refuse a CuPy of another CUDA version than the driver's, or without its libraries."""
    try:
        cupy = import_module("cupy")
        built = cupy.cuda.runtime.runtimeGetVersion()
    except (ImportError, AttributeError, RuntimeError) as error:
        msg = f"CuPy is installed and does not load ({_first(error)}): install it anew"
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
        msg = (
            f"CuPy for CUDA {major} does not find that version's compiler, nvrtc "
            f"({_first(error)}): install cupy-cuda{major}x[ctk]"
        )
        raise GpuError(msg) from None


def _start(claimed: Sequence[Device]) -> None:
    """Start CUDA on the first of the claimed GPUs, the only ones that it shows by now."""
    global _started
    device = claimed[0]
    runtime = import_module("cupy").cuda.runtime
    # Numbers of cudaError_t, by what a user can do about it.
    whys = {
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
        runtime.memGetInfo()  # makes the context
        n_shown = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise GpuError(whys.get(error.status, f"CUDA does not start: {error}")) from None
    if n_shown > len(claimed):
        msg = (
            "CUDA was started in this process before a GPU was claimed for it, and may run on "
            "another job's: choose the backend before the first CuPy array"
        )
        raise GpuError(msg)
    _started = device.uuid
    hold_until_exit(claimed)


def _rmm_version() -> str | None:
    for name in ("rmm", *(f"rmm-cu{major}" for major in _EXTRAS)):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _first(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
