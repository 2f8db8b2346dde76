"""Plates of single-cell counts to one atlas: exact, out of core, at the speed of the disk.

``import scatlas as sa`` gives ``sa.pp``, ``sa.tl``, ``sa.datasets`` and ``sa.read_lazy``
with scanpy's names and defaults; ``sa.get`` aggregates cells by group and moves data to a GPU and
back, ``sa.memory`` and ``sa.cluster`` set where data is processed, and ``sa.export`` writes an
atlas in the forms of other programs. Submodules load on first use, so
the import itself is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scatlas._util.imports import exports
from scatlas._version import __version__ as __version__

if TYPE_CHECKING:
    from scatlas import datasets as datasets
    from scatlas import export as export
    from scatlas import get as get
    from scatlas import io as io
    from scatlas import pl as pl
    from scatlas import pp as pp
    from scatlas import tl as tl
    from scatlas.compute.cluster import cluster as cluster
    from scatlas.compute.device_memory import memory as memory
    from scatlas.io.matrices.lazy import read_lazy as read_lazy

__getattr__, __dir__, __all__ = exports(__name__)
