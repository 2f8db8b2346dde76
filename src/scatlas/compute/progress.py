"""Progress of a pass: a bar on a terminal, lines in a log file."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0
_description: ContextVar[str | None] = ContextVar("scatlas_progress", default=None)


@contextmanager
def progress(description: str) -> Iterator[None]:
    """Context that reports the progress of each pass over row blocks under this description."""
    token = _description.set(description)
    try:
        yield
    finally:
        _description.reset(token)


class _SilentLog:
    def update(self, n: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _LogLines:
    """A line in the log every ten seconds and one at the end."""

    def __init__(self, description: str, total: int, unit: str) -> None:
        self._description, self._total, self._done = description, total, 0
        self._unit = unit
        self._start = self._last = time.monotonic()

    def update(self, n: int) -> None:
        """Count ``n`` more."""
        self._done += n
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES and self._done < self._total:
            self._last = now
            spent = now - self._start
            left = spent * (self._total - self._done) / self._done
            share = 100 * self._done / self._total
            logger.info(
                "%s: %.0f%% (%s of %s %s, %.0f s, about %.0f s left)",
                *(self._description, share, f"{self._done:,}", f"{self._total:,}", self._unit),
                *(spent, left),
            )

    def close(self) -> None:
        """Log the duration of the pass."""
        spent = time.monotonic() - self._start
        logger.info("%s: %s %s in %.1f s", self._description, f"{self._done:,}", self._unit, spent)


def progress_meter(total: int, *, unit: str = "cells") -> _SilentLog | _LogLines:
    """Counter of one pass: ``update(n)`` for n more cells (or other ``unit``), ``close()`` at the
    end.
    """
    description = _description.get()
    if description is None:
        return _SilentLog()
    if sys.stderr.isatty():
        from tqdm import tqdm

        return tqdm(total=total, desc=description, unit=unit, unit_scale=True, leave=False)
    return _LogLines(description, total, unit)
