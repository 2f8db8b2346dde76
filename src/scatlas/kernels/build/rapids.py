"""The libraries of RAPIDS, where they are installed: cuVS, cuML, cuGraph."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

_NAMES = {"cuvs": "cuVS", "cuml": "cuML", "pylibcugraph": "cuGraph (pylibcugraph)"}
_MEND = "install scatlas[gpu-embed-cu12] or scatlas[gpu-embed-cu13]"


def library(module: str, work: str) -> ModuleType | None:
    """A module of RAPIDS; None, and a warning in the log, where it cannot be loaded.

    Parameters
    ----------
    module
        Its full name, such as ``cuvs.neighbors``.
    work
        What is then done on the CPU, for the log.
    """
    package = module.partition(".")[0]
    cupy = sys.modules.get("cupy")
    # cuML sets CuPy's allocator when it is imported; which one it is, is scatlas.memory's to say.
    allocator = None if cupy is None else cupy.cuda.get_allocator()
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        why = "is not installed" if error.name == package else f"does not load ({error})"
    except (ImportError, OSError, RuntimeError) as error:
        why = f"does not load ({error})"
    finally:
        if allocator is not None:
            cupy.cuda.set_allocator(allocator)
    logger.warning("%s %s: %s on the CPU; %s", _NAMES[package], why, work, _MEND)
    return None
