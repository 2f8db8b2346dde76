"""Dask clusters: none, one worker a GPU, workers on the CPU, or one that runs already."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scatlas.compute import gpu_devices as gpus
from scatlas.compute.cluster_options import RMM_OPTIONS, check_cluster
from scatlas.compute.gpu_locks import lock_gpus
from scatlas.errors import ConfigError, GpuError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed import Client

    from scatlas.compute.gpu_devices import Machine

# What we start is for this machine alone.
LOOPBACK = "127.0.0.1"
_SECONDS = 30


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

    What it starts listens on this machine's loopback address alone, without a dashboard, and ends
    with the context. Workers are processes of their own: call it below
    ``if __name__ == "__main__":`` in a script.

    Parameters
    ----------
    kind
        ``"in-process"``: no cluster, threads of this process. ``"local-gpu"``: one worker a GPU
        (dask-cuda); the GPUs are claimed, so that other jobs take others. ``"local-cpu"``: workers
        on this machine's CPUs. ``"existing"``: a scheduler that runs, wherever its workers are.
    devices
        GPUs: how many, or their numbers; all that are free when left out. Those that other jobs of
        scatlas have are waited for. (local-gpu)
    n_workers
        Worker processes; Dask chooses when left out. (local-cpu)
    threads_per_worker
        Threads of each worker: 1 on GPUs, and as Dask chooses on CPUs, when left out.
    protocol
        How workers speak to each other: ``"tcp"``, or ``"ucx"`` over NVLink and InfiniBand, which
        needs distributed-ucxx. (local-gpu)
    rmm_pool_size, rmm_maximum_pool_size
        Pool of GPU memory in each worker at first and at most, as ``initial`` and ``maximum`` of
        :func:`scatlas.memory`, whose defaults they have. Workers that exist keep the memory that
        they have when both are left out. (local-gpu, existing)
    rmm_managed_memory
        Managed memory in place of a pool; ``rmm_maximum_pool_size`` is its limit then.
    device_memory_limit
        Results beyond this much GPU memory in a worker are spilled to the host: a size, or a
        fraction of the GPU's memory; 0.8 when left out. (local-gpu)
    memory_limit
        Results beyond this much host memory in a worker are spilled to disk. (local-gpu, local-cpu)
    local_directory
        Where workers spill to. (local-gpu, local-cpu)
    address, scheduler_file
        Where the scheduler is: one of the two. (existing)

    Yields
    ------
    A connected :class:`distributed.Client`, which is Dask's default meanwhile; None in-process.

    Raises
    ------
    ConfigError
        An option does not belong to the kind, or a package is missing.
    GpuError
        There are not so many GPUs that can be used.
    """
    given = {
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
        rmm = {name: given.pop(name, None) for name in RMM_OPTIONS}
        if kind == "existing":
            client = stack.enter_context(_connected(distributed, **given))
        else:
            make = _gpu_workers if kind == "local-gpu" else _cpu_workers
            workers = stack.enter_context(make(stack, **given))
            client = stack.enter_context(distributed.Client(workers))
        if kind != "local-cpu":
            _set_memory(client, kind, **rmm)
        yield client


def _check_packages(kind: str, given: Mapping[str, Any]) -> None:
    needed = {"in-process": (), "local-gpu": ("distributed", "dask_cuda")}
    for package in needed.get(kind, ("distributed",)):
        if find_spec(package) is None:
            extra = " (scatlas[gpu-cu12] or scatlas[gpu-cu13] brings it)" * (kind == "local-gpu")
            pip = package.replace("_", "-")
            msg = f"a cluster of kind {kind!r} needs {pip}, which is not installed: install {pip}"
            raise ConfigError(f"{msg}{extra}")
    if given.get("protocol") == "ucx" and find_spec("distributed_ucxx") is None:
        msg = (
            "protocol 'ucx' needs distributed-ucxx, which is not installed: install "
            "distributed-ucxx-cu12 or distributed-ucxx-cu13, or use protocol 'tcp'"
        )
        raise ConfigError(msg)


def _set_memory(client: Client, kind: str, **rmm: Any) -> None:
    """Set up memory in each worker, also in those that come later."""
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


def choice(
    devices: int | Sequence[int] | None, machine: Machine
) -> tuple[int | None, set[str] | None]:
    """How many GPUs ``devices`` means, and which if it lists numbers.

    Raises
    ------
    GpuError
        A number is not that of a GPU, or stands twice.
    """
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
    n, only = choice(devices, gpus.query_gpus())
    claimed = stack.enter_context(lock_gpus(n, only=only, query_gpus=gpus.query_gpus))
    return import_module("dask_cuda").LocalCUDACluster(
        CUDA_VISIBLE_DEVICES=[device.uuid for device in claimed],
        host=LOOPBACK,
        dashboard_address=None,
        **{"threads_per_worker": 1, "protocol": "tcp", **options},
    )


def _cpu_workers(stack: ExitStack, **options: Any) -> Any:  # noqa: ARG001
    return import_module("distributed").LocalCluster(
        host=LOOPBACK, dashboard_address=None, processes=True, **options
    )


def _connected(
    distributed: Any, *, address: str | None = None, scheduler_file: str | None = None
) -> Client:
    where = address or str(scheduler_file)
    if scheduler_file is not None and not Path(scheduler_file).is_file():
        msg = f"{where}: there is no such scheduler file; is the scheduler running?"
        raise ConfigError(msg)
    try:
        if address is not None:
            return distributed.Client(address, timeout=_SECONDS)
        return distributed.Client(scheduler_file=where, timeout=_SECONDS)
    except (OSError, ValueError) as error:
        msg = f"no Dask scheduler answers at {where} ({type(error).__name__}): is it running?"
        raise ConfigError(msg) from None
