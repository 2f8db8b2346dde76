"""Zarr metadata as R writes them, with arrays of one value where anndata looks for the value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from zarr.storage import WrapperStore

if TYPE_CHECKING:
    from zarr.core.buffer import Buffer

_METADATA = ("zarr.json", ".zattrs", ".zmetadata")
_ARRAY_OF_ONE = re.compile(
    rb'("(?:encoding-type|encoding-version|_index|ordered)"\s*:\s*)\[\s*("[^"]*"|true|false)\s*\]'
)


class SingleValues(WrapperStore[Any]):
    """A store that shows such attributes as single values."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        found = await self._store.get(key, prototype, byte_range)
        if found is None or not key.endswith(_METADATA):
            return found
        return prototype.buffer.from_bytes(_ARRAY_OF_ONE.sub(rb"\1\2", found.to_bytes()))
