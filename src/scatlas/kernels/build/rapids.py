"""Optional libraries of RAPIDS: cuVS, cuML, cuGraph."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger(__name__)

_NAMES = {"cuvs": "cuVS", "cuml": "cuML", "pylibcugraph": "cuGraph (pylibcugraph)"}
_REMEDY = "install scatlas[gpu-embed-cu12] or scatlas[gpu-embed-cu13]"


def load_library(module: str, work: str) -> ModuleType | None:
    """Import a module of RAPIDS; None, with a warning in the log, if that fails.

    Parameters
    ----------
    module
        Its full name, such as ``cuvs.neighbors``.
    work
        What runs on the CPU instead, for the log.
    """
    package = module.partition(".")[0]
    cupy: Any = sys.modules.get("cupy")
    # cuML replaces CuPy's allocator on import: restore the one that scatlas.memory has set.
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
    logger.warning("%s %s: %s on the CPU; %s", _NAMES[package], why, work, _REMEDY)
    return None
