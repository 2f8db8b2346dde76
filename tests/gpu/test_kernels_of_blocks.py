"""Kernels of one block on the GPU give what the CPU's give: the same bits, or a stated tolerance.

``KERNELS`` has a line per pair of modules. Each kernel is called with blocks of all types, widths
of indices, shapes and layouts; it leaves the block as it is, and a second call has the same bits.
What only one kernel has (limits, values that are not finite, order of sums) is in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.kernels.counts.select_cpu import new_column_of_gene
from scatlas.kernels.moments.group_sums_cpu import SumKinds
from scatlas.kernels.moments.pearson_cpu import PearsonModel
from tests.gpu.shared import host_arrays

INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float32", "float64")
COUNTED = ("uint8", "uint16", *FLOATS)
SHAPES = [(0, 5), (5, 0), (0, 0), (1, 1), (1, 70), (200, 1), (3, 33), (33, 65), (301, 97)]
LARGEST = {"bool": 1, "int8": 100, "uint8": 255, "int16": 32767}


class Beside:
    """Numbers of cells and genes for both sides, beside the values ``x`` of a block."""

    def __init__(self, rng: np.random.Generator, x: np.ndarray) -> None:
        n, genes = x.shape
        self.factors = rng.random(n) + 0.1
        self.scales = np.where(rng.random(n) < 0.3, np.nan, rng.lognormal(size=n))
        self.codes = rng.integers(-1, 3, n)
        self.groups = rng.integers(0, 2, n)
        self.masks = rng.random((3, genes)) < 0.2
        self.cells = rng.random(n) < 0.5
        self.genes = rng.permutation(np.flatnonzero(rng.random(genes) < 0.4))
        self.place = new_column_of_gene(self.genes, genes)
        self.mean, self.sd = rng.random(genes) * 50, rng.random(genes) * 20 + 0.1
        self.weights, self.slopes = rng.normal(size=(n, 2)), rng.normal(size=(2, genes))
        self.base = rng.normal(size=(2, genes))
        self.totals = x.sum(axis=1, dtype=np.float64)
        # Some bounds are values of the block, some are above all, one is none.
        self.bounds = rng.gamma(2.0, 3.0, (3, genes)) / (10 if x.dtype == bool else 1)
        self.bounds[:, 1::3], self.bounds[:, 2::7] = np.floor(self.bounds[:, 1::3]), np.inf
        self.bounds[0, 5:6] = np.nan
        self.targets = self.totals.astype(np.int64) // 2
        of_genes = [x[self.codes == code].sum(axis=0, dtype=np.float64) for code in range(3)]
        totals = np.maximum(np.sum(of_genes, axis=1), 1)
        self.model = PearsonModel(np.array(of_genes), totals, np.array([0.9, 3.0, 1e9]), 100.0)


def qc(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for name in ("row_totals", "row_sums", "row_positive", "gene_totals", "gene_positive"):
        yield getattr(kernels, name)(x)
    yield kernels.row_sums(x, at.masks[0])
    for fraction in (0.0, 0.05, 0.5):
        yield kernels.dominant_genes(x, fraction)
    if x.shape[1]:  # no masks without genes: the CPU's refuses them, too
        partial = kernels.qc_block(x, at.masks, sorted({1, min(2, x.shape[1]), x.shape[1]}))
        for name in ("totals", "n_genes", "masked", "top", "gene_totals", "n_cells"):
            yield getattr(partial, name)


def normalize(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    scaled = kernels.scale_rows(x, at.factors)
    yield from (scaled, kernels.log1p(scaled), kernels.log1p(x))


def select(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for genes in (at.genes, np.sort(at.genes), at.genes[:0]):
        yield kernels.select_genes(x, genes)
    positions = np.flatnonzero(at.cells)
    for cells in (at.cells, positions[::-1], np.repeat(positions, 2)):
        yield kernels.select_rows(x, cells)


def scale(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    for mean in (None, at.mean):
        for most, cells in ((None, None), (1.5, at.cells)):
            yield kernels.scale(x, mean, at.sd, most, cells, dtype=dtype)
    if hasattr(x, "indptr"):
        yield kernels.scale_stored_values(x, at.mean, at.sd, at.mean / 7, (-3, 10))


def regress(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    yield kernels.weighted_sums(x, at.weights)[0]
    for dtype in FLOATS:
        rows = at.groups, at.base, at.weights, at.slopes
        yield kernels.residuals(x, *rows, dtype=np.dtype(dtype))


def downsample(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    cells = np.arange(at.targets.size)
    for replace in (False, True):
        # Of no counts none is drawn.
        targets = np.where(at.totals > 0, at.targets, -1) if replace else at.targets
        for dtype in ("uint8" if x.dtype == bool else x.dtype, "float64", "int64"):
            options = {"seed": 2**63 + 5, "replace": replace, "dtype": dtype}
            yield kernels.draw_counts(x, cells, targets, **options)


def of_moments(found: Any, *, rounded: bool) -> Iterator[Any]:
    """Parts of moments; of sums that are rounded the digits that the result keeps."""
    yield from (found.groups, found.n_cells, found.expressed)
    yield from (found.mean, found.var) if rounded else (found.sums[..., ::2],)


def moments(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for codes in ((), (at.codes,), (np.full(at.codes.size, -1),)):
        yield from of_moments(kernels.moments(x, *codes), rounded=True)


def count_moments(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for codes in ((), (at.codes,)):
        for log in (False, True):
            found = kernels.normalized_moments(x, at.scales, *codes, log=log)
            yield from of_moments(found, rounded=False)
        yield from of_moments(kernels.moments_of_counts(x, *codes), rounded=False)


def clipped_moments(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    yield from of_moments(kernels.moments_above(x, at.bounds, at.codes), rounded=False)
    yield from of_moments(kernels.moments_above(x, at.bounds[:1]), rounded=False)


def pearson(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for theta in (0.5, 100.0, np.inf):
        for codes in ((), (at.codes,)):
            model = at.model._replace(theta=theta)
            found = kernels.sums_of_nonzeros(x, at.totals, model, *codes)
            yield from of_moments(found, rounded=False)


def group_sums(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    groups, found = kernels.group_sums(x, at.codes, SumKinds(True, True, True))
    yield from (groups, found.sums, found.errors, found.squares)
    yield from (found.square_errors, found.nonzero)


@dataclass(frozen=True)
class Kernel:
    """Calls with ``(kernels, block, beside)``; types of values; reals of both signs or counts;
    tolerance for reals, relative to each number and to the largest value; what of the numbers
    beside the block may be on the GPU, too.
    """

    calls: Callable[[Any, Any, Beside], Iterator[Any]]
    dtypes: tuple[str, ...] = (*INTEGERS, *FLOATS)
    reals: bool = False
    rtol: float = 0.0
    on_device: tuple[str, ...] = ()


KERNELS = {
    "counts.qc": Kernel(qc, reals=True, rtol=1e-12),
    "counts.normalize": Kernel(normalize, COUNTED),
    "counts.select": Kernel(select, ("bool", "int16", "uint64", *COUNTED)),
    "counts.normalize of chosen genes": Kernel(
        lambda k, x, at: iter([k.select_and_log_normalize(x, at.scales, at.place)]), COUNTED
    ),
    "counts.downsample": Kernel(downsample),
    "linalg.scale": Kernel(scale, COUNTED),
    "linalg.regress": Kernel(regress, ("bool", "uint8", "int16", "int64", *FLOATS), reals=True),
    "moments.moments": Kernel(moments, reals=True, rtol=1e-12, on_device=("codes",)),
    "moments.count_moments": Kernel(
        count_moments,
        ("uint8", "uint16", "uint32", "int64", "float32"),
        on_device=("codes", "scales"),
    ),
    "moments.moments above bounds": Kernel(clipped_moments, on_device=("codes",)),
    "moments.pearson": Kernel(
        pearson, ("int8", "uint8", "uint16", "int64", *FLOATS), on_device=("codes",)
    ),
    "moments.group_sums": Kernel(group_sums, reals=True),
}


def some_values(
    rng: np.random.Generator, dtype: str, shape: tuple[int, int] = (301, 97), *, reals: bool = False
) -> np.ndarray:
    """Counts, some far above the others, or reals of many sizes; empty cells and genes."""
    x = rng.poisson(rng.gamma(0.4, 4.0, shape[1]), shape) + rng.poisson(0.02, shape) * 1000
    if reals and np.dtype(dtype).kind == "f":
        x = x * rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)
    if min(shape) > 1:
        x[::9], x[:, ::11] = 0, 0
    return x.clip(None, LARGEST.get(dtype)).astype(dtype)


def arrays(results: Iterator[Any]) -> list[np.ndarray]:
    return [array for part in results if part is not None for array in host_arrays(part)]


def check(
    name: str,
    x: np.ndarray,
    host: Any,
    block: Any,
    *,
    side: str = "gpu",
    device_arrays: Callable[[np.ndarray], Any] | None = None,
) -> None:
    """Compare the kernel's results for a block on the GPU with the CPU's for the same values."""
    kernel, at = KERNELS[name], Beside(np.random.default_rng(1), x)
    module = name.partition(" ")[0]
    cpu, gpu = (import_module(f"scatlas.kernels.{module}_{where}") for where in ("cpu", side))
    before = host_arrays(block)
    with np.errstate(all="ignore"):
        expected = arrays(kernel.calls(cpu, host, at))
    if device_arrays:
        for part in kernel.on_device:
            setattr(at, part, device_arrays(getattr(at, part)))
    found, again = (arrays(kernel.calls(gpu, block, at)) for _ in range(2))
    largest = np.abs(x.astype(np.float64)).max(initial=0)
    assert len(found) == len(expected)
    for one, other, want in zip(found, again, expected, strict=True):
        np.testing.assert_array_equal(one, other, "another result of a second call")
        assert (one.dtype, one.shape) == (want.dtype, want.shape)
        rtol = kernel.rtol if want.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(one, want, rtol=rtol, atol=rtol * largest)
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
def test_layouts_of_dense_blocks_and_arrays_on_the_device(name, rng):
    import cupy as cp

    x = some_values(rng, "float32")
    wide = cp.zeros((2 * x.shape[0], x.shape[1] + 3), dtype=x.dtype)
    wide[::2, :-3] = cp.asarray(x)
    for block in (cp.asfortranarray(cp.asarray(x)), wide[::2, :-3]):
        check(name, x, x, block)
    check(name, x, x, cp.asarray(x), device_arrays=cp.asarray)
