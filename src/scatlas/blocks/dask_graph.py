"""Blocks of a Dask array, computed one by one in the threads of this process."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import dask
from dask.core import flatten, get_dependencies

from scatlas.kernels.counts.lazy_normalized import defer_normalization

if TYPE_CHECKING:
    from collections.abc import Callable

    import dask.array as da


def block_maker(x: da.Array) -> Callable[[int], Any]:
    """Function that computes the i-th row block of ``x``, once, walking its part of the graph.

    Dask's own ``compute`` on one block of many culls the whole graph each time, which costs more
    than the block when there are thousands.
    """
    (x,) = dask.optimize(x)
    graph = dict(x.__dask_graph__())
    below = {key: get_dependencies(graph, key) for key in graph}
    keys = list(flatten(x.__dask_keys__()))
    shared = Shared(below, keys)

    def compute(key: Any) -> Any:
        needed = {k: graph[k] for k in shared.reach(key)}
        # A task in the place of each block that another one needs as well.
        needed |= {k: (partial(shared.get, k, compute),) for k in shared.requests(key)}
        with defer_normalization():
            return dask.get(needed, key)

    return lambda i: compute(keys[i])


class Shared:
    """Results within a Dask graph that neighbouring blocks need, each made once for all of them.

    When rows are taken from an AnnData, Dask cuts the array anew, and most of the new blocks lie
    across two blocks on disk. Each would be read and decoded twice.

    Parameters
    ----------
    below
        What each key of the graph depends on.
    keys
        Those of the blocks, each of which is computed once.
    """

    # Blocks at most from the first to the last that need a result, which is kept for so long.
    _NEAR = 3

    def __init__(self, below: dict[Any, set], keys: list[Any]) -> None:
        self._below = below
        self._keys: set[Any] = set()
        users: dict[Any, list[int]] = {}
        for i, key in enumerate(keys):
            for k in self.reach(key):
                users.setdefault(k, []).append(i)
        self._keys = {k for k, i in users.items() if 0 < i[-1] - i[0] < self._NEAR}
        # How often each is asked for, be it for another that is shared.
        self._left: dict[Any, int] = {}
        todo = list(keys)
        while todo:
            for k in self.requests(todo.pop()):
                if k not in self._left:
                    todo.append(k)
                self._left[k] = self._left.get(k, 0) + 1
        self._locks = {k: threading.Lock() for k in self._left}
        self._results: dict[Any, Any] = {}

    def reach(self, key: Any) -> set:
        """A key and all below it that are made for it alone."""
        found, todo = {key}, [key]
        while todo:
            new = self._below[todo.pop()] - found - self._keys
            found |= new
            todo.extend(new)
        return found

    def requests(self, key: Any) -> set:
        """Shared keys that are needed for a key."""
        return set().union(*(self._below[k] for k in self.reach(key))) & self._keys

    def get(self, key: Any, make: Callable[[Any], Any]) -> Any:
        """Result of a shared key, which is forgotten when the last who needs it has it."""
        with self._locks[key]:
            result = self._results.pop(key) if key in self._results else make(key)
            self._left[key] -= 1
            if self._left[key]:
                self._results[key] = result
            return result
