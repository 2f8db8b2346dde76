"""Imports of packages that an extra brings say which extra to install."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from scatlas.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Package, and the extra of pyproject.toml that brings it, by the module that is imported.
EXTRAS = {
    "harmonypy": ("harmonypy", "integrate"),
    "igraph": ("igraph", "embed"),
    "leidenalg": ("leidenalg", "embed"),
    "matplotlib": ("matplotlib", "plot"),
    "pynndescent": ("pynndescent", "embed"),
    "skmisc": ("scikit-misc", "skmisc"),
    "sklearn": ("scikit-learn", "embed"),
    "umap": ("umap-learn", "embed"),
}


@contextmanager
def from_extra() -> Iterator[None]:
    """Context of an import that names the extra if the package is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        package, extra = EXTRAS[module]
        msg = f"{package} is not installed: pip install 'scatlas[{extra}]'"
        raise InputError(msg) from error
