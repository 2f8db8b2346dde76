"""Sums, means, variances and medians by group over all row blocks, for `aggregate`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from scatlas import blocks
from scatlas.arrays.kinds import kind_of
from scatlas.compute.memory import available_memory
from scatlas.compute.threads import n_threads
from scatlas.errors import InputError, TooLargeError
from scatlas.kernels import kernels_for
from scatlas.kernels.moments import group_sums_cpu
from scatlas.kernels.moments.count_moments_cpu import normalized_moments
from scatlas.kernels.moments.group_sums_cpu import SumKinds, Sums, check_range, is_integer
from scatlas.matrix import group_medians

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Sums from which one call computes means and variances: a GPU needs a dozen arrays of that size.
_SUMS_PER_CALL = 2**20
# Values of a small matrix, which one thread adds in the time that others take to start.
_VALUES_OF_ONE_THREAD = 2**20


class _BlockSums(NamedTuple):
    """Sums of the groups of a block, or the block itself if that is not larger."""

    codes: Any
    sums: Sums | None
    block: Any


def aggregate_rows(
    x: Any,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    funcs: tuple[str, ...],
    dof: int,
) -> dict[str, Any]:
    """Aggregate the rows by group (code -1: none): for each function an array ``[n_groups,
    n_genes]``.

    ``sizes`` has the rows per group; ``funcs``, ``dof`` are those of :func:`scatlas.get.aggregate`.
    """
    shape, dtype, wanted = (sizes.size, x.shape[1]), np.dtype(x.dtype), _required_sums(funcs)
    if not kind_of(x).gpu or "median" in funcs:
        n_arrays = wanted.n_arrays(dtype) + ("median" in funcs) + ({"sum", "mean"} <= set(funcs))
        check_result_size(shape, n_arrays, " and ".join(funcs))
    layers: dict[str, Any] = {}
    if any(wanted):
        total = sum_groups(x, codes, sizes.size, wanted, max_rows=int(sizes.max(initial=0)))
        layers = _layers_from_sums(total, sizes[:, None], funcs, dof)
    if "median" in funcs:
        layers["median"] = group_medians.medians_by_row_group(x, codes, sizes)
    return layers


def aggregate_columns(
    x: Any,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    funcs: tuple[str, ...],
    dof: int,
) -> dict[str, NDArray[Any]]:
    """:func:`aggregate_rows` for groups of columns: on the host ``[n_cells, n_groups]`` per
    function.
    """
    shape, dtype, wanted = (x.shape[0], sizes.size), np.dtype(x.dtype), _required_sums(funcs)
    check_result_size(shape, len(funcs), " and ".join(funcs))
    work = partial(
        _aggregate_block_columns, codes=codes, sizes=sizes, funcs=funcs, dof=dof, wanted=wanted
    )
    dtypes = {"sum": np.int64 if is_integer(dtype) else np.float64, "count_nonzero": np.int64}
    layers: dict[str, NDArray[Any]] = {
        name: np.empty(shape, dtype=dtypes.get(name, np.float64)) for name in funcs
    }
    first = 0
    for part in blocks.stream(x, work, combine=_stack_layers):
        stop = first + part["rows"].size
        for name, layer in layers.items():
            layer[first:stop] = part[name]
        first = stop
    return layers


def _required_sums(funcs: tuple[str, ...]) -> SumKinds:
    return SumKinds(
        sums=not {"sum", "mean", "var"}.isdisjoint(funcs),
        squares="var" in funcs,
        nonzero="count_nonzero" in funcs,
    )


def check_result_size(shape: tuple[int, int], n_arrays: int, description: str) -> None:
    """Refuse a result that, with the sums behind it, is larger than the available memory."""
    needed, available = 8 * shape[0] * shape[1] * n_arrays, available_memory()
    if available is not None and needed > available:
        raise TooLargeError(
            f"the result of {description} is {shape[0]:,} x {shape[1]:,} values in "
            f"{n_arrays} arrays of 8 bytes, {needed / 1e9:,.1f} GB, but {available / 1e9:,.1f} GB "
            "of memory are left: request fewer functions, genes or groups at once"
        )


def sum_groups(
    x: Any, codes: NDArray[np.int64], n_groups: int, wanted: SumKinds, *, max_rows: int
) -> Sums:
    """Sums per group of rows (code -1: none), on the host or GPU as `x`, in one pass.

    `max_rows` is the most rows that will be added: integers whose sums could overflow are refused.
    """
    kernels, kind = kernels_for("moments.group_sums", x), kind_of(x)
    gpu = kind.gpu
    try:
        total = kernels.zeros((n_groups, x.shape[1]), x.dtype, wanted)
    except MemoryError as error:  # the base class of CuPy's and RMM's
        n_arrays, where = wanted.n_arrays(x.dtype), "GPU's" if gpu else "main"
        raise TooLargeError(
            f"the {where} memory is too small for {n_groups:,} x {x.shape[1]:,} values in "
            f"{n_arrays} arrays of 8 bytes: request fewer functions, genes or groups at once"
        ) from error
    # If there are few groups, the worker that reads a block also sums it: all threads are busy, and
    # a cluster sends little. A GPU of this process adds its blocks to the total directly, and all
    # threads do so with the only block of a small matrix.
    only_block = len(blocks.row_slices(x)) == 1
    per_block = blocks.cluster_client(x) is not None or not (gpu or only_block)
    work = partial(
        _sum_block, wanted=wanted, max_rows=max_rows, per_block=per_block, dtype=np.dtype(x.dtype)
    )
    small = only_block and not kind.lazy and _n_values(x) <= _VALUES_OF_ONE_THREAD
    n = 1 if gpu or small else n_threads()
    with ThreadPoolExecutor(n, "scatlas-groups") as pool:
        add = kernels.add if n == 1 else partial(_add_in_threads, pool, n)
        for parts in blocks.stream(x, work, codes, combine=blocks.join_lists):
            for part in parts:
                if part.sums is None:
                    add(part.block, part.codes, total)
                else:
                    total.add(part.codes, part.sums)
    return total


def _n_values(x: Any) -> int:
    return int(x.nnz if blocks.is_sparse(x) else x.size)


def _sum_block(
    block: Any,
    codes: Any,
    *,
    wanted: SumKinds,
    max_rows: int,
    per_block: bool,
    dtype: np.dtype[Any],
) -> list[_BlockSums]:
    """Sums of a block if `per_block` and they are smaller; worker threads and processes call it.
    Those of counts that wait to be normalised are their moments: the same bits, in a fifth of the
    time.
    """
    if is_integer(block.dtype) != is_integer(dtype):
        msg = f"X is declared as {dtype}, but a block of it is {block.dtype}: convert it first"
        raise InputError(msg)
    check_range(block, max_rows, squares=wanted.squares)
    n_groups = np.unique(codes[codes >= 0]).size
    pending = getattr(block, "pending", None)
    is_less = n_groups * block.shape[1] * wanted.n_arrays(dtype) <= _n_values(block)
    if is_less and pending and all(wanted) and pending.counts.dtype.kind == "u":
        found = normalized_moments(pending.counts, pending.scales, codes, log=pending.log)
        sums, errors, squares, low = np.ascontiguousarray(np.moveaxis(found.sums, 2, 0))
        total = Sums(False, sums, errors, squares, low, found.expressed)
        return [_BlockSums(found.groups, total, None)]
    if is_less and per_block:
        groups, sums = kernels_for("moments.group_sums", block).group_sums(block, codes, wanted)
        return [_BlockSums(groups, sums, None)]
    return [_BlockSums(codes, None, block)]


def _add_in_threads(
    pool: ThreadPoolExecutor, n: int, block: Any, codes: NDArray[np.int64], total: Sums
) -> None:
    """Add a block with `n` threads; each adds its own groups, so `n` does not change the sums."""
    shares = (np.where(codes % n == i, codes, -1) for i in range(n))
    list(pool.map(lambda share: group_sums_cpu.add(block, share, total), shares))


def _layers_from_sums(
    total: Sums, n: NDArray[np.int64], funcs: tuple[str, ...], dof: int
) -> dict[str, Any]:
    """Layers of the result, most of them in the arrays of `total`; `n`, ``[rows, 1]`` or ``[1,
    columns]``, is the number of values per sum.
    """
    kind = kind_of(total.sums)
    layers: dict[str, Any] = {}
    if "sum" in funcs:
        layers["sum"] = total.sums
    if "count_nonzero" in funcs:
        layers["count_nonzero"] = total.nonzero
    if "mean" in funcs:
        # In place, unless the sums are requested: each sum is read before it is overwritten.
        layers["mean"] = (
            kind.arrays.empty(total.sums.shape, np.float64)
            if "sum" in funcs
            else total.sums.view(np.float64)
        )
    if "var" in funcs:
        layers["var"] = total.squares.view(np.float64)
    if {"mean", "var"}.isdisjoint(funcs):
        return layers
    kernels = kernels_for("moments.group_sums", total.sums)
    mean, var = layers.get("mean"), layers.get("var")

    def compute(rows: slice) -> None:
        n_values = n if n.shape[0] == 1 else n[rows]
        outs = (None if out is None else out[rows] for out in (mean, var))
        kernels.mean_var(total.map(lambda part: part[rows]), n_values, dof, *outs)

    n_rows, n_columns = total.sums.shape
    step = max(1, _SUMS_PER_CALL // max(1, n_columns))
    slices = [slice(lo, min(lo + step, n_rows)) for lo in range(0, n_rows, step)]
    if kind.gpu:  # on this thread's stream
        for rows in slices:
            compute(rows)
    else:
        blocks.for_each(compute, slices)
    return layers


def _aggregate_block_columns(
    block: Any,
    *,
    codes: NDArray[np.int64],
    sizes: NDArray[np.int64],
    funcs: tuple[str, ...],
    dof: int,
    wanted: SumKinds,
) -> dict[str, NDArray[Any]]:
    """Layers ``[rows, groups]`` of a block whose columns are in groups, and its row numbers."""
    block = blocks.on_host(block)
    check_range(block, int(sizes.max(initial=0)), squares=wanted.squares)
    n_rows = block.shape[0]
    layers: dict[str, NDArray[Any]] = {}
    if any(wanted):
        total = group_sums_cpu.zeros((n_rows, sizes.size), block.dtype, wanted)
        group_sums_cpu.add(block, np.arange(n_rows), total, codes)
        layers = _layers_from_sums(total, sizes[None, :], funcs, dof)
    if "median" in funcs:
        layers["median"] = group_medians.medians_by_column_group(block, codes, sizes.size)
    return layers | {"rows": np.arange(n_rows)}


def _stack_layers(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
