"""One value for each gene of a cell, though a sparse matrix may store it in parts.

Their sum is the value, as SciPy defines it. Kernels take each stored number for a separate value.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from scatlas.arrays.kinds import kind_of
from scatlas.errors import InputError
from scatlas.kernels.dispatch import kernels_for

# Indices that have no repeats, by their identity and the number of offsets; gone with the array.
# (SciPy's flag is no help: it stays as it is when the arrays are changed, and users set it.)
_unique: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()


def sum_repeats(x: Any) -> Any:
    """`x`, or a copy with the sums, if it is CSR or CSC in memory and stores a value in parts. A
    Dask array is returned as it is: its blocks are summed in the pass over them.
    """
    kind = kind_of(x)
    if kind.gpu and not kind.lazy:
        _check_device(x.data if kind.sparse else x)
    if kind.lazy or not kind.sparse or getattr(x, "format", None) not in {"csr", "csc"}:
        return x
    if _unique.get((id(x.indices), x.indptr.size)) is not x.indices:
        kernels = kernels_for("counts.select", x)
        if kernels.has_repeats(x):
            x = kernels.sum_repeats(x)
        _unique[id(x.indices), x.indptr.size] = x.indices
    return x


def _check_device(values: Any) -> None:
    """Refuse values on another GPU than the current one, whose kernels could not read them."""
    import cupy

    there, here = values.device.id, cupy.cuda.Device().id
    if there != here:
        msg = (
            f"the matrix is in the memory of GPU {there}, but GPU {here} is the current one: call "
            f"the function within 'with cupy.cuda.Device({there}):'"
        )
        raise InputError(msg)
