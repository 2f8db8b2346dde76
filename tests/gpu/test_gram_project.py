"""Gram statistics, components and projection on the GPU agree with the CPU."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.get import X_to_GPU
from scatlas.kernels.linalg import gram_cpu, project_cpu
from scatlas.matrix import gram
from scatlas.matrix.components import components
from scatlas.matrix.gram import GramAccumulator, GramStats, gram_stats
from scatlas.pp import pca

cp = pytest.importorskip("cupy")

from scatlas.kernels.linalg import (  # noqa: E402
    eigh_cpu,
    eigh_gpu,
    gram_gpu,
    project_gpu,
)

DTYPES = ["bool", "uint8", "int16", "float32", "float64"]
TYPES = [
    # data, indices, indptr
    ("bool", "int32", "int32"),
    ("uint8", "uint16", "int64"),
    ("int64", "int64", "int32"),
    ("float32", "int32", "int32"),
    ("float32", "uint16", "int64"),
    ("float64", "int32", "int64"),
]
SHAPES = [(0, 5), (1, 1), (7, 1), (1, 40), (40, 33), (300, 70)]


def matrix(rng, shape, density=0.2, dtype="float32"):
    """CSR with empty rows and empty genes."""
    x = rng.lognormal(size=shape) * 3
    x = x if np.dtype(dtype).kind == "f" else np.ceil(x) % 100
    x[rng.random(shape) > density] = 0
    x[rng.random(shape[0]) < 0.1] = 0
    x[:, rng.random(shape[1]) < 0.1] = 0
    return sp.csr_matrix(x.astype(dtype))


def raw(x):
    """Bytes of a block on the GPU."""
    arrays = [x] if isinstance(x, cp.ndarray) else [x.data, x.indices, x.indptr]
    return [array.get().tobytes() for array in arrays]


def gram_of(kernels, x):
    """Number of cells, sums per gene and both triangles of the products of a block."""
    xp = cp if kernels is gram_gpu else np
    sums, products = (xp.zeros(shape) for shape in (x.shape[1], (x.shape[1], x.shape[1])))
    kernels.add_block(x, sums, products)
    kernels.mirror(products)
    return x.shape[0], sums, products


def check_gram(got, block):
    n, sums, gram = got
    assert isinstance(sums, cp.ndarray)
    assert sums.dtype == gram.dtype == np.float64
    sums, gram = sums.get(), gram.get()
    expected = gram_of(gram_cpu, block)
    assert n == expected[0]
    np.testing.assert_array_equal(gram, gram.T)
    if block.dtype.kind != "f":  # sums of integers are exact
        np.testing.assert_array_equal(sums, expected[1])
        np.testing.assert_array_equal(gram, expected[2])
        return
    size = np.sqrt(expected[2].diagonal())
    assert (np.abs(gram - expected[2]) <= 1e-14 * np.outer(size, size)).all()
    assert (np.abs(sums - expected[1]) <= 1e-14 * np.sqrt(max(n, 1)) * size).all()


@pytest.fixture(params=["pairs", "dense"])
def way(request, monkeypatch):
    monkeypatch.setattr(gram_gpu, "_PAIR_COST", 0.0 if request.param == "pairs" else 1e18)
    return request.param


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_gram_of_csr_equals_the_cpu(way, types, rng, gpu_block):
    x = matrix(rng, (300, 70), dtype=types[0])
    block = gpu_block(x, *types)
    before = raw(block)
    check_gram(gram_of(gram_gpu, block), x)
    assert raw(block) == before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gram_of_any_shape(way, shape, rng, gpu_block):
    for density in (0.0, 0.05, 1.0):
        x = matrix(rng, shape, density)
        check_gram(gram_of(gram_gpu, gpu_block(x)), x)
        check_gram(gram_of(gram_gpu, gpu_block(x.toarray())), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gram_of_dense_rows_equals_the_cpu(dtype, rng, gpu_block, monkeypatch):
    x = matrix(rng, (300, 70), 0.7, dtype).toarray()
    monkeypatch.setattr(gram_gpu, "_DENSE_BYTES", 8 * 70 * 10)
    monkeypatch.setattr(gram_gpu, "_DENSE_PANEL", 32)
    for block in (gpu_block(x), gpu_block(np.asfortranarray(x)), gpu_block(x)[:, :]):
        before = raw(block)
        check_gram(gram_of(gram_gpu, block), x)
        assert raw(block) == before


def test_gram_in_many_parts_panels_and_runs(rng, gpu_block, monkeypatch):
    """Borders of parts, of panels of genes, and of runs of a gene's cells."""
    monkeypatch.setattr(gram_gpu, "_PAIR_COST", 0.0)
    for name, value in {
        "_PART_VALUES": 500,
        "_PANEL": 50,
        "_COUNTED": 70,
        "_RUN": 7,
        "_CHUNKS": 5,
    }.items():
        monkeypatch.setattr(gram_gpu, name, value)
    for density, dtype in ((0.1, "float32"), (0.9, "float64"), (0.3, "uint16")):
        x = matrix(rng, (200, 133), density, dtype)
        check_gram(gram_of(gram_gpu, gpu_block(x)), x)
    # A row with more values than a part, and parts without values.
    x = sp.csr_matrix((20, 2000), dtype=np.float32)
    x = sp.vstack([x, np.ones((1, 2000), np.float32), x], format="csr", dtype=np.float32)
    check_gram(gram_of(gram_gpu, gpu_block(x)), x)


