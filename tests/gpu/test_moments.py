"""Moments on the GPU agree with the CPU's, and with exact sums of fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

from scatlas.kernels.moments import count_moments_cpu, count_moments_gpu, moments_cpu, moments_gpu  # noqa: E402

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def some_block(rng, n=70, genes=45, dtype="float32", density=0.4):
    """Dense block of counts or reals of both signs, with empty rows and genes."""
    x = rng.poisson(3.0, (n, genes)) + rng.poisson(0.05, (n, genes)) * 1000
    if np.dtype(dtype).kind == "f":
        x = x * rng.normal(size=x.shape)
    x[rng.random(x.shape) > density] = 0
    x[::9], x[:, ::11] = 0, 0
    return x.astype(dtype)


def csr(x):
    return sp.csr_matrix(x)


def exact_pair(values):
    """Sum of float64 values as the nearest float64, and the nearest float64 to its error."""
    total = sum(map(Fraction, values), Fraction(0))
    high = float(total)
    return high, float(total - Fraction(high))


def exact_sums(x):
    """``Moments.sums`` of one group, from dense values."""
    columns = [[float(v) for v in column if v] for column in x.T]
    squares = [[Fraction(v) ** 2 for v in column] for column in columns]
    both = zip(columns, squares, strict=True)
    return np.array([[(*exact_pair(a), *exact_pair(b)) for a, b in both]])


def same(got, expected, rtol=1e-12):
    for name in ("groups", "n_cells", "expressed"):
        a, b = getattr(got, name), getattr(expected, name)
        assert isinstance(a, np.ndarray)
        assert a.dtype == b.dtype == np.int64
        np.testing.assert_array_equal(a, b)
    assert got.sums.dtype == np.float64
    assert got.sums.shape == expected.sums.shape
    np.testing.assert_allclose(got.mean, expected.mean, rtol=rtol)
    np.testing.assert_allclose(got.var, expected.var, rtol=rtol)


def bits(moments):
    return [a.tobytes() for a in (moments.sums, moments.expressed, moments.n_cells, moments.groups)]


def contents(block):
    arrays = [block] if isinstance(block, cp.ndarray) else [block.data, block.indices, block.indptr]
    return [cp.asnumpy(array).tobytes() for array in arrays]


# --- moments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
def test_sums_are_exact_for_all_types(gpu_block, rng, dtype):
    x = some_block(rng, dtype="float64" if dtype.startswith("f") else "int64")
    x = (x.clip(-100, 100) if dtype == "int8" else x % 251 if dtype == "uint8" else x).astype(dtype)
    expected = exact_sums(x)
    for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
        before = contents(block)
        got = moments_gpu.moments(block)
        assert got.sums.tobytes() == expected.tobytes()
        same(got, moments_cpu.moments(cpu))
        assert contents(block) == before


@pytest.mark.parametrize("where", ["host", "device"])
def test_groups(gpu_block, rng, where):
    x = some_block(rng, 200)
    for low, high in ((-1, 4), (0, 1), (-3, 0), (1000, 1003)):
        codes = rng.integers(low, high, 200)
        given = codes if where == "host" else cp.asarray(codes)
        for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
            same(moments_gpu.moments(block, given), moments_cpu.moments(cpu, codes))
        assert np.array_equal(cp.asnumpy(given), codes)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize("log_base", [None, np.log(2.0)])
def test_expm1(gpu_block, rng, dtype, log_base):
    x = some_block(rng, dtype="int64") % 20
    x = x.astype(dtype) if dtype == "uint8" else np.log1p(x).astype(dtype)
    # NumPy's expm1 of float32 has errors of some units in the last place.
    rtol = 1e-6 if dtype == "float32" else 1e-12
    for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
        before = contents(block)
        got = moments_gpu.moments(block, expm1=True, log_base=log_base)
        same(got, moments_cpu.moments(cpu, expm1=True, log_base=log_base), rtol)
        assert contents(block) == before
        # Without expm1 the base has no effect.
        plain = moments_gpu.moments(block, log_base=log_base)
        assert bits(plain) == bits(moments_gpu.moments(block))


def test_one_result_whatever_the_schedule_and_the_order_of_cells(gpu_block, rng):
    x = some_block(rng, 3000, 60)
    codes = rng.integers(-1, 3, 3000)
    order = rng.permutation(3000)
    expected = bits(moments_gpu.moments(gpu_block(csr(x)), codes))
    for _ in range(3):
        assert bits(moments_gpu.moments(gpu_block(csr(x)), codes)) == expected
    assert bits(moments_gpu.moments(gpu_block(x), codes)) == expected
    assert bits(moments_gpu.moments(gpu_block(csr(x[order])), codes[order])) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_may_be_cut_anywhere(gpu_block, rng, dtype):
    x = some_block(rng, 500, dtype=dtype)
    codes = rng.integers(-1, 3, 500)
    whole = moments_gpu.moments(gpu_block(csr(x)), codes)
    cuts = [13, 200]
    parts = [
        moments_gpu.moments(gpu_block(csr(part)), code)
        for part, code in zip(np.split(x, cuts), np.split(codes, cuts), strict=True)
    ]
    folded = moments_cpu.merge_in_place(parts)
    same(folded, whole, 1e-15 if dtype == "float64" else 0)
    same(folded, moments_cpu.moments(csr(x), codes))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_mean_small_spread(gpu_block, rng, dtype):
    x = (1e6 + rng.normal(size=(3000, 3))).astype(dtype)
    parts = [moments_gpu.moments(gpu_block(part)) for part in np.array_split(x, 7)]
    wide = x.astype(np.longdouble)
    got = moments_cpu.merge(parts)
    np.testing.assert_allclose(got.mean[0], wide.mean(axis=0).astype(float), rtol=1e-15)
    np.testing.assert_allclose(got.var[0], wide.var(axis=0, ddof=1).astype(float), rtol=1e-12)
    same(got, moments_cpu.moments(x))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2, 3, 1000, 100_000])
def test_constant_gene_has_variance_zero(gpu_block, n, dtype):
    x = np.full((n, 2), [0.1, 1e5 / 3], dtype=dtype)
    parts = [moments_gpu.moments(gpu_block(part)) for part in np.array_split(x, 3)]
    assert moments_cpu.merge(parts).var.tolist() == [[0.0, 0.0]]
    if dtype == "float32":  # one unit in the last place of one cell exceeds the rounding
        x[-1] = np.nextafter(x[-1], np.float32(np.inf))
        same(moments_gpu.moments(gpu_block(x)), moments_cpu.moments(x))
        assert (moments_gpu.moments(gpu_block(x)).var > 0).all()


def test_genes_with_the_same_values_tie(gpu_block, rng):
    values = rng.gamma(1.0, size=300).astype(np.float32)
    x = np.zeros((1000, 2), dtype=np.float32)
    for gene in range(2):
        x[rng.choice(1000, 300, replace=False), gene] = rng.permutation(values)
    whole = moments_gpu.moments(gpu_block(csr(x)))
    assert whole.sums[0, 0].tobytes() == whole.sums[0, 1].tobytes()
    parts = [moments_gpu.moments(gpu_block(csr(part))) for part in np.array_split(x, 3)]
    got = moments_cpu.merge_in_place(parts)
    assert got.mean[0, 0] == got.mean[0, 1]
    assert got.var[0, 0] == got.var[0, 1]


@pytest.mark.parametrize(
    ("dtype", "low", "high", "least", "most"),
    [("float32", -148, 120, 2**-149, 2.0**127), ("float64", -500, 500, 5e-324, 1e150)],
)
def test_values_of_all_sizes(gpu_block, rng, dtype, low, high, least, most):
    """Sums keep the largest and the smallest value of a type at the same time."""
    x = (rng.normal(size=(60, 20)) * 2.0 ** rng.integers(low, high, (60, 20))).astype(dtype)
    x[1:20, 0] = -x[20:39, 0]
    x[:, 1] = 0
    x[:2, 1] = least, most
    x[:, 2] = -abs(x[:, 2])
    x[:3, 3] = most, 1, -most
    x[3:, 3] = 0
    expected = exact_sums(x)
    for block in (gpu_block(x), gpu_block(csr(x))):
        got = moments_gpu.moments(block).sums
        np.testing.assert_array_equal(got[..., ::2], expected[..., ::2])
        room = 2.0**-105 * abs(expected[..., ::2])
        assert (abs(got[..., 1::2] - expected[..., 1::2]) <= room).all()


def test_whole_numbers_beyond_float64(gpu_block):
    x = np.array([[2**63 - 1, 2**53 + 1], [2**40, -(2**62) - 1]])
    assert moments_gpu.moments(gpu_block(x)).sums.tobytes() == exact_sums(x).tobytes()
    x = np.array([[2**64 - 1], [2**64 - 2**11]], dtype=np.uint64)
    assert moments_gpu.moments(gpu_block(x)).sums.tobytes() == exact_sums(x).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_and_infinity_are_not_hidden(gpu_block, dtype):
    x = np.array([[np.nan, np.inf, 1, -np.inf, 0], [1, 1, 2, 1, 0], [0, 0, 3, 0, 0]], dtype=dtype)
    for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
        with np.errstate(invalid="ignore"):
            expected = moments_cpu.moments(cpu)
        got = moments_gpu.moments(block)
        same(got, expected)
        np.testing.assert_array_equal(got.sums, expected.sums)
    huge = gpu_block(np.array([[1e5, 1.0], [1.0, 1.0]], dtype=dtype))
    mean = moments_gpu.moments(huge, expm1=True).mean[0]
    assert np.isfinite(mean).tolist() == [False, True]


def test_squares_beyond_float64_are_not_hidden(gpu_block):
    got = moments_gpu.moments(gpu_block(np.array([[1e200, 1.0], [1.0, 1.0]])))
    assert np.isfinite(got.mean[0]).all()
    assert np.isfinite(got.var[0]).tolist() == [False, True]


# --- normalised counts ------------------------------------------------------------------------


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    ("data", "indices"),
    [
        ("uint8", "uint16"),
        ("uint16", "int32"),
        ("uint32", "int64"),
        ("int64", "int32"),
        ("float32", "int32"),
    ],
)
def test_normalized_moments_have_the_same_bits(gpu_block, rng, data, indices, log):
    x = some_block(rng, 400, dtype="int64")
    x = (x % 251 if data == "uint8" else x).astype(data)
    scales = rng.lognormal(sigma=1.0, size=400)
    scales[[3, 50]] = np.nan
    codes = rng.integers(-1, 3, 400)
    block = gpu_block(csr(x), indices=indices)
    before = contents(block)
    for rows in ((scales,), (scales, codes), (cp.asarray(scales), cp.asarray(codes))):
        host = [cp.asnumpy(row) for row in rows]
        expected = count_moments_cpu.normalized_moments(csr(x), *host, log=log)
        for given in (block, gpu_block(x)):
            got = count_moments_gpu.normalized_moments(given, *rows, log=log)
            assert bits(got) == bits(expected)
    assert contents(block) == before
    assert bits(count_moments_gpu.normalized_moments(block, *rows, log=log)) == bits(got)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normalized_moments_of_values_that_are_no_counts(gpu_block, rng, dtype, log):
    x = abs(some_block(rng, 100, dtype=dtype))
    x[5, 5], x[6, 6] = 1e-12, 3e9
    scales = rng.lognormal(sigma=3.0, size=100)
    scales[7] = 0
    for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
        got = count_moments_gpu.normalized_moments(block, scales, log=log)
        same(got, count_moments_cpu.normalized_moments(cpu, scales, log=log))


def test_normalized_moments_of_rows_that_overflow(gpu_block):
    x = np.array([[1, 0, 2], [0, 3, 4], [0, 5, 0]], dtype=np.uint16)
    scales = np.array([np.inf, 1.0, np.nan])
    for log in (False, True):
        for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
            got = count_moments_gpu.normalized_moments(block, scales, log=log)
            with np.errstate(all="ignore"):
                expected = count_moments_cpu.normalized_moments(cpu, scales, log=log)
            same(got, expected)


def test_logarithms_below_minus_one_are_nan(gpu_block):
    x = np.array([[-2.0, -1.0, -0.5, 1.0]], dtype=np.float32)
    got = count_moments_gpu.normalized_moments(gpu_block(x), np.ones(1), log=True)
    assert np.isfinite(got.mean[0]).tolist() == [False, False, True, True]
    same(got, count_moments_cpu.normalized_moments(x, np.ones(1), log=True))


def test_normalized_moments_do_not_depend_on_the_blocks(gpu_block, rng):
    x = some_block(rng, 600, dtype="uint16")
    scales = rng.lognormal(size=600)
    whole = count_moments_gpu.normalized_moments(gpu_block(csr(x)), scales)
    parts = [
        count_moments_gpu.normalized_moments(gpu_block(csr(part)), scale)
        for part, scale in zip(np.split(x, [1, 77]), np.split(scales, [1, 77]), strict=True)
    ]
    assert bits(moments_cpu.merge_in_place(parts)) == bits(whole)


def test_no_cell_is_left(gpu_block, rng):
    x = some_block(rng, 20, dtype="uint16")
    for block, cpu in ((gpu_block(csr(x)), csr(x)), (gpu_block(x), x)):
        for codes in (None, np.zeros(20, dtype=int)):
            scales = np.full(20, np.nan)
            got = count_moments_gpu.normalized_moments(block, scales, codes)
            same(got, count_moments_cpu.normalized_moments(cpu, scales, codes))
        assert moments_gpu.moments(block, np.full(20, -1)).sums.shape == (0, x.shape[1], 4)


def test_as_many_scales_as_cells(gpu_block, rng):
    block = gpu_block(csr(some_block(rng, 20)))
    with pytest.raises(ValueError, match="19 scales for 20 cells"):
        count_moments_gpu.normalized_moments(block, np.ones(19))
