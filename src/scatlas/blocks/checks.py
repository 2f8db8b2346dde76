"""Checks of a matrix before a pass over its blocks, and the declared number of passes;
values that are stored in parts.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakValueDictionary

import numpy as np

from scatlas._util.numbers import as_random_state
from scatlas.arrays.kinds import is_dask, kind_of
from scatlas.errors import InputError, explain_gpu_errors
from scatlas.kernels import kernels_for

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def passes(n: int, note: str = "") -> Callable[[F], F]:
    """Declare how many times a function computes a Dask X, which the tests count; errors of a GPU
    in it become sentences, and ``rng`` is another name of ``random_state``.
    """

    def declare(function: F) -> F:
        draws = "random_state" in (function.__kwdefaults__ or {})

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if draws and "rng" in options:
                options = as_random_state(options)
            with explain_gpu_errors(function.__name__):
                return function(*args, **options)

        attributes: Any = call
        attributes.passes = n
        attributes.passes_note = note
        return cast("F", call)

    return declare


def check(x: Any, name: str = "X") -> None:
    """Refuse a Dask array with blocks of unknown size, or with several blocks along the genes."""
    if not is_dask(x):
        return
    if np.isnan(x.shape).any():
        raise InputError(
            f"{name} has blocks of unknown size, as after selecting rows by a lazy mask: call "
            "compute_chunk_sizes() of the Dask array first"
        )
    if x.ndim > 1 and len(x.chunks[1]) > 1:
        raise InputError(
            f"{name} is cut into {len(x.chunks[1])} blocks along the genes, but blocks must hold "
            f"whole cells: rechunk it first with adata.{name} = adata.{name}.rechunk({{1: -1}})"
        )


def check_type(x: Any, name: str = "X", *, all_floats: bool = False) -> None:
    """Refuse other values than integers, booleans, float32 and float64 in this machine's byte
    order; with ``all_floats`` float16 and longdouble pass, too.
    """
    dtype = np.dtype(x.dtype)
    floats = dtype.kind == "f" and (all_floats or dtype.itemsize in (4, 8))
    if dtype.isnative and (dtype.kind in "biu" or floats):
        return
    raise InputError(
        f"{name} holds values of type {dtype}, but integers, float32 or float64 are needed: "
        "convert it first, with .astype('float32') for instance"
    )


# Indices that have no repeats, by their identity and the number of offsets; gone with the array.
# (SciPy's flag is no help: it stays as it is when the arrays are changed, and users set it.)
_unique: WeakValueDictionary[tuple[int, int], Any] = WeakValueDictionary()


def sum_repeats(x: Any) -> Any:
    """`x`, or a copy with the sums if it is CSR or CSC in memory and stores a value in parts, as
    SciPy defines it: kernels take each stored number for a value.
    """
    kind = kind_of(x)
    if kind.gpu and not kind.lazy:
        _check_device(x.data if kind.sparse else x)
    # The blocks of a Dask array are summed in the pass over them.
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
        raise InputError(
            f"the matrix is in the memory of GPU {there}, but GPU {here} is the current one: call "
            f"the function within 'with cupy.cuda.Device({there}):'"
        )