def test_gram_of_rows_that_begin_later(way, rng, gpu_block):
    """Offsets may begin above 0, as in a view of rows."""
    x = matrix(rng, (90, 30))
    block = gpu_block(x)
    part = gpu_block(x[:0])
    part.data, part.indices, part.indptr = block.data, block.indices, block.indptr[20:61]
    part._shape = (40, 30)
    check_gram(gram_of(gram_gpu, part), x[20:60])


def test_gram_of_unsorted_and_repeated_genes(rng, gpu_block):
    data = np.array([1, 2, 3, 4, 5], dtype=np.float32)
    index, indptr = np.array([2, 0, 1, 1, 3], np.int32), np.array([0, 2, 5], np.int32)
    x = gpu_block(sp.csr_matrix((2, 60), dtype=np.float32))
    x.data, x.indices, x.indptr = map(cp.asarray, (data, index, indptr))
    dense = np.zeros((2, 60), np.float32)
    np.add.at(dense, ([0, 0, 1, 1, 1], [2, 0, 1, 1, 3]), data)
    check_gram(gram_of(gram_gpu, x), dense)


def test_gram_chooses_by_density(rng, gpu_block, monkeypatch):
    used = []
    monkeypatch.setattr(gram_gpu, "_add_pairs", lambda *_: used.append("pairs"))
    monkeypatch.setattr(gram_gpu, "_add_dense", lambda *_: used.append("dense"))
    for density in (0.02, 0.6):
        gram_of(gram_gpu, gpu_block(matrix(rng, (100, 300), density)))
    assert used == ["pairs", "dense"]


def test_gram_has_the_same_bits_on_each_run(way, rng, gpu_block):
    block = gpu_block(matrix(rng, (4000, 200), 0.3))
    found = {
        tuple(a.tobytes() for a in map(cp.asnumpy, gram_of(gram_gpu, block)[1:])) for _ in "abc"
    }
    assert len(found) == 1


def test_gram_keeps_nan_and_infinity(way, rng, gpu_block):
    x = matrix(rng, (30, 10), 0.5)
    x.data[:2] = np.nan, np.inf
    _, sums, gram = gram_of(gram_gpu, gpu_block(x))
    assert not np.isfinite(sums.get()).all()
    assert not np.isfinite(gram.get().diagonal()).all()


def test_gram_refuses_genes_that_it_cannot_number(gpu_block):
    with pytest.raises(ValueError, match="65537 genes"):
        gram_gpu.add_block(gpu_block(sp.csr_matrix((2, 65537))), cp.zeros(0), cp.zeros((0, 0)))


# --- accumulation and components ---------------------------------------------------------------


@pytest.fixture
def logged(rng):
    return matrix(rng, (600, 40), 0.3)


