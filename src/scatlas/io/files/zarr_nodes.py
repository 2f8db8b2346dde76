"""Types of the groups and arrays of a Zarr store: of zarr-python, or read without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np


class ZarrGroup(Protocol):
    """The part of ``zarr.Group`` that scatlas uses."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes."""

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str) -> Any: ...


class ZarrArray(Protocol):
    """The part of ``zarr.Array`` that scatlas uses."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes."""

    @property
    def dtype(self) -> np.dtype:
        """Type of the values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Values per chunk along each axis."""

    def __getitem__(self, rows: slice) -> Any: ...
