"""Chunks that several blocks of a pass need: decoded by the first, kept for the others."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy as np

# A pass that skips blocks, or stops half way, never fetches what was kept for them: beyond these
# limits the chunk that was used longest ago goes. The few are for chunks larger than the bytes.
_KEPT_BYTES = 64_000_000
_KEPT_CHUNKS = 4


@dataclass
class _Entry:
    left: int
    ready: threading.Event = field(default_factory=threading.Event)
    values: np.ndarray | None = None


class SharedChunkCache:
    """Chunks at the borders of blocks.

    A cut of rows hardly ever falls between two chunks, so that the chunk there belongs to two
    blocks (a large chunk to more). Each chunk is given with the number of blocks that need it, and
    is let go when the last of them has had it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def get(self, key: Hashable, uses: int, decode: Callable[[], np.ndarray]) -> np.ndarray:
        """Values of a chunk; the first caller decodes, callers at the same time wait for it.

        Raises
        ------
        Exception
            Whatever ``decode`` raises, in each caller.
        """
        with self._lock:
            entry = self._entries.get(key)
            mine = entry is None
            if entry is None:
                entry = self._entries[key] = _Entry(uses)
        if mine:
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
            entry.left -= 1
            if entry.left <= 0:
                self._entries.pop(key, None)
            elif key in self._entries:
                self._entries.move_to_end(key)
            self._trim()
        return values

    def _drop(self, key: Hashable, entry: _Entry) -> None:
        with self._lock:
            if self._entries.get(key) is entry:
                del self._entries[key]

    def _trim(self) -> None:
        def held() -> int:
            return sum(e.values.nbytes for e in self._entries.values() if e.values is not None)

        while len(self._entries) > _KEPT_CHUNKS and held() > _KEPT_BYTES:
            oldest = next((k for k, e in self._entries.items() if e.values is not None), None)
            if oldest is None:
                return
            del self._entries[oldest]
