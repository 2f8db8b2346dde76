"""Cache of chunks that several blocks of a pass need: the first decodes them for the others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scatlas.compute.threads import n_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy as np

# A pass that skips blocks or stops early leaves entries behind: above 64 MB evict the least
# recently used, but keep what blocks in flight wait for: a chunk of values and one of indices per
# thread, which may be larger than that.
_MAX_BYTES = 64_000_000
_CHUNKS_PER_THREAD = 2


@dataclass
class _Entry:
    n_readers: int
    ready: threading.Event = field(default_factory=threading.Event)
    values: np.ndarray | None = None


class SharedChunkCache:
    """LRU cache of the chunks at the edges of blocks, which two or more blocks need; the cache
    drops one after the last of the blocks whose number each caller gives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, n_readers: int, decode: Callable[[], np.ndarray]) -> np.ndarray:
        """Values of a chunk; the first caller decodes, others wait and get its error, too."""
        with self._lock:
            entry = self._entries.get(key)
            is_first = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry(n_readers)
        if is_first:
            try:
                entry.values = decode()
            finally:
                if entry.values is None:
                    self._drop(key, entry)
                entry.ready.set()
        else:
            entry.ready.wait()
            if entry.values is None:
                return decode()
        values = entry.values
        with self._lock:
            entry.n_readers -= 1
            if entry.n_readers <= 0:
                self._entries.pop(key, None)
            elif key in self._entries:
                self._entries.move_to_end(key)
            self._evict()
        return values

    def _drop(self, key: Hashable, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _evict(self) -> None:
        def n_bytes() -> int:
            return sum(e.values.nbytes for e in self._entries.values() if e.values is not None)

        n_kept = _CHUNKS_PER_THREAD * (n_threads() + 1)
        while len(self._entries) > n_kept and n_bytes() > _MAX_BYTES:
            oldest = next((k for k, e in self._entries.items() if e.values is not None), None)
            if oldest is None:
                return
            del self._entries[oldest]
