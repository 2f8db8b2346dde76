"""Memory of GPUs: one allocator for CuPy and RMM, in one of four modes."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from scatlas._util.numbers import parse_bytes
from scatlas.errors import ConfigError, GpuError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Mode = Literal["pool", "managed", "async", "default"]
    Size = str | int | float

_MODES = ("pool", "managed", "async", "default")
# Initial and maximum size of a pool, as fractions of the free memory. The rest is for libraries
# such as cuBLAS and for compiled kernels.
_INITIAL, _MAXIMUM = 0.5, 0.9
_STEP = 256  # RMM's sizes are multiples of this

# Outermost RMM resource of each device, which counts bytes; empty in mode "default".
_counting: dict[int, Any] = {}
_mode: str = "default"


def memory(
    mode: Mode = "pool",
    *,
    initial: Size | None = None,
    maximum: Size | None = None,
    devices: Sequence[int] | None = None,
    share: float = 1,
) -> None:
    """Choose how GPU memory is allocated, for CuPy and for RMM.

    Existing arrays keep their memory and stay valid.

    Parameters
    ----------
    mode
        ``"pool"``: one large allocation that is divided, the fastest. ``"async"``: CUDA's own pool,
        which wastes less if array sizes vary. ``"managed"``: memory that moves between host and
        GPU, slower. ``"default"``: CuPy's own pool, without RMM; libraries that use RMM allocate
        outside of it.
    initial
        Initial size for ``"pool"`` (default: half of the free memory) and ``"async"`` (default:
        none): ``"2GB"``, bytes, or a fraction of the GPU's memory.
    maximum
        Maximum size, in the same units. Default: 90% of the free memory for ``"pool"``, the free
        memory for ``"managed"``, else no limit. With ``"managed"`` it may exceed the memory of the
        GPU, at your own risk: some machines hang when a GPU is oversubscribed.
    devices
        Numbers of the GPUs in this process; default: the current GPU.
    share
        Share of the GPU's memory of which this process may use what the defaults above would give
        it of the whole GPU, whatever ``maximum`` is. For processes that use one GPU together.

    Raises
    ------
    ConfigError
        The mode is unknown, or excludes the given sizes, or a size or share is out of range.
    GpuError
        CuPy or RMM is missing, or the GPU has too little memory.
    """
    global _mode
    _check(mode, initial)
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share}: give more than 0 and at most 1")
    if find_spec("cupy") is None:
        msg = f"memory mode {mode!r} needs CuPy: install scatlas[gpu-cu12] or scatlas[gpu-cu13]"
        raise GpuError(msg)
    if mode != "default" and find_spec("rmm") is None:
        raise GpuError(
            f"memory mode {mode!r} needs RMM, which is not installed: install rmm-cu12 or rmm-cu13 "
            "(the CUDA version of your CuPy), or use mode 'default'"
        )
    cupy = import_module("cupy")
    # Mode "default" does not import RMM, but resets it if it is loaded.
    rmm: Any = sys.modules.get("rmm") if mode == "default" else _import_rmm()
    try:
        chosen = [cupy.cuda.runtime.getDevice()] if devices is None else list(devices)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        msg = f"memory mode {mode!r} needs a GPU, and CUDA does not start ({first_line(error)})"
        raise GpuError(msg) from None
    for device in chosen:
        with cupy.cuda.Device(device):
            _release_unused(cupy, rmm, device)
            free, total = cupy.cuda.runtime.memGetInfo()
            sizes = {
                "initial": _size(initial, total, "initial"),
                "maximum": _size(maximum, total, "maximum", over=mode == "managed"),
            }
            if share < 1:
                free = min(free, int(share * total))
                bound = int(_MAXIMUM * free) // _STEP * _STEP
                sizes["maximum"] = min(sizes["maximum"] or bound, bound)
            if mode == "default":
                # A limit of 0 is none.
                cupy.get_default_memory_pool().set_limit(size=sizes["maximum"] or 0)
                continue
            try:
                resource = _create_resource(rmm.mr, mode, free, **sizes)
                counting = rmm.mr.StatisticsResourceAdaptor(resource)
                rmm.mr.set_per_device_resource(device, counting)
            except (MemoryError, RuntimeError) as error:
                msg = f"memory mode {mode!r} does not start on GPU {device} ({first_line(error)})"
                raise GpuError(f"{msg}: ask for less, or use mode 'default'") from None
            _counting[device] = counting
    if mode == "default":
        cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)
    else:
        cupy.cuda.set_allocator(import_module("rmm.allocators.cupy").rmm_cupy_allocator)
    _mode = mode


def current_mode() -> str:
    """The mode of the last call of :func:`memory`, ``"default"`` before the first."""
    return _mode


def peak_bytes() -> int:
    """Peak bytes of GPU memory in arrays of this process since :func:`memory`; in mode
    ``"default"`` the size of CuPy's pool, which never shrinks by itself.
    """
    if _counting:
        return sum(int(mr.allocation_counts.peak_bytes) for mr in _counting.values())
    return int(import_module("cupy").get_default_memory_pool().total_bytes())


def _check(mode: str, initial: Size | None) -> None:
    if mode not in _MODES:
        hint = " (a pool of managed memory is not offered)" if "managed" in str(mode) else ""
        *first, last = _MODES
        msg = f"memory mode {mode!r} is unknown{hint}: use {', '.join(first)} or {last}"
        raise ConfigError(msg)
    if mode == "managed":
        check_managed_memory(pool=initial is not None, ucx=False)
    if mode == "default" and initial is not None:
        msg = "memory mode 'default' takes nothing at once: leave out initial or use mode 'pool'"
        raise ConfigError(msg)


def check_managed_memory(*, pool: bool, ucx: bool) -> None:
    """Refuse managed memory together with a pool, or with workers that use UCX."""
    if pool:
        raise ConfigError(
            "managed memory and a pool exclude each other: a pool would take all its memory at "
            "once, and nothing could move to the host; leave out the pool's sizes or use mode "
            "'pool'"
        )
    if ucx:
        raise ConfigError(
            "managed memory and protocol 'ucx' exclude each other: UCX hands GPU memory to other "
            "workers by CUDA IPC, which does not take managed memory; use protocol 'tcp' or mode "
            "'pool'"
        )


def _size(size: Size | None, total: int, name: str, *, over: bool = False) -> int | None:
    """Bytes of a size; a float is a fraction of the GPU's memory."""
    if size is None:
        return None
    n_bytes = int(size * total) if isinstance(size, float) else parse_bytes(size)
    if n_bytes < _STEP or (n_bytes > total and not over):
        msg = f"{name} is {size!r}: give more than 0 and at most the GPU's {total / 1e9:.0f} GB"
        raise ConfigError(msg)
    return n_bytes // _STEP * _STEP


