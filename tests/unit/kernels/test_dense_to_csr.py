"""Dense blocks as CSR: the nonzero values of any type, in any order in memory."""

from __future__ import annotations

import numpy as np
import pytest

from scatlas.kernels.counts.transpose_cpu import dense_to_csr

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "longdouble"]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1), (17, 9)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_order(dtype, shape):
    rng = np.random.default_rng(0)
    x = (rng.poisson(0.7, shape) * rng.choice([1, 2.5], shape)).astype(dtype)
    for made in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        found = dense_to_csr(made)
        found.check_format(full_check=True)
        assert found.shape == shape
        assert found.has_sorted_indices
        assert found.nnz == np.count_nonzero(x)
        np.testing.assert_array_equal(found.toarray(), x)


def test_nan_and_negative_zeros():
    found = dense_to_csr(np.array([[np.nan, -0.0, -1.0], [0.0, np.inf, 0.0]]))
    np.testing.assert_array_equal(found.data, [np.nan, -1.0, np.inf])
    np.testing.assert_array_equal(found.indices, [0, 2, 1])
    np.testing.assert_array_equal(found.indptr, [0, 2, 3])
