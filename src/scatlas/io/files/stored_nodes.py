"""Types of groups and arrays of AnnData files: of h5py, zarr-python, or `local_zarr`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np


class StoredGroup(Protocol):
    """The part of ``h5py.Group`` and ``zarr.Group`` that scatlas uses."""

    @property
    def name(self) -> str:
        """Path in the file: ``/obs``."""

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes."""

    def get(self, name: str, default: Any = None) -> Any:
        """A member, or the default if there is none."""

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __getitem__(self, name: str) -> Any: ...


class StoredArray(Protocol):
    """The part of ``h5py.Dataset`` and ``zarr.Array`` that scatlas uses."""

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
