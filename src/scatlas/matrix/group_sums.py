"""What `aggregate` computes: sums of groups over all row blocks, and what follows from them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.compute.memory import available_memory
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError, TooLargeError
from scatlas.kernels.dispatch import is_gpu, kernels_for
from scatlas.kernels.moments import group_sums_cpu
from scatlas.kernels.moments.group_sums_cpu import Wanted, check_range, is_whole
from scatlas.matrix import group_medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scatlas.kernels.moments.group_sums_cpu import Sums

# Sums that are made means and variances at once: on a GPU that takes a dozen arrays of so many.
_AT_ONCE = 2**20


class _Part(NamedTuple):
    """What the groups of a block add up to, or the block itself where that is not less."""

    codes: Any
    sums: Sums | None
    block: Any


def of_cells(
    x: Any,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    funcs: tuple[str, ...],
    dof: int,
) -> dict[str, Any]:
    """Aggregate the rows of a matrix.

    Parameters
    ----------
    x
        Matrix ``[n_cells, n_genes]``, in memory or Dask, on the CPU or a GPU.
    codes
        Group of each row, -1: none.
    sizes
        Rows of each group.
    funcs, dof
        As for :func:`scatlas.get.aggregate`.

    Returns
    -------
    An array ``[n_groups, n_genes]`` for each function.

    Raises
    ------
    TooLargeError
        The result does not fit the memory.
    InputError
        Sums of integers do not fit 64 bits.
    """
    shape, dtype, wanted = (sizes.size, x.shape[1]), np.dtype(x.dtype), _wanted(funcs)
    if not is_gpu(x) or "median" in funcs:
        n_arrays = wanted.n_arrays(dtype) + ("median" in funcs) + ({"sum", "mean"} <= set(funcs))
        check_result_size(shape, n_arrays, " and ".join(funcs))
    layers: dict[str, Any] = {}
    if any(wanted):
        total = added(x, codes, sizes.size, wanted, most=int(sizes.max(initial=0)))
        layers = _finish(total, sizes[:, None], funcs, dof)
    if "median" in funcs:
        layers["median"] = group_medians.of_cells(x, codes, sizes)
    return layers


def of_genes(
    x: Any,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    funcs: tuple[str, ...],
    dof: int,
) -> dict[str, NDArray]:
    """Aggregate the columns of a matrix, a block of rows at a time; on the host.

    Parameters
    ----------
    codes
        Group of each column, -1: none.
    x, sizes, funcs, dof
        As for :func:`of_cells`.

    Returns
    -------
    An array ``[n_cells, n_groups]`` for each function.

    Raises
    ------
    TooLargeError, InputError
        As :func:`of_cells`.
    """
    shape, dtype, wanted = (x.shape[0], sizes.size), np.dtype(x.dtype), _wanted(funcs)
    check_result_size(shape, len(funcs), " and ".join(funcs))
    work = partial(_columns_of, codes=codes, sizes=sizes, funcs=funcs, dof=dof, wanted=wanted)
    whole = is_whole(dtype)
    kinds = {"sum": np.int64 if whole else np.float64, "count_nonzero": np.int64}
    layers = {name: np.empty(shape, dtype=kinds.get(name, np.float64)) for name in funcs}
    first = 0
    for part in blocks.stream(x, work, combine=_stacked):
        stop = first + part["rows"].size
        for name, layer in layers.items():
            layer[first:stop] = part[name]
        first = stop
    return layers


def _wanted(funcs: tuple[str, ...]) -> Wanted:
    return Wanted(
        sums=not {"sum", "mean", "var"}.isdisjoint(funcs),
        squares="var" in funcs,
        nonzero="count_nonzero" in funcs,
    )


def check_result_size(shape: tuple[int, int], n_arrays: int, what: str) -> None:
    """Refuse a result that, with what it is computed from, is larger than the memory left.

    Raises
    ------
    TooLargeError
        With the arithmetic.
    """
    needed, left = 8 * shape[0] * shape[1] * n_arrays, available_memory()
    if left is not None and needed > left:
        msg = (
            f"the result of {what} is {shape[0]:,} x {shape[1]:,} values in "
            f"{n_arrays} arrays of 8 bytes, {needed / 1e9:,.1f} GB, but {left / 1e9:,.1f} GB of "
            "memory are left: ask for fewer functions, genes or groups at once"
        )
        raise TooLargeError(msg)


def added(x: Any, codes: NDArray[np.int64], n_groups: int, wanted: Wanted, *, most: int) -> Sums:
    """Sums of each group, in one pass over `x`, where its blocks are.

    Parameters
    ----------
    x
        Matrix ``[n_cells, n_genes]``, in memory or Dask, on the CPU or a GPU.
    codes
        Group of each row, -1: none.
    n_groups
        Number of groups.
    wanted
        What is added up.
    most
        Most rows whose integers will be added up.

    Raises
    ------
    TooLargeError
        The sums do not fit the memory.
    InputError
        Sums of integers do not fit 64 bits.
    """
    kernels = kernels_for("moments.group_sums", x)
    try:
        total = kernels.zeros((n_groups, x.shape[1]), x.dtype, wanted)
    except MemoryError as error:  # CuPy's and RMM's are kinds of it
        n_arrays, where = wanted.n_arrays(x.dtype), "GPU's" if is_gpu(x) else "main"
        msg = (
            f"the {where} memory is too small for {n_groups:,} x {x.shape[1]:,} values in "
            f"{n_arrays} arrays of 8 bytes: ask for fewer functions, genes or groups at once"
        )
        raise TooLargeError(msg) from error
    # Few groups are added up for each block first, by the worker that has made it: all threads have
    # work then, and a cluster sends little. A GPU of this process adds its blocks as they are.
    first = blocks.cluster_of(x) is not None or not is_gpu(x)
    work = partial(_part, wanted=wanted, most=most, first=first, dtype=np.dtype(x.dtype))
    n = n_threads()
    with ThreadPoolExecutor(n, "scatlas-groups") as pool:
        add = kernels.add if is_gpu(x) else partial(_add_shared, pool, n)
        for parts in blocks.stream(x, work, codes, combine=_listed):
            for part in parts:
                if part.sums is None:
                    add(part.block, part.codes, total)
                else:
                    total.add(part.codes, part.sums)
    return total


def _part(
    block: Any, codes: Any, *, wanted: Wanted, most: int, first: bool, dtype: np.dtype
) -> list[_Part]:
    """What is made of a block before it is added: called in worker threads and processes."""
    if is_whole(block.dtype) != is_whole(dtype):
        msg = f"X says that it is {dtype}, but a block of it is {block.dtype}: convert it first"
        raise InputError(msg)
    check_range(block, most, squares=wanted.squares)
    n_groups = np.unique(codes[codes >= 0]).size
    n_values = block.data.size if blocks.is_sparse(block) else block.size
    if first and n_groups * block.shape[1] * wanted.n_arrays(dtype) <= n_values:
        return [
            _Part(*kernels_for("moments.group_sums", block).group_sums(block, codes, wanted), None)
        ]
    return [_Part(codes, None, block)]


def _listed(parts: list[list[_Part]]) -> list[_Part]:
    return [part for half in parts for part in half]


def _add_shared(
    pool: ThreadPoolExecutor, n: int, block: Any, codes: NDArray[np.int64], into: Sums
) -> None:
    """Add a block by `n` threads, each its own groups: who adds does not show in the sums."""
    shares = (np.where(codes % n == i, codes, -1) for i in range(n)) if n > 1 else (codes,)
    list(pool.map(lambda share: group_sums_cpu.add(block, share, into), shares))


def _finish(total: Sums, n: NDArray[np.int64], funcs: tuple[str, ...], dof: int) -> dict[str, Any]:
    """Layers of a sum, which is given up: most of them are its own arrays.

    Parameters
    ----------
    total
        Sums ``[rows, columns]``.
    n
        How many values each is of, ``[rows, 1]`` or ``[1, columns]``.
    """
    layers: dict[str, Any] = {}
    if "sum" in funcs:
        layers["sum"] = total.sums
    if "count_nonzero" in funcs:
        layers["count_nonzero"] = total.nonzero
    if "mean" in funcs:
        # In place, where nobody wants the sums: each number is read before it is overwritten.
        own = "sum" not in funcs
        layers["mean"] = (
            total.sums.view(np.float64)
            if own
            else blocks.dense_like(total.sums, total.sums.shape, np.float64)
        )
    if "var" in funcs:
        layers["var"] = total.squares.view(np.float64)
    if {"mean", "var"}.isdisjoint(funcs):
        return layers
    kernels, mean, var = (
        kernels_for("moments.group_sums", total.sums),
        layers.get("mean"),
        layers.get("var"),
    )

    def finish(rows: slice) -> None:
        of = n if n.shape[0] == 1 else n[rows]
        outs = (None if out is None else out[rows] for out in (mean, var))
        kernels.mean_var(total.at(rows), of, dof, *outs)

    n_rows, n_columns = total.sums.shape
    step = max(1, _AT_ONCE // max(1, n_columns))
    pieces = [slice(lo, min(lo + step, n_rows)) for lo in range(0, n_rows, step)]
    # A GPU's work stays on this thread's stream.
    n_workers = 1 if is_gpu(total.sums) else min(n_threads(), len(pieces))
    if n_workers <= 1:
        for rows in pieces:
            finish(rows)
    else:
        with ThreadPoolExecutor(n_workers, "scatlas-finish") as pool:
            list(pool.map(finish, pieces))
    return layers


def _columns_of(
    block: Any,
    *,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    funcs: tuple[str, ...],
    dof: int,
    wanted: Wanted,
) -> dict[str, NDArray]:
    """Layers of the columns of a block by group ``[rows, groups]``, and the number of its rows."""
    block = blocks.on_host(block)
    check_range(block, int(sizes.max(initial=0)), squares=wanted.squares)
    n_rows = block.shape[0]
    layers: dict[str, NDArray] = {}
    if any(wanted):
        total = group_sums_cpu.zeros((n_rows, sizes.size), block.dtype, wanted)
        group_sums_cpu.add(block, np.arange(n_rows), total, codes)
        layers = _finish(total, sizes[None, :], funcs, dof)
    if "median" in funcs:
        layers["median"] = group_medians.of_columns(block, codes, sizes.size)
    return layers | {"rows": np.arange(n_rows)}


def _stacked(parts: list[dict[str, NDArray]]) -> dict[str, NDArray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
