"""Dask clusters: none, one worker per GPU, workers on the CPU, or an existing cluster.

Dask is imported by the functions that need it: the config checks the options before any job starts.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scatlas.compute import gpu_devices as gpus
from scatlas.compute.device_memory import check_managed_memory
from scatlas.compute.gpu_locks import lock_gpus
from scatlas.errors import ConfigError, GpuError, ScatlasError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from distributed import Client

    from scatlas.compute.gpu_devices import Machine

_RMM_OPTIONS = ("rmm_pool_size", "rmm_maximum_pool_size", "rmm_managed_memory")
# Options of each kind of cluster.
_OPTIONS = {
    "in-process": (),
    "local-gpu": (
        *("devices", "threads_per_worker", "protocol", *_RMM_OPTIONS),
        *("device_memory_limit", "memory_limit", "local_directory"),
    ),
    "local-cpu": ("n_workers", "threads_per_worker", "memory_limit", "local_directory"),
    "existing": ("address", "scheduler_file", *_RMM_OPTIONS),
}

# Clusters that are started here accept connections from this machine only.
LOOPBACK = "127.0.0.1"
_CONNECT_SECONDS = 30
_GUARD = (
    "save the script as a file, and put its lines below 'if __name__ == \"__main__\":', because "
    "each worker imports it"
)


@contextmanager
def cluster(
    kind: Literal["in-process", "local-gpu", "local-cpu", "existing"] = "in-process",
    *,
    devices: int | Sequence[int] | None = None,
    n_workers: int | None = None,
    threads_per_worker: int | None = None,
    protocol: Literal["tcp", "ucx"] | None = None,
    rmm_pool_size: str | float | None = None,
    rmm_maximum_pool_size: str | float | None = None,
    rmm_managed_memory: bool | None = None,
    device_memory_limit: str | float | None = None,
    memory_limit: str | float | None = None,
    local_directory: str | Path | None = None,
    address: str | None = None,
    scheduler_file: str | Path | None = None,
) -> Iterator[Client | None]:
    """Context with a Dask cluster on which Dask arrays are computed and persisted.

    A cluster that it starts listens on the loopback address only, without a dashboard, and ends
    with the context. Workers are processes: in a script call it below ``if __name__ ==
    "__main__":``.

    Parameters
    ----------
    kind
        ``"in-process"``: no cluster, threads of this process. ``"local-gpu"``: one worker per GPU
        (dask-cuda); the GPUs are locked, so that other jobs take others. ``"local-cpu"``: workers
        on this machine's CPUs. ``"existing"``: a scheduler that runs, wherever its workers are.
    devices
        Number of GPUs, or their numbers; default: all free GPUs. It waits for GPUs that other jobs
        of scatlas hold. (local-gpu)
    n_workers
        Number of worker processes; default: Dask's. (local-cpu)
    threads_per_worker
        Threads per worker; default: 1 on GPUs, Dask's on CPUs.
    protocol
        Protocol between workers: ``"tcp"``, or ``"ucx"`` over NVLink and InfiniBand, which needs
        distributed-ucxx. (local-gpu)
    rmm_pool_size, rmm_maximum_pool_size
        Initial and maximum size of the pool of GPU memory in each worker; defaults as ``initial``
        and ``maximum`` of :func:`scatlas.memory`. Without both, existing workers keep their
        allocator. (local-gpu, existing)
    rmm_managed_memory
        Use managed memory, limited by ``rmm_maximum_pool_size``, instead of a pool.
    device_memory_limit
        GPU memory per worker beyond which results are spilled to the host: a size, or a fraction of
        the GPU's memory; default: 0.8. (local-gpu)
    memory_limit
        Host memory per worker beyond which results are spilled to disk. (local-gpu, local-cpu)
    local_directory
        Folder for spilled results. (local-gpu, local-cpu)
    address, scheduler_file
        Address of the scheduler, or file that holds it: one of the two. (existing)

    Yields
    ------
    A connected :class:`distributed.Client`, Dask's default client inside the context; None for
    ``"in-process"``.

    Raises
    ------
    ConfigError
        An option does not belong to the kind, a package is missing, or workers do not start.
    GpuError
        Fewer GPUs are usable than requested.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in {
            "devices": devices,
            "n_workers": n_workers,
            "threads_per_worker": threads_per_worker,
            "protocol": protocol,
            "rmm_pool_size": rmm_pool_size,
            "rmm_maximum_pool_size": rmm_maximum_pool_size,
            "rmm_managed_memory": rmm_managed_memory,
            "device_memory_limit": device_memory_limit,
            "memory_limit": memory_limit,
            "local_directory": None if local_directory is None else str(local_directory),
            "address": address,
            "scheduler_file": scheduler_file,
        }.items()
        if value is not None
    }
    check_cluster(kind, given)
    _check_packages(kind, given)
    with ExitStack() as stack:
        if kind == "in-process":
            yield None
            return
        distributed = import_module("distributed")
        rmm = {name: given.pop(name, None) for name in _RMM_OPTIONS}
        if kind == "existing":
            client = stack.enter_context(_connect(distributed, **given))
        else:
            check_guard(kind)
            make: Callable[..., Any] = _gpu_workers if kind == "local-gpu" else _cpu_workers
            try:
                workers = stack.enter_context(make(stack, **given))
            except RuntimeError as error:  # "Nanny failed to start."
                if isinstance(error, ScatlasError):
                    raise
                msg = f"the workers of the cluster did not start ({error}): {_GUARD}"
                raise ConfigError(msg) from error
            client = stack.enter_context(distributed.Client(workers))
        if kind != "local-cpu":
            _set_memory(client, kind, **rmm)
        yield client


