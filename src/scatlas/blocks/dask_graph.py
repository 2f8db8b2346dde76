"""Blocks of a Dask array, computed one by one in the threads of this process."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from dask.base import optimize
from dask.core import flatten, get_dependencies
from dask.local import get_sync

from scatlas.kernels.counts.lazy_normalized import defer_normalization

if TYPE_CHECKING:
    from collections.abc import Callable

    import dask.array as da
    from dask.typing import Key


def block_reader(x: da.Array) -> Callable[[int], Any]:
    """Function that computes the i-th row block of ``x``, once: Dask's ``compute`` culls the whole
    graph for each, which takes longer than the block if there are thousands.
    """
    (x,) = optimize(x)
    graph = dict(x.__dask_graph__())
    dependencies = {key: get_dependencies(graph, key) for key in graph}
    keys = list(flatten(x.__dask_keys__()))
    shared = SharedResults(dependencies, keys)

    def compute(key: Key) -> Any:
        tasks = {k: graph[k] for k in shared.reach(key)}
        tasks |= {k: (partial(shared.get, k, compute),) for k in shared.requests(key)}
        with defer_normalization():
            return get_sync(tasks, key)

    return lambda i: compute(keys[i])


class SharedResults:
    """Results within a Dask graph that neighbouring blocks need, each computed once.

    Dask rechunks rows taken from an AnnData: most new blocks lie across two blocks on disk, each of
    which would otherwise be read and decoded twice.
    """

    # A result is shared, and kept, only if the blocks that need it are fewer than this apart.
    _MAX_DISTANCE = 3

    def __init__(self, dependencies: dict[Key, set[Key]], keys: list[Key]) -> None:
        self._dependencies = dependencies
        self._keys: set[Key] = set()
        blocks_of_key: dict[Key, list[int]] = {}
        for i, key in enumerate(keys):
            for k in self.reach(key):
                blocks_of_key.setdefault(k, []).append(i)
        self._keys = {k for k, i in blocks_of_key.items() if 0 < i[-1] - i[0] < self._MAX_DISTANCE}
        # Requests for each shared key, also by other shared keys.
        self._n_requests: dict[Key, int] = {}
        todo = list(keys)
        while todo:
            for k in self.requests(todo.pop()):
                if k not in self._n_requests:
                    todo.append(k)
                self._n_requests[k] = self._n_requests.get(k, 0) + 1
        self._locks = {k: threading.Lock() for k in self._n_requests}
        self._results: dict[Key, Any] = {}

    def reach(self, key: Key) -> set[Key]:
        """A key and all of its direct and indirect dependencies that are not shared."""
        reached, todo = {key}, [key]
        while todo:
            new = self._dependencies[todo.pop()] - reached - self._keys
            reached |= new
            todo.extend(new)
        return reached

    def requests(self, key: Key) -> set[Key]:
        """Shared keys that are needed for a key."""
        return set().union(*(self._dependencies[k] for k in self.reach(key))) & self._keys

    def get(self, key: Key, compute: Callable[[Key], Any]) -> Any:
        """Result of a shared key; the last request removes it."""
        with self._locks[key]:
            result = self._results.pop(key) if key in self._results else compute(key)
            self._n_requests[key] -= 1
            if self._n_requests[key]:
                self._results[key] = result
            return result
