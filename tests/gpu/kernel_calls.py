"""Calls of the kernels for one block, and values of blocks; ``test_kernels_of_blocks`` compares."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from scatlas.kernels.counts.select_cpu import new_column_of_gene
from scatlas.kernels.moments.group_sums_cpu import SumKinds
from scatlas.kernels.moments.pearson_cpu import PearsonModel

LARGEST = {"bool": 1, "int8": 100, "uint8": 255, "int16": 32767}
FLOATS = ("float32", "float64")


class Beside:
    """Numbers of cells and genes for both sides, beside the values ``x`` of a block."""

    def __init__(self, rng: np.random.Generator, x: np.ndarray) -> None:
        n, genes = x.shape
        self.x = x
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
        self.loadings, self.offset = rng.normal(size=(genes, 50)), rng.normal(size=50)

    def of_cells(self, rows: Any) -> Beside:
        """The numbers of some cells."""
        part = copy(self)
        part.codes, part.scales, part.totals = (
            array[rows] for array in (self.codes, self.scales, self.totals)
        )
        return part


def qc(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for name in ("row_sums", "row_positive", "gene_totals", "gene_positive"):
        yield getattr(kernels, name)(x)
    yield kernels.row_sums(x, at.masks[0])
    for fraction in (0.0, 0.05, 0.5):
        yield kernels.dominant_genes(x, fraction)
    yield np.array([kernels.holds_counts(x)])
    if n := x.shape[1]:  # no masks without genes: the CPU's refuses them, too
        yield from of_qc(kernels.qc_block(x, at.masks, sorted({1, min(2, n), -(-n // 2), n})))


def of_qc(found: Any) -> Iterator[Any]:
    for name in ("totals", "n_genes", "masked", "top", "gene_totals", "n_cells"):
        yield getattr(found, name)


def normalize(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    scaled = kernels.scale_rows(x, at.factors)
    yield from (scaled, kernels.log1p(scaled), kernels.log1p(x))


def select(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    cells, genes = (
        part if isinstance(part, np.ndarray) else part.get() for part in (at.cells, at.genes)
    )
    for chosen in (at.genes, np.sort(genes), genes[:0]):
        yield kernels.select_genes(x, chosen)
    positions = np.flatnonzero(cells)
    for chosen in (at.cells, positions[::-1], np.repeat(positions, 2)):
        yield kernels.select_rows(x, chosen)


def select_and_log_normalize(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    yield kernels.select_and_log_normalize(x, at.scales, at.place)


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


def of_moments(found: Any, digits: str = "sums") -> Iterator[Any]:
    """Parts of moments: all ``"bits"``, the ``"sums"`` without their errors, or of sums that are
    rounded what the ``"result"`` keeps.
    """
    yield from (found.groups, found.n_cells, found.expressed)
    if digits == "result":
        yield from (found.mean, found.var)
    else:
        yield found.sums if digits == "bits" else found.sums[..., ::2]


def moments(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    of_none = np.full(at.codes.size, -1)
    for codes in ((), (at.codes,), (at.codes + 1000,), (of_none,), (of_none + 1,)):
        yield from of_moments(kernels.moments(x, *codes), "result")


def moments_of_expm1(kernels: Any, x: Any, _: Beside) -> Iterator[Any]:
    for log_base in (None, np.log(2.0)):
        for expm1 in (False, True):  # without it the base has no effect
            found = kernels.moments(x, expm1=expm1, log_base=log_base)
            yield from of_moments(found, "result")


def moments_not_finite(kernels: Any, x: Any, _: Beside) -> Iterator[Any]:
    found = kernels.moments(x)
    yield from (*of_moments(found, "result"), found.sums)


def finite_moments(kernels: Any, x: Any, _: Beside, **options: Any) -> Iterator[Any]:
    found = kernels.moments(x, **options)
    yield np.isfinite(found.mean)
    if not options:
        yield np.isfinite(found.var)


def count_moments(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for codes in ((), (at.codes,)):
        for scales in (at.scales, at.scales * np.nan):
            for log in (False, True):
                found = kernels.normalized_moments(x, scales, *codes, log=log)
                yield from of_moments(found, "bits")
        yield from of_moments(kernels.moments_of_counts(x, *codes), "bits")


def moments_of_scaled_reals(kernels: Any, x: Any, at: Beside, scales: Any = None) -> Iterator[Any]:
    some = np.where(np.arange(len(at.scales)) == 7, 0, at.scales**3)
    for log in (False, True):
        found = kernels.normalized_moments(x, np.array(some if scales is None else scales), log=log)
        yield from of_moments(found, "result")


def clipped_moments(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    yield from of_moments(kernels.moments_above(x, at.bounds, at.codes))
    for bounds in (at.bounds[:1], np.full((1, x.shape[1]), 1e9), np.zeros((1, x.shape[1]))):
        yield from of_moments(kernels.moments_above(x, bounds))


def pearson(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for theta in (0.5, 100.0, np.inf):
        model = at.model._replace(theta=theta)
        for codes in ((), (at.codes,)):
            yield from of_moments(kernels.sums_of_nonzeros(x, at.totals, model, *codes))
    totals, n_cells = np.unique(at.totals[at.totals > 0], return_counts=True)
    for group in (0, 1) if totals.size else ():
        yield kernels.sums_of_zeros(at.model, group, totals, n_cells)


ALL_SUMS = SumKinds(True, True, True)


def of_sums(found: Any) -> Iterator[Any]:
    yield from (found.sums, found.errors, found.squares, found.square_errors, found.nonzero)


def group_sums(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    groups, found = kernels.group_sums(x, at.codes, ALL_SUMS)
    yield from (groups, *of_sums(found))
    many = np.where(at.codes < 0, -1, np.arange(at.codes.size) * 7 % 250)
    some = SumKinds(True, False, False), SumKinds(False, False, True)
    for codes, wanted in ((many, ALL_SUMS), (at.codes, some[0]), (at.codes, some[1])):
        total = kernels.zeros((250, x.shape[1]), x.dtype, wanted)
        kernels.add(x, codes, total)
        kernels.add(x, np.roll(codes, 1), total)
        yield from (np.array([total.whole]), *of_sums(total))
    if not hasattr(x, "indptr") and x.shape[0] > 100:
        # Of the workers of a cluster, added to the groups of the whole matrix.
        total = kernels.zeros((3, x.shape[1]), x.dtype, SumKinds(True, True, True))
        for rows in (slice(0, 100), slice(100, None)):
            total.add(*kernels.group_sums(x[rows], at.codes[rows], ALL_SUMS))
        yield from of_sums(total)


def group_sums_not_finite(kernels: Any, x: Any, _: Beside) -> Iterator[Any]:
    _, found = kernels.group_sums(x, np.zeros(3, np.int64), ALL_SUMS)
    yield from (found.sums, found.squares, found.nonzero)


def gram(kernels: Any, x: Any, _: Beside) -> Iterator[Any]:
    xp = np if kernels.__name__.endswith("cpu") else import_module("cupy")
    n_genes = x.shape[1]
    sums, products = xp.zeros(n_genes), xp.zeros((n_genes, n_genes))
    kernels.add_block(x, sums, products)
    kernels.mirror(products)
    yield from (sums, products)


def project(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for k in (1, 16, 50) if x.shape[1] else ():
        # Rounding to float32 hides no more than the tolerance of dense blocks shows.
        for dtype in FLOATS if hasattr(x, "indptr") else ("float64",):
            components = np.ascontiguousarray(at.loadings[:, :k])
            yield kernels.project(x, components, at.offset[:k], dtype=np.dtype(dtype))


def rank_sums(kernels: Any, x: Any, at: Beside, n_groups: int = 3) -> Iterator[Any]:
    """Of some genes in any order; with other numbers of groups, of three genes."""
    codes, wanted = at.codes, at.genes
    if n_groups != 3:
        codes, wanted = np.random.default_rng(0).integers(0, n_groups, codes.size), np.arange(3)
    references = (None, 0, int(codes.max())) if codes.size else (None,)
    for reference in references if wanted.size else ():
        yield from ranked(kernels, [(x, codes)], (at.x, codes), wanted, n_groups, reference)


def ranked(
    kernels: Any, parts: Any, whole: Any, wanted: Any, n_groups: int, reference: int | None
) -> Any:
    """Rank sums of blocks with their groups; ``whole`` are all values, dense, and all groups."""
    dense, codes = whole
    sizes = np.bincount(codes[codes >= 0], minlength=n_groups)
    groups, local = np.unique(codes, return_inverse=True)
    nonzero = np.zeros((n_groups, wanted.size), np.int64)
    for i, group in enumerate(groups):
        if group >= 0:
            nonzero[group] = (dense[local == i][:, wanted] != 0).sum(axis=0)
    zeros = sizes.sum() - nonzero.sum(axis=0)
    if reference is not None:
        zeros = sizes[reference] - nonzero[reference]
    gathered = kernels.NonzerosByGene(nonzero.sum(axis=0), dense.dtype, n_groups)
    columns = new_column_of_gene(wanted, dense.shape[1])
    for block, of_block in parts:
        for part in kernels.gather_nonzeros(block, of_block, new_column=columns, n_groups=n_groups):
            gathered.add(part)
    return gathered.rank_sums(zeros, reference, 1)


def repeated_genes(kernels: Any, x: Any, at: Beside) -> Iterator[Any]:
    for genes in (np.arange(5, 35), at.genes):
        yield kernels.select_genes(x, genes)


def some_values(
    rng: np.random.Generator, dtype: str, shape: tuple[int, int] = (301, 97), *, reals: bool = False
) -> np.ndarray:
    """Counts, some far above the others, or numbers of both signs, of many sizes if they are reals;
    ties, empty cells and genes.
    """
    x = rng.poisson(rng.gamma(0.4, 4.0, shape[1]), shape) + rng.poisson(0.02, shape) * 1000
    x = x.clip(None, LARGEST.get(dtype))
    if reals and np.dtype(dtype).kind in "if":
        x = x * rng.choice([-1, 1], shape)
    if reals and np.dtype(dtype).kind == "f":
        x = x * np.where(rng.random(shape) < 0.3, 1, rng.normal(size=shape))
        x = x * 10.0 ** rng.integers(-3, 4, shape)
    if min(shape) > 1:
        x[::9], x[:, ::11] = 0, 0
    return x.astype(dtype)


def shuffled(rng: np.random.Generator, dtype: str, indices: str = "int32") -> sp.csr_matrix:
    """Counts whose genes are in any order in each cell."""
    x = sp.csr_matrix(some_values(rng, dtype, (300, 70)))
    x.indices = x.indices.astype(indices)
    for start, stop in pairwise(x.indptr):
        order = start + rng.permutation(stop - start)
        x.data[start:stop], x.indices[start:stop] = x.data[order], x.indices[order]
    return x


def with_repeats(rng: np.random.Generator) -> sp.csr_matrix:
    """Genes in any order, many of them several times in a cell."""
    indptr = np.array([0, 100, 100, 370, 380, 600], np.int32)
    indices = rng.integers(0, 40, 600).astype(np.int32)
    return sp.csr_matrix((np.arange(600, dtype=np.float32), indices, indptr), shape=(5, 40))


def logged_counts(rng: np.random.Generator, dtype: str) -> np.ndarray:
    return np.log1p(some_values(rng, "int64", (70, 45)) % 20).astype(dtype)


def some_reals(rng: np.random.Generator) -> list[np.ndarray]:
    """Of any size, one tiny and one large."""
    x = abs(some_values(rng, "float64", (100, 45), reals=True))
    x[5, 5], x[6, 6] = 1e-12, 3e9
    return [x, x.astype(np.float32)]