def check_guard(kind: str) -> None:
    """Refuse to start workers while a worker imports the script that started it: it would wait for
    the GPU that its own parent holds.
    """
    from multiprocessing import current_process

    if kind.startswith("local-") and getattr(current_process(), "_inheriting", False):
        raise ConfigError(f"a worker of the cluster runs the script that starts it: {_GUARD}")


def _check_packages(kind: str, given: Mapping[str, Any]) -> None:
    needed = {"in-process": (), "local-gpu": ("distributed", "dask_cuda")}
    for package in needed.get(kind, ("distributed",)):
        if find_spec(package) is None:
            extra = " (scatlas[gpu-cu12] or scatlas[gpu-cu13] brings it)" * (kind == "local-gpu")
            pip = package.replace("_", "-")
            msg = f"a cluster of kind {kind!r} needs {pip}, which is not installed: install {pip}"
            raise ConfigError(f"{msg}{extra}")
    if given.get("protocol") == "ucx" and find_spec("distributed_ucxx") is None:
        raise ConfigError(
            "protocol 'ucx' needs distributed-ucxx, which is not installed: install "
            "distributed-ucxx-cu12 or distributed-ucxx-cu13, or use protocol 'tcp'"
        )


def _set_memory(client: Client, kind: str, **rmm: Any) -> None:
    """Set up GPU memory in each worker, including workers that start later."""
    from scatlas.compute.worker_memory import WorkerMemory

    initial, maximum = rmm["rmm_pool_size"], rmm["rmm_maximum_pool_size"]
    if rmm["rmm_managed_memory"]:
        plugin = WorkerMemory("managed", maximum=maximum)
    elif kind == "existing" and initial is None and maximum is None:
        plugin = WorkerMemory(None)
    else:
        plugin = WorkerMemory("pool", initial=initial, maximum=maximum)
    try:
        client.register_plugin(plugin)
    except ImportError as error:
        msg = f"the cluster's workers cannot load scatlas ({error}): install the same one there"
        raise ConfigError(msg) from None


def requested_gpus(
    devices: int | Sequence[int] | None, machine: Machine
) -> tuple[int | None, set[str] | None]:
    """Number of GPUs that ``devices`` requests (None: all), and their UUIDs if it lists numbers."""
    if devices is None or isinstance(devices, int):
        return devices, None
    shown = gpus.usable(machine)
    if not set(devices) <= set(range(len(shown))) or len(set(devices)) < len(devices):
        msg = f"devices is {list(devices)}: give numbers from 0 to {len(shown) - 1}, each once"
        raise GpuError(msg)
    return len(devices), {shown[i].uuid for i in devices}


def _gpu_workers(
    stack: ExitStack, *, devices: int | Sequence[int] | None = None, **options: Any
) -> Any:
    n, only = requested_gpus(devices, gpus.query_gpus())
    locked = stack.enter_context(lock_gpus(n, only=only, query_gpus=gpus.query_gpus))
    return import_module("dask_cuda").LocalCUDACluster(
        CUDA_VISIBLE_DEVICES=[device.uuid for device in locked],
        host=LOOPBACK,
        dashboard_address=None,
        **{"threads_per_worker": 1, "protocol": "tcp", **options},
    )


def _cpu_workers(stack: ExitStack, **options: Any) -> Any:  # noqa: ARG001
    return import_module("distributed").LocalCluster(
        host=LOOPBACK, dashboard_address=None, processes=True, **options
    )


def _connect(
    distributed: Any, *, address: str | None = None, scheduler_file: str | None = None
) -> Client:
    where = address or str(scheduler_file)
    if scheduler_file is not None and not Path(scheduler_file).is_file():
        raise ConfigError(f"{where}: there is no such scheduler file; is the scheduler running?")
    try:
        if address is not None:
            return distributed.Client(address, timeout=_CONNECT_SECONDS)
        return distributed.Client(scheduler_file=where, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        msg = f"no Dask scheduler answers at {where} ({type(error).__name__}): is it running?"
        raise ConfigError(msg) from None


def check_cluster(kind: str, given: Mapping[str, Any]) -> None:
    """Refuse options that do not belong to the kind of cluster or exclude each other."""
    if kind not in _OPTIONS:
        *first, last = _OPTIONS
        msg = f"a cluster of kind {kind!r} is unknown: use {', '.join(first)} or {last}"
        raise ConfigError(msg)
    for name in given:
        if name not in _OPTIONS[kind]:
            takes = f"takes {', '.join(_OPTIONS[kind])}" if _OPTIONS[kind] else "takes no option"
            msg = f"{name} does not belong to a cluster of kind {kind!r}, which {takes}"
            raise ConfigError(msg)
    if given.get("rmm_managed_memory"):
        check_managed_memory(pool="rmm_pool_size" in given, ucx=given.get("protocol") == "ucx")
    if given.get("protocol", "tcp") not in ("tcp", "ucx"):
        raise ConfigError(f"protocol {given['protocol']!r} is unknown: use tcp or ucx")
    if kind == "existing" and ("address" in given) == ("scheduler_file" in given):
        msg = "a cluster of kind 'existing' needs either its address or its scheduler_file"
        raise ConfigError(msg)
