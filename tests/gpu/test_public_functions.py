"""Public functions on CuPy, CuPyX and Dask-of-CuPy arrays equal the CPU's and change no input."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")

import scatlas as sa  # noqa: E402
from scatlas import blocks  # noqa: E402
from scatlas.arrays.kinds import is_dask, is_gpu  # noqa: E402
from scatlas.errors import ScatlasError  # noqa: E402
from scatlas.matrix.hvg import hvg_of_counts  # noqa: E402
from scatlas.matrix.hvg_shares import share_moments  # noqa: E402
from scatlas.matrix.select_normalize import select_and_log_normalize  # noqa: E402

N_CELLS, N_GENES = 700, 300
KINDS = ["dense", "csr", "csc", "dask-dense", "dask-csr", "exact-dask-csr"]


@pytest.fixture
def counts(rng) -> sp.csr_matrix:
    rates = rng.gamma(0.3, 2.0, N_GENES) * rng.gamma(2.0, 0.5, (N_CELLS, 1))
    x = rng.poisson(rates).astype(np.float32)
    x[13] = 0  # an empty cell
    return sp.csr_matrix(x)


def annotated(x) -> ad.AnnData:
    var = pd.DataFrame(index=[f"gene{i}" for i in range(N_GENES)])
    var["mt"] = np.arange(N_GENES) % 17 == 0
    obs = pd.DataFrame({"n": np.arange(N_CELLS)}, index=[f"cell{i}" for i in range(N_CELLS)])
    return ad.AnnData(X=x, obs=obs, var=var)


def on_gpu(counts: sp.csr_matrix, kind: str):
    x = counts.toarray() if "dense" in kind else counts.tocsc() if kind == "csc" else counts.copy()
    if "dask" in kind:
        x = da.from_array(x, chunks=(150, N_GENES), asarray=False)
    exact = kind.startswith("exact")
    return sa.get.X_to_GPU(x.astype(np.uint8) if exact else x, exact=exact)


@pytest.fixture(params=KINDS)
def pair(request, counts) -> tuple[ad.AnnData, ad.AnnData]:
    """The same counts on the CPU and on the GPU."""
    return annotated(counts.copy()), annotated(on_gpu(counts, request.param))


def host(x) -> np.ndarray:
    x = blocks.join(list(blocks.stream(x))) if is_dask(x) else x
    x = blocks.on_host(x)
    return x.toarray() if sp.issparse(x) else x


def same(gpu, cpu, rtol: float = 1e-6) -> None:
    assert is_gpu(gpu)
    gpu, cpu = host(gpu), host(cpu)
    assert gpu.dtype == cpu.dtype
    np.testing.assert_allclose(gpu, cpu, rtol=rtol, atol=1e-7)


def same_table(gpu: pd.DataFrame, cpu: pd.DataFrame, rtol: float = 1e-9) -> None:
    pd.testing.assert_frame_equal(gpu, cpu, rtol=rtol, check_exact=False, check_dtype=False)


def test_moving_there_and_back(counts):
    for kind in KINDS:
        x = on_gpu(counts, kind)
        assert is_gpu(x)
        assert sa.get.X_to_GPU(x) is x
        back = sa.get.X_to_CPU(x)
        assert not is_gpu(back)
        np.testing.assert_array_equal(host(back), counts.toarray())
    adata = annotated(counts)
    adata.layers["raw"] = counts.copy()
    moved = sa.get.anndata_to_GPU(adata, convert_all=True, copy=True)
    assert is_gpu(moved.X)
    assert is_gpu(moved.layers["raw"])
    assert not is_gpu(adata.X)
    sa.get.anndata_to_CPU(moved, convert_all=True)
    assert not is_gpu(moved.X)
    assert (moved.X != adata.X).nnz == 0


def test_qc(pair):
    cpu, gpu = pair
    for adata in pair:
        sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=(10, 50), inplace=True)
    same_table(gpu.obs, cpu.obs)
    same_table(gpu.var, cpu.var)


@pytest.mark.parametrize("bound", [{"min_counts": 30}, {"min_genes": 20}])
def test_filter_cells(pair, bound):
    cpu, gpu = pair
    for adata in pair:
        sa.pp.filter_cells(adata, **bound)
    np.testing.assert_array_equal(host(gpu.X), host(cpu.X))
    same_table(gpu.obs, cpu.obs)


@pytest.mark.parametrize("bound", [{"min_counts": 30}, {"min_cells": 20}])
def test_filter_genes(pair, bound):
    cpu, gpu = pair
    for adata in pair:
        sa.pp.filter_genes(adata, **bound)
    np.testing.assert_array_equal(host(gpu.X), host(cpu.X))
    same_table(gpu.var, cpu.var)


@pytest.mark.filterwarnings("ignore:Some cells have zero counts")
@pytest.mark.parametrize("target_sum", [None, 1e4])
@pytest.mark.parametrize("exclude", [False, True])
def test_normalize_log1p(pair, target_sum, exclude):
    cpu, gpu = pair
    for adata in pair:
        sa.pp.normalize_total(
            adata, target_sum=target_sum, exclude_highly_expressed=exclude, key_added="factor"
        )
    np.testing.assert_array_equal(host(gpu.X), host(cpu.X))
    np.testing.assert_array_equal(gpu.obs["factor"], cpu.obs["factor"])
    for adata in pair:
        sa.pp.log1p(adata)
    same(gpu.X, cpu.X, rtol=2e-7)


@pytest.mark.filterwarnings("ignore:Some cells have zero counts")
@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_highly_variable_genes(pair, flavor):
    cpu, gpu = pair
    for adata in pair:
        sa.pp.normalize_total(adata)
        sa.pp.log1p(adata)
        sa.pp.highly_variable_genes(adata, flavor=flavor, n_top_genes=50)
    assert gpu.var["highly_variable"].equals(cpu.var["highly_variable"])
    same_table(
        gpu.var.drop(columns="highly_variable"), cpu.var.drop(columns="highly_variable"), 1e-6
    )


def test_hvg_of_counts_and_cut(counts):
    totals = np.asarray(counts.sum(axis=1)).ravel()
    factors = np.where(np.arange(N_CELLS) % 7 == 0, np.nan, totals / np.median(totals))
    names = pd.Index([f"gene{i}" for i in range(N_GENES)])
    for kind in ("csr", "exact-dask-csr"):
        x = on_gpu(counts, kind)
        mine = hvg_of_counts(x, names, factors, n_top_genes=40)
        same_table(mine, hvg_of_counts(counts, names, factors, n_top_genes=40), 1e-12)
        genes = np.flatnonzero(mine["highly_variable"])[::-1]
        cut = select_and_log_normalize(x, genes, size_factors=factors)
        same(cut, select_and_log_normalize(counts, genes, size_factors=factors), rtol=2e-7)


def test_moments_of_shares_have_the_same_bits(counts):
    """`hvg` on a GPU takes the moments that `load` took on the CPU."""
    rows = np.flatnonzero(np.arange(N_CELLS) % 7)
    totals = np.asarray(counts.sum(axis=1)).ravel().astype(np.int64)[rows]
    expected = share_moments(counts, rows, totals, 1e4)
    for kind in ("csr", "exact-dask-csr"):
        found = share_moments(on_gpu(counts, kind), rows, totals, 1e4)
        for name, values in expected._asdict().items():
            np.testing.assert_array_equal(getattr(found, name), values, err_msg=name)


@pytest.mark.filterwarnings("ignore:zero-centering a sparse")
@pytest.mark.parametrize("zero_center", [True, False])
@pytest.mark.parametrize("max_value", [None, 2.0])
@pytest.mark.parametrize("mask", [False, True])
def test_scale(pair, zero_center, max_value, mask):
    cpu, gpu = pair
    if gpu.X.dtype != np.float32:
        pytest.skip("scale makes float64 of counts")
    mask = np.arange(N_CELLS) % 3 > 0 if mask else None
    for adata in pair:
        sa.pp.scale(adata, zero_center=zero_center, max_value=max_value, mask_obs=mask)
    same(gpu.X, cpu.X)
    same_table(gpu.var, cpu.var)


@pytest.mark.filterwarnings("ignore:Some cells have zero counts")
@pytest.mark.parametrize("zero_center", [True, False])
def test_pca(pair, zero_center):
    cpu, gpu = pair
    for adata in pair:
        sa.pp.normalize_total(adata)
        sa.pp.log1p(adata)
        sa.pp.pca(adata, n_comps=10, zero_center=zero_center)
    assert is_gpu(gpu.obsm["X_pca"])
    np.testing.assert_allclose(
        host(gpu.obsm["X_pca"]), host(cpu.obsm["X_pca"]), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(gpu.varm["PCs"], cpu.varm["PCs"], atol=1e-6)
    np.testing.assert_allclose(
        gpu.uns["pca"]["variance"], cpu.uns["pca"]["variance"], rtol=1e-9, atol=1e-12
    )


@pytest.mark.filterwarnings("ignore")
def test_a_persisted_array_is_not_harmed(counts):
    x = on_gpu(counts, "dask-csr").persist(scheduler="threads")
    before = [host(block) for block in blocks.stream(x)]
    adata = annotated(x)
    sa.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, inplace=True)
    sa.pp.normalize_total(adata)
    sa.pp.log1p(adata)
    sa.pp.highly_variable_genes(adata, n_top_genes=50)
    sa.pp.scale(adata, max_value=10)
    sa.pp.pca(adata, n_comps=10)
    host(adata.obsm["X_pca"])
    for old, block in zip(before, blocks.stream(x), strict=True):
        np.testing.assert_array_equal(host(block), old)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("threads", [1, 4, 8])
def test_no_bit_depends_on_threads(counts, threads, tmp_path_factory):
    from scatlas.compute.threads import use_threads

    with use_threads(threads):
        adata = annotated(on_gpu(counts, "dask-csr"))
        sa.pp.normalize_total(adata)
        sa.pp.log1p(adata)
        table = sa.pp.highly_variable_genes(adata, n_top_genes=50, inplace=False)
        sa.pp.pca(adata, n_comps=10)
        found = (
            table["dispersions_norm"].to_numpy().tobytes(),
            adata.varm["PCs"].tobytes(),
            host(adata.obsm["X_pca"]).tobytes(),
        )
    assert _first.setdefault("threads", found) == found


_first: dict[str, tuple] = {}


@pytest.mark.parametrize("rows", [70, 700])
def test_hvg_does_not_depend_on_the_blocks(counts, rows):
    x = sa.get.X_to_GPU(da.from_array(counts, chunks=(rows, N_GENES), asarray=False), exact=True)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    names = pd.Index([f"gene{i}" for i in range(N_GENES)])
    table = hvg_of_counts(x, names, totals / np.median(totals), n_top_genes=40)
    found = (table["dispersions"].to_numpy().tobytes(),)
    assert _first.setdefault("blocks", found) == found


def test_more_values_than_32_bits_count():
    """Offsets above 2^31: 68 M values per block, 34 blocks; every sum is known."""
    n_rows, per_row, n_genes, n_blocks = 68_000, 1_000, 4_000, 34
    genes = cp.tile(cp.arange(0, n_genes, n_genes // per_row, dtype=cp.uint16), n_rows)
    offsets = cp.arange(0, n_rows * per_row + 1, per_row, dtype=cp.int64)
    block = blocks.csr(cp.full(genes.size, 3, cp.uint8), genes, offsets, n_genes)
    x = _repeated(block, n_blocks)
    assert x.shape[0] * per_row > 2**31
    keep, totals = sa.pp.filter_cells(x, min_counts=1, inplace=False)
    assert keep.all()
    assert (totals == 3 * per_row).all()
    _, cells = sa.pp.filter_genes(x, min_counts=1, inplace=False)
    assert cells.sum() == 3 * per_row * n_rows * n_blocks


def _repeated(block, n: int) -> da.Array:
    from scatlas.arrays import cupy_arrays

    name, meta = f"repeated-{n}", cupy_arrays.empty_like(block, np.uint8)
    graph = {(name, i, 0): block for i in range(n)}
    return da.Array(graph, name, chunks=((block.shape[0],) * n, (block.shape[1],)), meta=meta)


def test_one_matrix_beyond_32_bits():
    """One block in memory with more than 2^31 values: 64-bit offsets in the kernels."""
    n_values = 2**31 + 2**20
    per_row, n_genes = 2**10, 2**15
    n_rows = n_values // per_row
    genes = cp.tile(cp.arange(0, n_genes, n_genes // per_row, dtype=cp.uint16), n_rows)
    offsets = cp.arange(0, n_values + 1, per_row, dtype=cp.int64)
    x = blocks.csr(cp.ones(n_values, cp.uint8), genes, offsets, n_genes)
    from scatlas.kernels.counts import qc_gpu

    partial = qc_gpu.qc_block(x, np.zeros((0, n_genes), bool), [])
    assert (partial.totals == per_row).all()
    assert (partial.gene_totals[:: n_genes // per_row] == n_rows).all()
    assert partial.gene_totals.sum() == n_values


def test_a_full_gpu_halves_the_block(counts, caplog, monkeypatch):
    from scatlas.kernels.moments import count_moments_gpu

    names = pd.Index([f"gene{i}" for i in range(N_GENES)])
    totals = np.asarray(counts.sum(axis=1)).ravel()
    factors = totals / np.median(totals)
    x = on_gpu(counts, "exact-dask-csr")
    expected = hvg_of_counts(x, names, factors, n_top_genes=40)
    whole = count_moments_gpu.normalized_moments

    def full(block, *rows, **options):
        if block.shape[0] > 40:
            raise cp.cuda.memory.OutOfMemoryError(1, 1)
        return whole(block, *rows, **options)

    monkeypatch.setattr(count_moments_gpu, "normalized_moments", full)
    with caplog.at_level("WARNING"):
        found = hvg_of_counts(x, names, factors, n_top_genes=40)
    assert "processed in halves" in caplog.text
    pd.testing.assert_frame_equal(found, expected, check_exact=True)

    def always(block, *rows, **options):
        raise cp.cuda.memory.OutOfMemoryError(1, 1)

    monkeypatch.setattr(count_moments_gpu, "normalized_moments", always)
    with pytest.raises(ScatlasError, match="too small for one cell"):
        hvg_of_counts(x, names, factors, n_top_genes=40)
