"""Components of arrays with many genes: each way agrees with a singular value decomposition."""

from __future__ import annotations

from functools import lru_cache

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

from scatlas import pp
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.kernels.linalg import eigh_cpu
from scatlas.matrix import array_components
from scatlas.matrix.components import Components, eigh_top_in_threads

N_COMPS = 12


def cells(n_cells: int, n_genes: int, seed: int = 0) -> np.ndarray:
    """Logarithms of counts of a few kinds of cells."""
    rng = np.random.default_rng(seed)
    kinds = rng.gamma(0.4, 1, (n_cells, 30)) @ rng.gamma(0.3, 1, (30, n_genes))
    means = kinds * np.exp(rng.normal(-1.5, 1, n_genes))
    return np.log1p(rng.poisson(means)).astype(np.float32)


def check(
    found: Components, x: np.ndarray, *, zero_center: bool = True, atol: float = 1e-9
) -> None:
    """Compare with a singular value decomposition in float64."""
    mean, singular, loadings, total = decomposed(x.shape, x.dtype.str, x.tobytes(), zero_center)
    PCs = loadings[: found.variance.size].T
    PCs = PCs * np.sign(PCs[np.abs(PCs).argmax(axis=0), np.arange(found.variance.size)])
    variance = singular[: found.variance.size] ** 2 / (len(x) - 1)
    if not zero_center:
        variance = (x.astype(np.float64) @ PCs).var(axis=0)
    np.testing.assert_allclose(found.PCs, PCs, atol=atol)
    np.testing.assert_allclose(found.variance, variance, rtol=atol / 10)
    np.testing.assert_allclose(found.variance_ratio, variance / total, rtol=atol / 10)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)


@lru_cache(maxsize=4)  # the kinds of one matrix have one reference
def decomposed(shape: tuple[int, int], dtype: str, content: bytes, zero_center: bool) -> tuple:
    wide = np.frombuffer(content, dtype).reshape(shape).astype(np.float64)
    mean = wide.mean(axis=0)
    svd = np.linalg.svd(wide - mean if zero_center else wide, full_matrices=False)
    return mean, *svd[1:], wide.var(axis=0, ddof=int(zero_center)).sum()


def forget_gram(patch: pytest.MonkeyPatch) -> None:
    """No Gram matrix of the genes fits the memory."""
    patch.setattr(array_components, "_SMALL_GRAM", 0)
    patch.setattr(array_components, "_BYTES_PER_VALUE", 0)


@pytest.fixture
def taken(monkeypatch) -> list[str]:
    """Names of the ways that are taken; 300 genes are not few."""
    monkeypatch.setattr(array_components, "_FEW_GENES", 300)
    names = []
    for name in ("_from_products", "_from_cells", "_from_genes"):
        way = getattr(array_components, name)

        def called(*args, name=name, way=way, **options):
            names.append(name)
            return way(*args, **options)

        monkeypatch.setattr(array_components, name, called)
    return names


WAYS = [
    (80, 600, False, "_from_cells"),
    (400, 600, False, "_from_cells"),
    (100, 280, False, "_from_cells"),  # few genes
    (30, 90, False, "_from_genes"),  # so few that it makes no difference
    (500, 400, False, "_from_genes"),
    (300, 600, True, "_from_products"),
    (500, 400, True, "_from_products"),
]


@pytest.mark.parametrize("kind", ["csr", "csc", "dense", "unsorted", "counts"])
@pytest.mark.parametrize(("n_cells", "n_genes", "no_memory", "way"), WAYS)
def test_each_way(monkeypatch, taken, n_cells, n_genes, no_memory, way, kind):
    dense, zero_center = cells(n_cells, n_genes), kind not in ("dense", "counts")
    if no_memory:
        forget_gram(monkeypatch)
    x = {"csr": sp.csr_matrix, "csc": sp.csc_array}.get(kind, np.asarray)(dense)
    if kind == "counts":
        dense = np.rint(np.expm1(dense)).astype(np.int32)
        x = sp.csr_matrix(dense)
    if kind == "unsorted":
        x = sp.csr_matrix(dense)
        for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True):
            x.indices[a:b], x.data[a:b] = x.indices[a:b][::-1].copy(), x.data[a:b][::-1].copy()
        x.has_sorted_indices = x.has_canonical_format = False
    found = array_components.array_components(x, N_COMPS, zero_center=zero_center)
    assert taken == [way]
    check(found, dense, zero_center=zero_center)


@pytest.mark.parametrize("n_shifted", [3, 600])
@pytest.mark.parametrize("kind", ["csr", "dense", "lazy"])
@pytest.mark.parametrize(
    ("n_cells", "no_memory", "way"),
    [(80, False, "_from_cells"), (300, True, "_from_products"), (700, False, "_from_genes")],
)
def test_means_far_above_the_spread_cost_no_digits(
    monkeypatch, taken, n_cells, no_memory, way, kind, n_shifted
):
    if no_memory:
        forget_gram(monkeypatch)
    dense = cells(n_cells, 600).astype(np.float64)
    dense[:, :n_shifted] += 1e7
    x = {"csr": sp.csr_matrix, "dense": np.asarray, "lazy": da.from_array}[kind](dense)
    x = x.rechunk((100, -1)) if kind == "lazy" else x
    found = array_components.array_components(x, N_COMPS)
    assert taken == ["_from_genes" if kind == "lazy" else way]
    check(found, dense, atol=1e-8)


