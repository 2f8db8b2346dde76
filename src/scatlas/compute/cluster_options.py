"""Checks of the options of clusters and memory modes.

In a module without imports of Dask, because the config checks them before any job starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scatlas.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY_MODES = ("pool", "managed", "async", "default")
RMM_OPTIONS = ("rmm_pool_size", "rmm_maximum_pool_size", "rmm_managed_memory")
# Options of each kind of cluster.
_OPTIONS = {
    "in-process": (),
    "local-gpu": (
        *("devices", "threads_per_worker", "protocol", *RMM_OPTIONS),
        *("device_memory_limit", "memory_limit", "local_directory"),
    ),
    "local-cpu": ("n_workers", "threads_per_worker", "memory_limit", "local_directory"),
    "existing": ("address", "scheduler_file", *RMM_OPTIONS),
}


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
        msg = f"protocol {given['protocol']!r} is unknown: use tcp or ucx"
        raise ConfigError(msg)
    if kind == "existing" and ("address" in given) == ("scheduler_file" in given):
        msg = "a cluster of kind 'existing' needs either its address or its scheduler_file"
        raise ConfigError(msg)


def check_managed_memory(*, pool: bool, ucx: bool) -> None:
    """Refuse managed memory together with a pool, or with workers that use UCX."""
    if pool:
        msg = (
            "managed memory and a pool exclude each other: a pool would take all its memory at "
            "once, and nothing could move to the host; leave out the pool's sizes or use mode "
            "'pool'"
        )
        raise ConfigError(msg)
    if ucx:
        msg = (
            "managed memory and protocol 'ucx' exclude each other: UCX hands GPU memory to other "
            "workers by CUDA IPC, which does not take managed memory; use protocol 'tcp' or mode "
            "'pool'"
        )
        raise ConfigError(msg)
