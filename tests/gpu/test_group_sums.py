"""Sums by group on the GPU have the CPU's bits, for integers and reals, also in aggregate."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

import anndata as ad  # noqa: E402

import scatlas as sa  # noqa: E402
from scatlas.errors import InputError  # noqa: E402
from scatlas.kernels.moments import (  # noqa: E402
    group_sums_cpu,
    group_sums_gpu,
)
from scatlas.kernels.moments.group_sums_cpu import SumKinds  # noqa: E402

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FUNCS = ("sum", "mean", "var", "count_nonzero", "median")
ALL = SumKinds(sums=True, squares=True, nonzero=True)


def some_block(rng, dtype, n=301, genes=97):
    """Counts, or reals of both signs and many sizes, with empty rows and genes."""
    x = rng.poisson(0.7, (n, genes))
    if np.dtype(dtype).kind == "f":
        x = x * rng.normal(size=x.shape) * 10.0 ** rng.integers(-4, 5, x.shape)
    x[::9], x[:, ::11] = 0, 0
    return x.astype(dtype)


def bits(sums):
    arrays = (sums.sums, sums.errors, sums.squares, sums.square_errors, sums.nonzero)
    return [None if a is None else cp.asnumpy(a).tobytes() for a in arrays]


def sums_on_both(cpu, gpu, codes, n_groups, wanted=ALL):
    """Sums of a block on the CPU and on the GPU, in two calls as for two blocks."""
    found = []
    for kernels, block in ((group_sums_cpu, cpu), (group_sums_gpu, gpu)):
        total = kernels.zeros((n_groups, cpu.shape[1]), block.dtype, wanted)
        kernels.add(block, codes, total)
        kernels.add(block, np.roll(codes, 1), total)
        found.append(total)
    return found


@pytest.mark.parametrize("n_groups", [1, 5, 250])
@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
def test_bits_of_the_cpu(gpu_block, rng, dtype, n_groups):
    x = some_block(rng, dtype)
    codes = rng.integers(-1, n_groups, x.shape[0])
    for cpu in (x, sp.csr_matrix(x)):
        on_cpu, on_gpu = sums_on_both(cpu, gpu_block(cpu), codes, n_groups)
        assert bits(on_gpu) == bits(on_cpu)
        assert on_gpu.whole == (dtype in INTEGERS)
        rows = x[codes == 0].astype(np.float64)
        again = x[np.roll(codes, 1) == 0].astype(np.float64)
        expected = rows.sum(axis=0) + again.sum(axis=0)
        np.testing.assert_allclose(cp.asnumpy(on_gpu.sums[0]), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wanted", [SumKinds(True, False, False), SumKinds(False, False, True)])
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_what_is_not_wanted(gpu_block, rng, dtype, wanted):
    x = some_block(rng, dtype)
    codes = rng.integers(-1, 4, x.shape[0])
    on_cpu, on_gpu = sums_on_both(x, gpu_block(x), codes, 4, wanted)
    assert bits(on_gpu) == bits(on_cpu)
    assert sum(part is not None for part in bits(on_gpu)) == wanted.n_arrays(dtype)


def test_values_that_are_not_finite(gpu_block):
    x = np.array([[np.inf, np.nan, 1.0], [1.0, 2.0, np.inf], [2.0, 1.0, -np.inf]])
    on_cpu, on_gpu = sums_on_both(x, gpu_block(x), np.zeros(3, dtype=np.int64), 1)
    for name in ("sums", "squares", "nonzero"):
        got, expected = (getattr(total, name) for total in (on_gpu, on_cpu))
        np.testing.assert_array_equal(cp.asnumpy(got), expected)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_sums_of_sums(rng, dtype):
    """Partial sums of a cluster's workers, added to the groups of the whole matrix."""
    x = some_block(rng, dtype)
    codes = rng.integers(-1, 6, x.shape[0])
    found = []
    for kernels, xp in ((group_sums_cpu, np), (group_sums_gpu, cp)):
        total = kernels.zeros((6, x.shape[1]), dtype, ALL)
        for rows in (slice(0, 100), slice(100, None)):
            total.add(*kernels.group_sums(xp.asarray(x[rows]), codes[rows], ALL))
        found.append(bits(total))
    assert found[0] == found[1]


def test_masks_and_missing_values(rng):
    x = some_block(rng, "uint16")
    obs = pd.DataFrame({"g": pd.Categorical.from_codes(rng.integers(-1, 3, 301), list("abc"))})
    obs.index = [f"c{i}" for i in range(301)]
    mask = rng.random(301) < 0.5
    mask[obs["g"].to_numpy() == "c"] = False
    expected = sa.get.aggregate(ad.AnnData(X=x, obs=obs), "g", FUNCS, mask=mask)
    got = sa.get.aggregate(ad.AnnData(X=cp.asarray(x), obs=obs), "g", FUNCS, mask=mask)
    for name in FUNCS:
        np.testing.assert_array_equal(cp.asnumpy(got.layers[name]), expected.layers[name])


def test_wide_integers_are_refused():
    obs = pd.DataFrame({"g": ["a", "a"]}, index=["x", "y"])
    adata = ad.AnnData(X=cp.asarray(np.array([[2**62], [2**62]])), obs=obs)
    with pytest.raises(InputError, match="do not fit 64 bits"):
        sa.get.aggregate(adata, "g", "sum")
