"""``njit`` whose compiled functions stay on disk, safe when many jobs compile at once.

Numba's own cache keeps an index of numbered files for each function. Two processes that compile it
for two signatures at once can take the same number: every process from then on may be handed code
for other types, whose results are wrong without an error where the items have the same size. (Seen
after half of the attempts with eight processes, Numba 0.68; it loses entries more often still.) A
file cut short by a full disk ends every later process. It checks the source of that file
alone: after a change in another file that a kernel calls, the old code stays in use.

Here each signature has a file, named by it and the processor and replaced as a whole. Its checksum
covers content, that name, Numba's version, the sources of all kernels and those beside the
function: on a mismatch the function is compiled again. The folder is Numba's choice:
``NUMBA_CACHE_DIR`` if set, else ``__pycache__`` beside the kernels, else the user's cache folder.
Different processors and versions of Python may share it.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.codegen import ll
from numba.core.runtime import rtsys

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)
_DIGEST_BYTES = 16
_KERNELS = Path(__file__).parents[1]


def njit(*, cache: bool, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """:func:`numba.njit`, with this module's cache in place of Numba's."""

    def compiled(function: Callable[..., Any]) -> Any:
        # Nothing calls kernels from C: without that entry they compile in a twelfth less time.
        dispatcher = numba.njit(no_cfunc_wrapper=True, **options)(function)
        # With NUMBA_DISABLE_JIT it is the function itself.
        if cache and dispatcher is not function:
            try:
                dispatcher._cache = _Cache(function)
            except RuntimeError:
                _warn_once("no folder for compiled kernels: every process compiles its own")
        return dispatcher

    return compiled


class _Code(CompileResultCacheImpl):  # type: ignore[misc]  # Numba has no types
    """Compiled code with the names of its external symbols."""

    def reduce(self, cres: Any) -> Any:
        module = cres.library._final_module
        parts = (*module.functions, *module.global_variables)
        outside = [part.name for part in parts if part.is_declaration]
        return [name for name in outside if not name.startswith("llvm.")], super().reduce(cres)

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        outside, compiled = payload
        # Numba's cache always loads the compiler, half a second per process. Compiled code needs
        # only the addresses of its symbols: load the compiler only if one is missing.
        rtsys.initialize(target_context)
        if not all(map(_has_address, outside)):
            target_context.refresh()
        return super().rebuild(target_context, compiled)


def _has_address(name: str) -> bool:
    """Whether LLVM or this process knows the address of a symbol."""
    return ll.address_of_symbol(name) is not None


class _Cache(FunctionCache):  # type: ignore[misc]
    # Neither this class nor the attribute `_cache` is public in Numba; tests detect a change.
    _impl_class = _Code

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        base = self._impl.filename_base
        self._cache_file = _Files(
            self._cache_path,
            base,
            (numba.__version__, _sources(Path(function.__code__.co_filename).parent)),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class _Files(IndexDataCacheFile):  # type: ignore[misc]
    """One file per key and no index file."""

    def __init__(self, folder: str, base: str, stamp: Any) -> None:
        super().__init__(folder, base, stamp)
        self._base = base

    def load(self, key: Any) -> Any:
        path, identity = self._named(key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        body = raw[_DIGEST_BYTES:]
        if raw[:_DIGEST_BYTES] != _digest(identity + body):
            return None
        return pickle.loads(body)  # noqa: S301  (our own file, as the checksum says)

    def save(self, key: Any, data: Any) -> None:
        path, identity = self._named(key)
        body = self._dump(data)
        try:
            with self._open_for_write(str(path)) as file:
                file.write(_digest(identity + body) + body)
        except OSError as error:
            _warn_once(f"compiled kernels are not kept: {error}")

    def _named(self, key: Any) -> tuple[Path, bytes]:
        """File of a key, and what its code depends on, for the checksum."""
        name = repr(key).encode()
        path = Path(self._cache_path, f"{self._base}.{_digest(name).hex()}.nbc")
        return path, repr(self._source_stamp).encode() + name


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


@cache
def _sources(folder: Path) -> bytes:
    """Hash of the sources of a folder and of all kernels, because kernels call each other."""
    files = sorted({*folder.glob("*.py"), *_KERNELS.rglob("*.py")})
    return _digest(b"".join(_digest(file.read_bytes()) for file in files))


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s (set NUMBA_CACHE_DIR to a folder that can be written)", message)