def _import_rmm() -> Any:
    try:
        return import_module("rmm")
    except (ImportError, RuntimeError) as error:
        raise GpuError(
            f"RMM is installed and does not load ({first_line(error)}): install the rmm-cu12 or "
            "rmm-cu13 of your CuPy's CUDA version, or use memory mode 'default'"
        ) from None


def _release_unused(cupy: Any, rmm: Any, device: int) -> None:
    """Free unused memory of the pools of a device, so that it is free for a new pool."""
    _counting.pop(device, None)
    if rmm is not None:
        rmm.mr.set_per_device_resource(device, rmm.mr.CudaMemoryResource())
    cupy.get_default_memory_pool().free_all_blocks()


def _create_resource(
    mr: Any, mode: str, free: int, initial: int | None, maximum: int | None
) -> Any:
    if mode == "pool":
        maximum = maximum or int(_MAXIMUM * free) // _STEP * _STEP
        initial = initial or min(int(_INITIAL * free) // _STEP * _STEP, maximum)
        if initial > maximum:
            msg = f"initial ({initial:,} bytes) is above maximum ({maximum:,} bytes): lower it"
            raise ConfigError(msg)
        return mr.PoolMemoryResource(
            mr.CudaMemoryResource(), initial_pool_size=initial, maximum_pool_size=maximum
        )
    if mode == "managed":
        return mr.LimitingResourceAdaptor(mr.ManagedMemoryResource(), maximum or free)
    resource = mr.CudaAsyncMemoryResource(initial_pool_size=initial)
    return resource if maximum is None else mr.LimitingResourceAdaptor(resource, maximum)


def first_line(error: BaseException) -> str:
    """First line of an error's message, or the name of its type if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