@pytest.mark.parametrize("dense", [False, True], ids=["csr", "dense"])
def test_accumulator_equals_the_cpu(dense, logged, gpu_block):
    bounds = [0, *range(20, 420, 20), 420, 600]  # more blocks than a group, one of them empty
    found = []
    for convert in (lambda x: x, gpu_block):
        with GramAccumulator(40) as total:
            for a, b in pairwise(bounds):
                part = logged[a:b].toarray() if dense else logged[a:b]
                total.add(convert(part))
        found.append(total.result())
    expected, got = found
    assert type(got) is GramStats
    assert type(got.sums) is type(got.gram) is np.ndarray
    assert got.n_cells == expected.n_cells == 600
    np.testing.assert_allclose(got.sums, expected.sums, rtol=1e-13)
    np.testing.assert_allclose(got.gram, expected.gram, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(got.gram, got.gram.T)
    again = gram_stats(gpu_block(logged))
    np.testing.assert_allclose(again.gram, expected.gram, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("dense", [False, True], ids=["csr", "dense"])
def test_no_bit_depends_on_where_blocks_begin(dtype, dense, rng, gpu_block, monkeypatch):
    """Nor on the groups of panels that are summed separately."""
    x = matrix(rng, (600, 41), 0.3, dtype)
    x = x.toarray() if dense else x
    monkeypatch.setattr(gram, "panel_rows", lambda *_, **__: 32)
    monkeypatch.setattr(gram, "_GROUP", 4)

    def stats(rows):
        with GramAccumulator(41) as total:
            for part in rows:
                total.add(gpu_block(x[part]))
        return total.result()

    def cut(start, stop, size):
        return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]

    whole = stats([slice(0, 400)])
    groups = [stats(cut(a, min(a + 128, 400), 10)) for a in range(0, 400, 128)]
    for other in (
        *(stats(cut(0, 400, size)) for size in (1, 10, 33)),
        GramStats.merge_in_place(groups),
    ):
        assert other.gram.tobytes() == whole.gram.tobytes()
        assert other.sums.tobytes() == whole.sums.tobytes()


def test_accumulator_refuses_blocks_of_both_sides(logged, gpu_block):
    with GramAccumulator(40) as total:
        total.add(gpu_block(logged))
        with pytest.raises(InputError, match="on the host and on a GPU"):
            total.add(logged)


def test_largest_eigenvalues_equal_the_cpu(rng):
    x = rng.normal(size=(200, 60)) * np.linspace(1, 3, 60)
    gram = x.T @ x
    for matrix_ in (gram, cp.asarray(gram)):
        values, vectors = eigh_gpu.eigh_top(matrix_, 7)
        assert type(values) is type(vectors) is np.ndarray
        assert vectors.flags.c_contiguous
        expected, theirs = eigh_cpu.eigh_top(gram.copy(), 7)
        np.testing.assert_allclose(values, expected, rtol=1e-12)
        np.testing.assert_allclose(np.abs((vectors * theirs).sum(axis=0)), 1.0, rtol=1e-9)
        np.testing.assert_array_equal(cp.asnumpy(matrix_), gram)


def test_eigenvalues_of_many_rows_equal_the_cpu(rng):
    """By iterations, with the same bits on each run."""
    x = rng.standard_normal((600, 3000)) * np.geomspace(1, 30, 3000)
    matrix = x.T @ x
    values, vectors = eigh_gpu.eigh_top(cp.asarray(matrix), 20)
    expected, its_vectors = eigh_cpu.eigh_top(matrix, 20)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_allclose(np.abs(np.sum(vectors * its_vectors, axis=0)), 1, rtol=1e-12)
    again = eigh_gpu.eigh_top(cp.asarray(matrix), 20)
    np.testing.assert_array_equal(again[1], vectors)


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


@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_projected_csr_has_the_bits_of_the_cpu(types, dtype, rng, gpu_block):
    x = matrix(rng, (130, 70), 0.3, types[0])
    block = gpu_block(x, *types)
    before = raw(block)
    for k in (1, 16, 50):
        loadings, offset = rng.normal(size=(70, k)), rng.normal(size=k)
        got = project_gpu.project(block, loadings, offset, dtype=dtype)
        assert isinstance(got, cp.ndarray)
        assert (got.dtype, got.shape) == (dtype, (130, k))
        expected = project_cpu.project(x, loadings, offset, dtype=dtype)
        np.testing.assert_array_equal(got.get(), expected)
    assert raw(block) == before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_projection_of_any_shape(shape, rng, gpu_block):
    loadings, offset = rng.normal(size=(shape[1], 3)), rng.normal(size=3)
    for density in (0.0, 0.1, 1.0):
        x = matrix(rng, shape, density)
        expected = project_cpu.project(x, loadings, offset)
        np.testing.assert_array_equal(
            project_gpu.project(gpu_block(x), loadings, offset).get(), expected
        )
        got = project_gpu.project(gpu_block(x.toarray()), cp.asarray(loadings), cp.asarray(offset))
        np.testing.assert_allclose(got.get(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_projected_dense_rows_equal_the_cpu(dtype, rng, gpu_block, monkeypatch):
    monkeypatch.setattr(project_gpu, "_DENSE_ROWS", 32)
    x = matrix(rng, (130, 70), 0.7, dtype).toarray()
    loadings, offset = rng.normal(size=(70, 20)), rng.normal(size=20)
    block = gpu_block(x)
    before = raw(block)
    for order in (block, cp.asfortranarray(block)):
        got = project_gpu.project(order, loadings, offset, dtype=np.float64).get()
        expected = project_cpu.project(x, loadings, offset, dtype=np.float64)
        size = 1 + np.abs(x.astype(float)) @ np.abs(loadings)
        assert (np.abs(got - expected) <= 1e-14 * size).all()
    assert raw(block) == before
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


# --- pca ----------------------------------------------------------------------------------------


def block_of(x, kind):
    """Rows of `x` as CuPy's array types, which users have."""
    from cupyx.scipy import sparse

    return cp.asarray(x.toarray()) if kind == "dense" else sparse.csr_matrix(x)


@pytest.mark.parametrize("kind", ["csr", "dense"])
@pytest.mark.parametrize("zero_center", [True, False])
def test_pca_of_an_array_on_the_gpu(kind, zero_center, logged):
    expected = pca(logged, 6, zero_center=zero_center, return_info=True)
    x = block_of(logged, kind)
    before = raw(x)
    got = pca(x, 6, zero_center=zero_center, return_info=True)
    assert isinstance(got[0], cp.ndarray)
    assert got[0].dtype == np.float32
    np.testing.assert_allclose(got[0].get(), expected[0], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got[1:], expected[1:], strict=True):
        assert type(ours) is np.ndarray
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-7)
    assert raw(x) == before


@pytest.mark.parametrize("kind", ["csr", "dense"])
def test_pca_of_anndata_on_the_gpu(kind, logged):
    import anndata as ad

    theirs = ad.AnnData(logged.copy())
    mask = np.arange(40) % 3 > 0
    pca(theirs, 5, mask_var=mask, dtype="float64")
    ours = ad.AnnData(block_of(logged, kind))
    pca(ours, 5, mask_var=mask, dtype="float64")
    assert isinstance(ours.obsm["X_pca"], cp.ndarray)
    assert type(ours.varm["PCs"]) is np.ndarray
    np.testing.assert_allclose(ours.obsm["X_pca"].get(), theirs.obsm["X_pca"], atol=1e-7)
    np.testing.assert_allclose(ours.varm["PCs"], theirs.varm["PCs"], atol=1e-8)
    np.testing.assert_allclose(ours.uns["pca"]["variance"], theirs.uns["pca"]["variance"])


@pytest.mark.parametrize("kind", ["csr", "dense"])
def test_pca_of_dask_blocks_on_the_gpu(kind, logged):
    import dask.array as da

    x = da.from_array(logged if kind == "csr" else logged.toarray(), (250, 40), asarray=False)
    x = X_to_GPU(x)
    expected = pca(logged, 6, return_info=True)
    got = pca(x, 6, return_info=True)
    assert isinstance(got[0], da.Array)
    assert isinstance(got[0]._meta, cp.ndarray)
    cells = got[0].compute(scheduler="synchronous")
    assert isinstance(cells, cp.ndarray)
    np.testing.assert_allclose(cells.get(), expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], expected[1], atol=1e-7)


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
