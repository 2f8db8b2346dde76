"""Sums on the GPU are exact: those of fractions, rounded once."""

from __future__ import annotations

from fractions import Fraction
from math import fsum

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.kernels.counts import qc_cpu
from tests.gpu.kernel_calls import some_values

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def exact_pair(values):
    """Sum of float64 values as the nearest float64, and the nearest float64 to its error."""
    total = sum(map(Fraction, values), Fraction(0))
    high = float(total)
    return high, float(total - Fraction(high))


def exact_sums(x):
    """``Moments.sums`` of one group, from dense values."""
    columns = [[Fraction(float(v)) for v in column if v] for column in x.T]
    squares = [[v**2 for v in column] for column in columns]
    both = zip(columns, squares, strict=True)
    return np.array([[(*exact_pair(a), *exact_pair(b)) for a, b in both]])


def with_one_unit_more(x):
    """Constant genes, but for the last place of one cell, which exceeds the rounding."""
    x[-1] = np.nextafter(x[-1], np.float32(np.inf))
    return x


def equal_genes(rng):
    """Two genes with the same values in other cells, whose sums tie."""
    values, x = rng.gamma(1.0, size=300), np.zeros((1000, 2), dtype=np.float32)
    for gene in range(2):
        x[rng.choice(1000, 300, replace=False), gene] = rng.permutation(values)
    return x


BLOCKS = {
    **{
        dtype: lambda rng, dtype=dtype: some_values(rng, dtype, (70, 45), reals=True)
        for dtype in INTEGERS
    },
    **{
        f"{name} {dtype}": lambda rng, dtype=dtype, make=make: make(rng).astype(dtype)
        for dtype in ("float32", "float64")
        for name, make in {
            "reals": lambda rng: rng.poisson(3.0, (70, 45)) * rng.normal(size=(70, 45)),
            "large means": lambda rng: 1e6 + rng.normal(size=(3000, 3)),
            "constant": lambda _: np.full((1000, 2), [0.1, 1e5 / 3]),
        }.items()
    },
    "nearly constant": lambda _: with_one_unit_more(np.full((1000, 2), 0.1, np.float32)),
    "equal genes": equal_genes,
    "beyond float64": lambda _: np.array([[2**63 - 1, 2**53 + 1], [2**40, -(2**62) - 1]]),
    "beyond int64": lambda _: np.array([[2**64 - 1], [2**64 - 2**11]], dtype=np.uint64),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_sums_are_exact(name, gpu_block, rng):
    from scatlas.kernels.moments import moments_gpu

    x = BLOCKS[name](rng)
    expected = exact_sums(x)
    for host in (sp.csr_matrix(x), x):
        got = moments_gpu.moments(gpu_block(host))
        assert got.sums.tobytes() == expected.tobytes()
    if name.startswith("constant"):
        assert got.var.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("dtype", "low", "high", "least", "most"),
    [("float32", -148, 120, 2**-149, 2.0**127), ("float64", -500, 500, 5e-324, 1e150)],
)
def test_values_of_all_sizes(gpu_block, rng, dtype, low, high, least, most):
    """Sums keep the largest and the smallest value of a type at the same time."""
    from scatlas.kernels.moments import moments_gpu

    x = (rng.normal(size=(60, 20)) * 2.0 ** rng.integers(low, high, (60, 20))).astype(dtype)
    x[1:20, 0] = -x[20:39, 0]
    x[:, 1] = 0
    x[:2, 1] = least, most
    x[:, 2] = -abs(x[:, 2])
    x[:3, 3] = most, 1, -most
    x[3:, 3] = 0
    expected = exact_sums(x)
    for block in (gpu_block(x), gpu_block(sp.csr_matrix(x))):
        got = moments_gpu.moments(block).sums
        np.testing.assert_array_equal(got[..., ::2], expected[..., ::2])
        room = 2.0**-105 * abs(expected[..., ::2])
        assert (abs(got[..., 1::2] - expected[..., 1::2]) <= room).all()


def test_totals_of_genes_are_exact(gpu_block, rng):
    from scatlas.kernels.counts import qc_gpu

    x = some_values(rng, "float64", (500, 10), reals=True)
    got = qc_cpu.round_gene_sums(qc_gpu.gene_totals(gpu_block(sp.csr_matrix(x))))
    exact = [fsum(column) for column in x.T]
    np.testing.assert_allclose(got, exact, rtol=0, atol=4e-16 * max(map(abs, exact)))
