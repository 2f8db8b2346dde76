"""Gram statistics, components and projection on the GPU agree with the CPU."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.kernels.linalg import gram_cpu, project_cpu
from scatlas.matrix import gram as accumulation
from scatlas.matrix.components import components
from scatlas.matrix.gram import GramAccumulator, GramStats, gram_stats

cp = pytest.importorskip("cupy")

from scatlas.kernels.linalg import eigh_cpu, eigh_gpu, gram_gpu, project_gpu  # noqa: E402
from tests.gpu.kernel_calls import gram  # noqa: E402

WAYS = {"pairs": 0.0, "dense": 1e18}


def matrix(rng, shape, density=0.2, dtype="float32"):
    """CSR with empty rows and empty genes."""
    x = rng.lognormal(size=shape) * 3
    x = x if np.dtype(dtype).kind == "f" else np.ceil(x) % 100
    x[rng.random(shape) > density] = 0
    x[rng.random(shape[0]) < 0.1] = 0
    x[:, rng.random(shape[1]) < 0.1] = 0
    return sp.csr_matrix(x.astype(dtype))


def gram_of(kernels, x):
    """Sums per gene and both triangles of the products of a block."""
    sums, products = gram(kernels, x, None)
    return cp.asnumpy(sums), cp.asnumpy(products)


def check_gram(block, host):
    """Rounding of reals; ``test_kernels_of_blocks`` has counts, whose products are exact."""
    sums, products = gram_of(gram_gpu, block)
    expected = gram_of(gram_cpu, host)
    np.testing.assert_array_equal(products, products.T)
    size = np.sqrt(expected[1].diagonal())
    assert (np.abs(products - expected[1]) <= 1e-14 * np.outer(size, size)).all()
    assert (np.abs(sums - expected[0]) <= 1e-14 * np.sqrt(host.shape[0]) * size).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gram_of_reals(way, dtype, rng, gpu_block, monkeypatch):
    monkeypatch.setattr(gram_gpu, "_PAIR_COST", WAYS[way])
    for density in (0.05, 1.0):
        x = matrix(rng, (300, 70), density, dtype)
        check_gram(gpu_block(x), x)
        check_gram(gpu_block(x.toarray()), x)
    block = gpu_block(matrix(rng, (4000, 200), 0.3, dtype))
    for runs in zip(*(gram_of(gram_gpu, block) for _ in "ab"), strict=True):
        np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("way", WAYS)
def test_gram_of_rows_that_begin_later(way, rng, gpu_block, monkeypatch):
    """Offsets may begin above 0, as in a view of rows."""
    monkeypatch.setattr(gram_gpu, "_PAIR_COST", WAYS[way])
    x = matrix(rng, (90, 30))
    block, part = gpu_block(x), gpu_block(x[:0])
    part.data, part.indices, part.indptr = block.data, block.indices, block.indptr[20:61]
    part._shape = (40, 30)
    check_gram(part, x[20:60])


def test_gram_chooses_by_density(rng, gpu_block, monkeypatch):
    used = []
    monkeypatch.setattr(gram_gpu, "_add_pairs", lambda *_: used.append("pairs"))
    monkeypatch.setattr(gram_gpu, "_add_dense", lambda *_: used.append("dense"))
    for density in (0.02, 0.6):
        gram_of(gram_gpu, gpu_block(matrix(rng, (100, 300), density)))
    assert used == ["pairs", "dense"]


@pytest.mark.parametrize("way", WAYS)
def test_gram_keeps_nan_and_infinity(way, rng, gpu_block, monkeypatch):
    monkeypatch.setattr(gram_gpu, "_PAIR_COST", WAYS[way])
    x = matrix(rng, (30, 10), 0.5)
    x.data[:2] = np.nan, np.inf
    sums, products = gram_of(gram_gpu, gpu_block(x))
    assert not np.isfinite(sums).all()
    assert not np.isfinite(products.diagonal()).all()


# --- accumulation and components ---------------------------------------------------------------


@pytest.fixture
def logged(rng):
    return matrix(rng, (600, 40), 0.3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("dense", [False, True], ids=["csr", "dense"])
def test_no_bit_depends_on_where_blocks_begin(dtype, dense, rng, gpu_block, monkeypatch):
    """Nor on the groups of panels that are summed separately."""
    x = matrix(rng, (600, 41), 0.3, dtype)
    x = x.toarray() if dense else x
    monkeypatch.setattr(accumulation, "panel_rows", lambda *_, **__: 32)
    monkeypatch.setattr(accumulation, "_GROUP", 4)

    def stats(rows, copied=gpu_block):
        with GramAccumulator(41) as total:
            for part in rows:
                total.add(copied(x[part]))
        return total.result()

    def cut(start, stop, size):
        return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]

    whole = stats([slice(0, 400)])
    groups = [stats(cut(a, min(a + 128, 400), 10)) for a in range(0, 400, 128)]
    for other in (
        *(stats(cut(0, 400, size)) for size in (1, 10, 33)),
        stats([slice(0, 130), slice(130, 130), slice(130, 400)]),
        GramStats.merge_in_place(groups),
    ):
        assert other.gram.tobytes() == whole.gram.tobytes()
        assert other.sums.tobytes() == whole.sums.tobytes()
    expected = stats([slice(0, 400)], lambda part: part)
    assert type(whole.sums) is type(whole.gram) is np.ndarray
    assert whole.n_cells == expected.n_cells == 400
    np.testing.assert_allclose(whole.sums, expected.sums, rtol=1e-13)
    np.testing.assert_allclose(whole.gram, expected.gram, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(whole.gram, whole.gram.T)


def test_accumulator_refuses_blocks_of_both_sides(logged, gpu_block):
    with GramAccumulator(40) as total:
        total.add(gpu_block(logged))
        with pytest.raises(InputError, match="on the host and on a GPU"):
            total.add(logged)


@pytest.mark.parametrize(("shape", "scale"), [((200, 60), 3), ((600, 3000), 30)], ids=str)
def test_largest_eigenvalues_equal_the_cpu(shape, scale, rng):
    """Of many rows by iterations."""
    x = rng.normal(size=shape) * np.geomspace(1, scale, shape[1])
    products = x.T @ x
    expected, theirs = eigh_cpu.eigh_top(products.copy(), 7)
    found = []
    for given in (products, cp.asarray(products), cp.asarray(products)):
        values, vectors = eigh_gpu.eigh_top(given, 7)
        assert type(values) is type(vectors) is np.ndarray
        assert vectors.flags.c_contiguous
        np.testing.assert_allclose(values, expected, rtol=1e-12)
        np.testing.assert_allclose(np.abs((vectors * theirs).sum(axis=0)), 1.0, rtol=1e-12)
        np.testing.assert_array_equal(cp.asnumpy(given), products)
        found.append(vectors)
    np.testing.assert_array_equal(found[1], found[2])


@pytest.mark.parametrize("zero_center", [True, False])
def test_components_equal_the_cpu(zero_center, logged):
    stats = gram_stats(logged)
    before = stats.gram.copy()
    expected = components(stats, 8, zero_center=zero_center)
    got = components(stats, 8, zero_center=zero_center, gpu=True)
    again = components(stats, 8, zero_center=zero_center, gpu=True)
    np.testing.assert_array_equal(stats.gram, before)
    for name in ("mean", "PCs", "variance", "variance_ratio"):
        theirs, ours = getattr(expected, name), getattr(got, name)
        assert type(ours) is np.ndarray
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == getattr(again, name).tobytes()
    np.testing.assert_allclose(got.variance, expected.variance, rtol=1e-9)
    np.testing.assert_allclose(got.variance_ratio, expected.variance_ratio, rtol=1e-9)
    np.testing.assert_allclose(got.PCs, expected.PCs, atol=1e-6)


# --- projection ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float32", "float64"])
def test_projected_dense_rows_equal_the_cpu(dtype, rng, gpu_block, monkeypatch):
    monkeypatch.setattr(project_gpu, "_DENSE_ROWS", 32)
    x = matrix(rng, (130, 70), 0.7, dtype).toarray()
    loadings, offset = rng.normal(size=(70, 20)), rng.normal(size=20)
    block = gpu_block(x)
    for order in (block, cp.asfortranarray(block)):
        got = project_gpu.project(order, loadings, offset, dtype=np.float64).get()
        expected = project_cpu.project(x, loadings, offset, dtype=np.float64)
        size = 1 + np.abs(x.astype(float)) @ np.abs(loadings)
        assert (np.abs(got - expected) <= 1e-14 * size).all()
    np.testing.assert_array_equal(block.get(), x)
    whole = project_gpu.project(block, loadings, offset).get()
    assert whole.dtype == np.float32
    for _ in range(2):  # for any other cells in the block
        parts = [project_gpu.project(block[a:b], loadings, offset) for a, b in ((0, 7), (7, 130))]
        assert np.concatenate([part.get() for part in parts]).tobytes() == whole.tobytes()


def test_loadings_are_copied_to_a_device_once_and_travel(rng, gpu_block):
    x = gpu_block(matrix(rng, (50, 20)))
    plain, offset = rng.normal(size=(20, 5)), rng.normal(size=5)
    loadings = project_gpu.Loadings(plain)
    expected = project_gpu.project(x, plain, offset).get()
    np.testing.assert_array_equal(project_gpu.project(x, loadings, offset).get(), expected)
    assert loadings.on_device()[0] is loadings.on_device()[0]
    sent = pickle.dumps(loadings)
    assert len(sent) < 2 * plain.nbytes
    moved = pickle.loads(sent)
    np.testing.assert_array_equal(project_gpu.project(x, moved, offset).get(), expected)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pairs", "scattered", "dense"])
def test_rows_are_added_in_parts_of_a_fixed_size(kind, rng, gpu_block, monkeypatch):
    """Memory that is free does not show in the bits; where it is too small the error passes."""
    block = matrix(rng, (300, 70), 0.02 if kind == "pairs" else 0.6, "uint8")
    block = block.toarray() if kind == "dense" else block
    name = "_add_pairs" if kind == "pairs" else "_add_dense"

    def full(*_args):
        raise cp.cuda.memory.OutOfMemoryError(1, 1)

    monkeypatch.setattr(gram_gpu, name, full)
    with pytest.raises(MemoryError), GramAccumulator(70) as total:
        total.add(gpu_block(block))