def test_fewer_cells_than_components_have_directions():
    dense = cells(30, 2600)
    dense[20:] = dense[:10]  # ten cells twice
    found = pp.pca(sp.csr_matrix(dense), 30, return_info=True, dtype="float64")
    x_pca, loadings, _, variance = found
    np.testing.assert_allclose(loadings @ loadings.T, np.eye(30), atol=1e-12)
    assert (variance[:19] > 0).all()
    assert (variance[19:] == 0).all()
    centred = dense - dense.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(x_pca @ loadings, centred, atol=1e-10)


def test_more_genes_than_a_gram_matrix_may_have():
    x = sp.random(60, 40_000, 0.01, "csr", np.float32, random_state=0)
    check(array_components.array_components(x, 5), x.toarray())


@pytest.mark.parametrize("n_cells", [40, 400])
def test_values_that_are_not_finite(n_cells):
    x = cells(n_cells, 2600)
    x[3, 5] = np.nan
    with pytest.raises(InputError, match="PCA needs finite values"):
        array_components.array_components(sp.csr_matrix(x), 5)


def test_no_bit_depends_on_threads(monkeypatch, taken):
    forget_gram(monkeypatch)
    monkeypatch.setattr(eigh_cpu, "_VALUES_PER_PART", 2000)
    monkeypatch.setattr(eigh_cpu, "_MANY_ROWS", 300)
    narrow, wide = sp.csr_matrix(cells(300, 700)), sp.csr_matrix(cells(900, 700))
    gram = np.asarray((wide.T @ wide).todense(), np.float64)
    found = []
    for threads in (1, 3):
        with use_threads(threads):
            parts = [array_components.array_components(x, 10) for x in (narrow, wide)]
            found.append([*parts[0], *parts[1], *eigh_top_in_threads(gram.copy(), 10)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def with_eigenvalues(values: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A symmetric matrix and its eigenvectors, in the order of the values."""
    rng = np.random.default_rng(seed)
    vectors = np.linalg.qr(rng.standard_normal((values.size, values.size)))[0]
    return (vectors * values) @ vectors.T, vectors


SPECTRA = {
    "falling": 0.97 ** np.arange(500.0),
    "bulk behind few": np.r_[np.linspace(50, 5, 12), np.linspace(1.2, 0.8, 488)],
    "within the bulk": np.r_[np.linspace(50, 5, 4), np.linspace(1.2, 0.2, 496)],
    "a few large": np.r_[1e9, 1e6, 1e3, np.linspace(2, 0.1, 497)],
    "equal ones": np.r_[9.0, 9, 9, 7, 7, np.linspace(2, 0.1, 495)],
    "few": np.r_[5.0, 4, 3, np.zeros(497)],
    "none": np.zeros(500),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_eigenvalues_of_any_spectrum(name):
    spectrum, n = SPECTRA[name], 12
    matrix, vectors = with_eigenvalues(spectrum)
    values, found = eigh_cpu.lanczos(lambda v: matrix @ v, spectrum.size, n)
    largest = spectrum[0] or 1.0
    np.testing.assert_allclose(values, spectrum[:n], rtol=1e-12, atol=1e-13 * largest)
    np.testing.assert_allclose(found.T @ found, np.eye(n), atol=1e-12)
    np.testing.assert_allclose(matrix @ found, found * values, atol=1e-12 * largest)
    if np.diff(spectrum[: n + 1]).max() < -1e-4 * largest:
        angles = np.abs((found * vectors[:, :n]).sum(axis=0))
        np.testing.assert_allclose(angles, 1, atol=1e-12)


def test_many_rows_are_iterated_to_what_lapack_finds(monkeypatch):
    matrix, _ = with_eigenvalues(np.r_[np.linspace(90, 10, 20), np.linspace(2, 0, 280)])
    expected = eigh_cpu.eigh_top(matrix.copy(), 10)
    monkeypatch.setattr(eigh_cpu, "_MANY_ROWS", 100)
    values, vectors = eigh_cpu.eigh_top(matrix.copy(), 10)
    np.testing.assert_allclose(values, expected[0], rtol=1e-13)
    np.testing.assert_allclose(np.abs((vectors * expected[1]).sum(axis=0)), 1, atol=1e-13)


def test_iterations_that_do_not_converge_are_replaced(monkeypatch, taken, caplog):
    forget_gram(monkeypatch)
    monkeypatch.setattr(eigh_cpu, "_MAX_RESTARTS", 1)
    monkeypatch.setattr(eigh_cpu, "_ANGLE", 0)
    monkeypatch.setattr(eigh_cpu, "_ROUNDING", 0)
    for n_cells, way in ((300, "_from_cells"), (900, "_from_genes")):
        dense = cells(n_cells, 600)
        check(array_components.array_components(sp.csr_matrix(dense), N_COMPS), dense)
        assert taken[-2:] == ["_from_products", way]
    assert "did not converge" in caplog.text
