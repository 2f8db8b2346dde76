"""Kernels of one block on the GPU give what the CPU's give: the same bits, or a stated tolerance.

``KERNELS`` has a line per pair of modules. Each kernel is called with blocks of all types, widths
of indices, shapes and layouts; it leaves the block as it is, and a second call has the same bits.
``ODD`` has the blocks that only some kernels tell apart, such as values that are not finite;
``CUTS`` the sums that do not depend on the order of cells and blocks; ``REFUSED`` the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.kernels.moments.moments_cpu import merge_in_place
from tests.gpu import kernel_calls as calls
from tests.gpu.kernel_calls import FLOATS, Beside, of_moments, of_qc, some_values
from tests.gpu.shared import host_arrays

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COUNTED = ("uint8", "uint16", *FLOATS)
SUMMED = ("bool", "uint8", "int16", "int64", *FLOATS)
SHAPES = [(0, 5), (5, 0), (0, 0), (1, 1), (1, 70), (200, 1), (3, 33), (33, 65), (301, 97)]


@dataclass(frozen=True)
class Kernel:
    """Calls with ``(kernels, block, beside)``; types of values; counts, or numbers of both signs,
    whose sums cancel; tolerance relative to each number, and with these to the largest value, and
    that of dense blocks if it differs; what of the numbers beside the block may be on the GPU, too;
    sizes in the GPU's module, by name.
    """

    calls: Callable[[Any, Any, Beside], Iterator[Any]]
    dtypes: tuple[str, ...] = (*INTEGERS, *FLOATS)
    reals: bool = False
    rtol: float = 0.0
    rtol_dense: float | None = None
    on_device: tuple[str, ...] = ()
    sizes: dict[str, float] = field(default_factory=dict)


IN_SMALL_PARTS = {"_PAIR_COST": 0.0, "_PART_VALUES": 500, "_PANEL": 50}
IN_SMALL_PARTS |= {"_COUNTED": 70, "_RUN": 7, "_CHUNKS": 5}
KERNELS = {
    "counts.qc": Kernel(calls.qc, reals=True, rtol=1e-12),
    "counts.normalize": Kernel(calls.normalize, COUNTED),
    "counts.select": Kernel(
        calls.select, ("bool", "int16", "uint64", *COUNTED), on_device=("genes", "cells")
    ),
    "counts.normalize of chosen genes": Kernel(calls.select_and_log_normalize, COUNTED),
    "counts.downsample": Kernel(calls.downsample),
    "linalg.scale": Kernel(calls.scale, COUNTED),
    "linalg.regress": Kernel(calls.regress, SUMMED, reals=True),
    "moments.moments": Kernel(calls.moments, reals=True, rtol=1e-12, on_device=("codes",)),
    "moments.count_moments": Kernel(
        calls.count_moments,
        ("uint8", "uint16", "uint32", "int64", "float32"),
        on_device=("codes", "scales"),
    ),
    "moments.moments above bounds": Kernel(calls.clipped_moments, on_device=("codes",)),
    "moments.pearson": Kernel(
        calls.pearson, ("int8", "uint8", "uint16", "int64", *FLOATS), on_device=("codes",)
    ),
    "moments.group_sums": Kernel(calls.group_sums, reals=True),
    # Products of counts are exact in any order.
    "linalg.gram by pairs": Kernel(calls.gram, SUMMED, sizes={"_PAIR_COST": 0.0}),
    "linalg.gram by pairs in small parts": Kernel(calls.gram, SUMMED, sizes=IN_SMALL_PARTS),
    "linalg.gram of dense rows": Kernel(
        calls.gram,
        SUMMED,
        sizes={"_PAIR_COST": 1e18, "_DENSE_BYTES": 8 * 97 * 70, "_DENSE_PANEL": 32},
    ),
    "linalg.project": Kernel(calls.project, SUMMED, reals=True, rtol_dense=1e-12),
    "ranking.rank_sums": Kernel(calls.rank_sums, reals=True),
}


def asked(*names: str) -> Kernel:
    """Of these functions, whose only argument is the block."""
    return Kernel(lambda k, x, at: (np.asarray(getattr(k, name)(x)) for name in names))


NOT_FINITE = [
    np.array([[np.nan, np.inf, -np.inf, np.inf, 1.5], [1, 2, 3, -np.inf, 0]], dtype)
    for dtype in FLOATS
]
FIRST = [2.0**51, 1, 0]
SPREAD = np.array([[np.nan, np.inf, 1, -np.inf, 0], [1, 1, 2, 1, 0], [0, 0, 3, 0, 0]])
# Blocks with a sparse copy of those that are dense, and what is asked of the kernels.
ODD: dict[str, tuple[Kernel, Callable[[np.random.Generator], list[Any]]]] = {
    "counts.qc of any size": (
        replace(asked("gene_totals"), reals=True, rtol=1e-12),
        lambda r: [some_values(r, "float64") * size for size in (1e-200, 1e-30, 1e30, 1e300)],
    ),
    "counts.qc that is not finite": (
        asked("gene_totals", "row_sums"),
        lambda r: NOT_FINITE,
    ),
    "counts.qc of the largest that is not finite": (
        Kernel(lambda k, x, at: iter([k.top_totals(x, [1])])),
        lambda r: NOT_FINITE,
    ),
    "counts.qc with a half": (
        asked("row_sums", "holds_counts"),
        lambda r: [np.append(some_values(r, "float32")[1:], np.full((1, 97), 0.5), axis=0)],
    ),
    "counts.qc of what may be counts": (
        asked("holds_counts"),
        lambda r: [np.array([[0, 3, 0], [x, 0, 100]]) for x in (0.5, -1, -1.0, np.nan, 1e-30, 1)],
    ),
    "counts.qc of large integers": (
        Kernel(lambda k, x, at: of_qc(k.qc_block(x, np.ones((1, 3), bool), [2]))),
        lambda r: [np.array([FIRST, [2.0**51, 1, 3], FIRST])],
    ),
    "counts.qc of larger integers": (
        Kernel(lambda k, x, at: of_qc(k.qc_block(x, np.ones((1, 3), bool), [2])), rtol=1e-15),
        lambda r: [np.array([[2.0**60, 1, 0], [2.0**51, 1, 3], FIRST])],
    ),
    "counts.qc of long and equal rows": (
        Kernel(
            lambda k, x, at: iter([k.top_totals(x, [1, 49, 50, 100, 200, 500, 19_999, 20_000])])
        ),
        lambda r: [
            sp.csr_matrix(np.vstack([r.poisson(3, 20_000), np.full(20_000, 7), np.zeros(20_000)]))
            .astype(dtype)
            for dtype in ("uint8", "float32")
        ],
    ),
    **{
        f"counts.select of repeats, {n} at once": (
            Kernel(calls.repeated_genes, sizes={"SORTED_AT_ONCE": n}),
            lambda r: [calls.with_repeats(r), calls.shuffled(r, "float32")],
        )
        for n in (1 << 26, 300, 1)
    },
    "counts.normalize of repeats": (
        Kernel(calls.select_and_log_normalize),
        lambda r: [calls.with_repeats(r), calls.shuffled(r, "float32")],
    ),
    "counts.downsample of genes in any order": (
        Kernel(calls.downsample),
        lambda r: [calls.shuffled(r, "uint16", width) for width in ("uint16", "int32", "int64")],
    ),
    # Totals that need all 32 bits, and numbers that are drawn again.
    "counts.downsample of large counts": (
        Kernel(
            lambda k, x, at: iter([
                k.draw_counts(
                    x, np.arange(100), np.full(100, 20), seed=1, replace=True, dtype=np.int64
                )
            ])
        ),
        lambda r: [sp.csr_matrix(np.tile([[3 * 2**29, 0, 5, 3 * 2**29 - 10]], (100, 1)))],
    ),
    "linalg.scale that is not finite": (
        Kernel(
            lambda k, x, at: iter(
                [k.scale(x, np.ones(2), np.array([2.0, 3.0]), 3, dtype=np.float64)]
            )
        ),
        lambda r: [np.array([[np.nan, np.inf], [-np.inf, 1.0]])],
    ),
    "linalg.gram of genes in any order": (
        Kernel(calls.gram),
        lambda r: [calls.with_repeats(r), calls.shuffled(r, "float32")],
    ),
    # A row with more values than a part, and parts without values.
    "linalg.gram of one long row": (
        Kernel(calls.gram, sizes=IN_SMALL_PARTS),
        lambda r: [np.eye(41, 1, -20, dtype=np.float32) * np.ones((1, 2000), np.float32)],
    ),
    "moments.moments of expm1": (
        Kernel(calls.moments_of_expm1, rtol=1e-12),
        lambda r: [some_values(r, "uint8") % 20, calls.logged_counts(r, "float64")],
    ),
    # NumPy's expm1 of float32 has errors of some units in the last place.
    "moments.moments of expm1 of float32": (
        Kernel(calls.moments_of_expm1, rtol=1e-6),
        lambda r: [calls.logged_counts(r, "float32")],
    ),
    "moments.moments that are not finite": (
        Kernel(calls.moments_not_finite, rtol=1e-12),
        lambda r: [SPREAD, SPREAD.astype(np.float32)],
    ),
    "moments.moments of squares that overflow": (
        Kernel(calls.finite_moments),
        lambda r: [np.array([[1e200, 1.0], [1.0, 1.0]])],
    ),
    "moments.moments of expm1 that overflow": (
        Kernel(partial(calls.finite_moments, expm1=True)),
        lambda r: [np.array([[1e5, 1.0], [1.0, 1.0]], dtype) for dtype in FLOATS],
    ),
    "moments.count_moments of no counts": (
        Kernel(calls.moments_of_scaled_reals, rtol=1e-12),
        calls.some_reals,
    ),
    "moments.count_moments of cells that overflow": (
        Kernel(partial(calls.moments_of_scaled_reals, scales=[np.inf, 1.0, np.nan]), rtol=1e-12),
        lambda r: [np.array([[1, 0, 2], [0, 3, 4], [0, 5, 0]], np.uint16)],
    ),
    "moments.count_moments of logarithms below -1": (
        Kernel(partial(calls.moments_of_scaled_reals, scales=[1.0]), rtol=1e-12),
        lambda r: [np.array([[-2.0, -1.0, -0.5, 1.0]], np.float32)],
    ),
    "moments.group_sums that are not finite": (
        Kernel(calls.group_sums_not_finite),
        lambda r: [np.array([[np.inf, np.nan, 1.0], [1.0, 2.0, np.inf], [2.0, 1.0, -np.inf]])],
    ),
    **{
        f"ranking.rank_sums of {n} groups": (
            Kernel(partial(calls.rank_sums, n_groups=n)),
            lambda r: [some_values(r, dtype, reals=True) for dtype in ("uint8", "float64")],
        )
        for n in (1, 2, 300, 70_000)
    },
    # Ties longer than a thread block, and more values than one thread block takes.
    "ranking.rank_sums of few genes": (
        Kernel(partial(calls.rank_sums, n_groups=7)),
        lambda r: [
            (r.integers(-1, 3, (200_000, 3)) * np.where([0, 1, 0], r.random((200_000, 1)), 1))
            .astype(np.float32)
        ],
    ),
}  # fmt: skip


def arrays(results: Iterator[Any]) -> list[np.ndarray]:
    return [array for part in results if part is not None for array in host_arrays(part)]


def check(
    name: str,
    x: np.ndarray,
    host: Any,
    block: Any,
    *,
    kernel: Kernel | None = None,
    device_arrays: Callable[[np.ndarray], Any] | None = None,
) -> None:
    """Compare the kernel's results for a block on the GPU with the CPU's for the same values."""
    kernel = kernel or KERNELS[name]
    cpu, gpu = (
        import_module(f"scatlas.kernels.{name.split()[0]}_{side}") for side in ("cpu", "gpu")
    )
    before = [array.copy() for array in host_arrays(block)]
    with np.errstate(all="ignore"):
        at = Beside(np.random.default_rng(1), x)
        expected = arrays(kernel.calls(cpu, host, at))
    if device_arrays:
        for part in kernel.on_device:
            setattr(at, part, device_arrays(getattr(at, part)))
    with pytest.MonkeyPatch.context() as patch:
        for size, value in kernel.sizes.items():
            patch.setattr(gpu, size, value)
        found, again = (arrays(kernel.calls(gpu, block, at)) for _ in range(2))
    largest = np.abs(x[np.isfinite(x)].astype(np.float64)).max(initial=0)
    dense = not hasattr(block, "indptr") and kernel.rtol_dense is not None
    assert len(found) == len(expected)
    for one, other, want in zip(found, again, expected, strict=True):
        np.testing.assert_array_equal(one, other, "another result of a second call")
        assert (one.dtype, one.shape) == (want.dtype, want.shape)
        rtol = (kernel.rtol_dense if dense else kernel.rtol) if want.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(one, want, rtol=rtol, atol=rtol * largest * kernel.reals)
    for now, then in zip(host_arrays(block), before, strict=True):
        np.testing.assert_array_equal(now, then, "the block was written to")


@pytest.mark.parametrize("dense", [False, True], ids=["csr", "dense"])
@pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name, k in KERNELS.items() for dtype in k.dtypes]
)
def test_types_of_values(name, dtype, dense, rng, gpu_block):
    x = some_values(rng, dtype, reals=KERNELS[name].reals)
    host = x if dense else sp.csr_matrix(x)
    check(name, x, host, gpu_block(host))


@pytest.mark.parametrize("indices", ["uint16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("indptr", ["int32", "int64"])
@pytest.mark.parametrize("name", KERNELS)
def test_types_of_indices(name, indices, indptr, rng, gpu_block):
    x = some_values(rng, KERNELS[name].dtypes[-1])
    host = sp.csr_matrix(x)
    host.data[::7] = 0  # stored zeros
    x = host.toarray()
    host.indices, host.indptr = host.indices.astype(indices), host.indptr.astype(indptr)
    check(name, x, host, gpu_block(host))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["csr", "dense"])
@pytest.mark.parametrize("name", KERNELS)
def test_shapes(name, shape, dense, rng, gpu_block):
    x = some_values(rng, "float32", shape)
    host = x if dense else sp.csr_matrix(x)
    check(name, x, host, gpu_block(host))


@pytest.mark.parametrize("name", KERNELS)
def test_layouts_of_dense_blocks_and_arrays_on_the_device(name, rng, gpu_block):
    import cupy as cp

    x = some_values(rng, "float32")
    wide = cp.zeros((2 * x.shape[0], x.shape[1] + 3), dtype=x.dtype)
    wide[::2, :-3] = cp.asarray(x)
    for block in (cp.asfortranarray(cp.asarray(x)), wide[::2, :-3]):
        check(name, x, x, block)
    for host in (x, sp.csr_matrix(x)) if KERNELS[name].on_device else ():
        check(name, x, host, gpu_block(host), device_arrays=cp.asarray)


@pytest.mark.parametrize("name", ODD)
def test_odd_blocks(name, rng, gpu_block):
    kernel, blocks = ODD[name]
    for block in blocks(rng):
        x = block.toarray() if sp.issparse(block) else block
        for host in (block,) if sp.issparse(block) else (block, sp.csr_matrix(block)):
            check(name, x, host, gpu_block(host), kernel=kernel)


# What does not depend on the order of cells, on blocks and on the schedule, with the type of the
# values; of blocks that are folded the digits that stay.
CUTS: dict[str, tuple[Callable[[Any, Any, Beside], Any], str, str, str]] = {
    "moments.moments": (lambda k, x, at: k.moments(x, at.codes), "float32", "bits", "result"),
    "moments.moments above bounds": (
        lambda k, x, at: k.moments_above(x, at.bounds, at.codes), "uint16", "bits", "bits"
    ),
    "moments.count_moments": (
        lambda k, x, at: k.normalized_moments(x, at.scales, at.codes), "uint16", "bits", "bits"
    ),
    "moments.pearson": (
        lambda k, x, at: k.sums_of_nonzeros(x, at.totals, at.model, at.codes),
        "uint16", "sums", "sums",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CUTS)
def test_one_result_whatever_the_schedule_the_order_and_the_blocks(name, rng, gpu_block):
    call, dtype, digits, digits_of_folded = CUTS[name]
    kernels = import_module(f"scatlas.kernels.{name.split()[0]}_gpu")
    x = some_values(rng, dtype, (3000, 60), reals=True)
    at, order, every = Beside(rng, x), rng.permutation(3000), slice(None)

    def found(rows, kind=sp.csr_matrix):
        return call(kernels, gpu_block(kind(x[rows])), at.of_cells(rows))

    folded = merge_in_place([found(rows) for rows in np.split(order, [13, 777])])
    others = [found(every), found(every), found(order), found(every, np.asarray)]
    cases = [*((other, digits) for other in others), (folded, digits_of_folded)]
    whole = found(every)
    for other, kept in cases:
        for got, want in zip(of_moments(other, kept), of_moments(whole, kept), strict=True):
            assert isinstance(got, np.ndarray)
            np.testing.assert_array_equal(got, want)


REFUSED = [
    ("counts.select.select_genes", (3, 5), ([1], 4), "the block has 5 genes, not 4"),
    ("counts.select.select_genes", (3, 5), ([5],), "within 0 and 4"),
    ("counts.select.select_genes", (3, 5), ([1, 1],), "wanted twice"),
    ("counts.select.select_rows", (3, 5), ([True, False],), "a mask of 2 for 3 cells"),
    ("counts.select.select_rows", (3, 5), ([-1],), "within 0 and 2"),
    (
        "counts.normalize.select_and_log_normalize",
        (3, 5),
        (np.ones(2), np.arange(5)),
        "2 scales and 5 genes",
    ),
    ("counts.normalize.scale_rows", (2, 2), (np.ones(3),), "3 factors for 2 cells"),
    *(
        ("counts.qc.top_totals", (2, 5), (ns,), "must ascend within 1 and 5")
        for ns in ([], [0, 3], [2, 1], [6])
    ),
    (
        "moments.count_moments.normalized_moments",
        (20, 3),
        (np.ones(19),),
        "19 scales for 20 cells",
    ),
    ("linalg.gram.add_block", (2, 65537), (np.zeros(0), np.zeros((0, 0))), "65537 genes"),
]


@pytest.mark.parametrize(("name", "shape", "args", "message"), REFUSED)
def test_what_is_refused(name, shape, args, message, gpu_block):
    module, _, function = name.rpartition(".")
    kernels = import_module(f"scatlas.kernels.{module}_gpu")
    with pytest.raises(ValueError, match=message):
        getattr(kernels, function)(gpu_block(np.zeros(shape)), *args)


def test_results_share_no_array_with_the_block(rng, gpu_block):
    from scatlas.kernels.linalg import scale_gpu

    block = gpu_block(sp.csr_matrix(some_values(rng, "float32")))
    got = scale_gpu.scale(block, None, np.ones(97), None, dtype=np.float32)
    assert got.indices is not block.indices
    assert got.indptr is not block.indptr


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_genes_among_more_genes(shape, rng, gpu_block):
    x = some_values(rng, "float32", shape)
    host, n_genes = sp.csr_matrix(x), 2 * shape[1] + 70_000
    columns = np.sort(rng.choice(n_genes, shape[1], replace=False))
    call = Kernel(lambda k, x, at: iter([k.spread_genes(x, columns, n_genes)]))
    check("counts.select", x, host, gpu_block(host), kernel=call)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("base", [None, 2, 0.5, 10.0])
def test_logarithms_of_everything(rng, gpu_block, dtype, base):
    special = [0.0, -0.0, -1.0, -1.5, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 5e-324, 1.7e308]
    near_one = -1 + 10.0 ** -rng.uniform(0, 16, 1000)
    wide = 10.0 ** rng.uniform(-20, 30, 10_000)
    with np.errstate(over="ignore"):
        values = np.concatenate([special, near_one, wide, -(rng.random(1000))]).astype(dtype)
    call = Kernel(lambda k, x, at: iter([k.log1p(x, base)]))
    check("counts.normalize", values[None], values[None], gpu_block(values[None]), kernel=call)
