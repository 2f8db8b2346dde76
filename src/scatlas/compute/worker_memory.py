"""Dask plugin that sets up GPU memory in each worker: one allocator for CuPy and RMM."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from distributed import WorkerPlugin

from scatlas.compute.device_memory import memory

if TYPE_CHECKING:
    from scatlas.compute.device_memory import Mode, Size


class WorkerMemory(WorkerPlugin):
    """Set the memory mode of every worker, including workers that start or restart later."""

    name = "scatlas-memory"

    def __init__(
        self, mode: Mode | None, initial: Size | None = None, maximum: Size | None = None
    ) -> None:
        self._mode, self._initial, self._maximum = mode, initial, maximum

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Called by Dask in the worker."""
        if self._mode is not None:
            memory(self._mode, initial=self._initial, maximum=self._maximum)
        elif "rmm" in sys.modules and find_spec("cupy") is not None:
            # Use the allocator that the cluster was started with: there is no room for a second
            # pool.
            import_module("rmm.allocators.cupy")
            resource = sys.modules["rmm"].mr.get_current_device_resource()
            if type(resource).__name__ != "CudaMemoryResource":
                allocator = sys.modules["rmm.allocators.cupy"].rmm_cupy_allocator
                import_module("cupy").cuda.set_allocator(allocator)
