"""Run an iterator in a thread of its own, one item ahead of its consumer."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")


def read_ahead(items: Generator[T, None, None]) -> Iterator[T]:
    """Yield ``items`` in order while a thread already makes the next one.

    At most three items exist at once: in the consumer's hands, waiting, and in the making. An
    error in the thread is raised here, in its place in the order. When the consumer stops early,
    the thread closes ``items`` after the one in the making and ends, before this generator's
    ``close`` returns.
    """
    waiting: queue.Queue = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def put(entry: tuple[bool, object]) -> None:
        while not stopped.is_set():
            try:
                waiting.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return

    def make() -> None:
        try:
            for item in items:
                put((True, item))
                if stopped.is_set():
                    items.close()
                    return
        except BaseException as error:  # noqa: BLE001  (raised again in the consumer's thread)
            put((False, error))
        else:
            put((False, None))

    thread = threading.Thread(target=make, name="scatlas-ahead", daemon=True)
    thread.start()
    try:
        while True:
            more, item = waiting.get()
            if not more:
                break
            yield item  # type: ignore[misc]
            del item  # not held while waiting for the next
    finally:
        stopped.set()
        thread.join()
    if item is not None:
        raise item
