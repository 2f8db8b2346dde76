"""Matrices of CuPyX that scatlas returns can be used, and a full GPU ends in a sentence."""

from __future__ import annotations

import gc
import logging
import time
from contextlib import nullcontext

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")
csp = pytest.importorskip("cupyx.scipy.sparse")

import scatlas as sa  # noqa: E402
from scatlas import blocks  # noqa: E402
from scatlas.errors import InputError, ScatlasError  # noqa: E402
from scatlas.matrix import hvg_pearson  # noqa: E402
from tests.gpu.shared import skip_without  # noqa: E402


def counts(rng: np.random.Generator, shape: tuple[int, int] = (60, 40)) -> sp.csr_matrix:
    return sp.csr_matrix(rng.poisson(0.7, shape).astype(np.uint8))


CUTS = {
    "filter_cells": lambda a: sa.pp.filter_cells(a, min_counts=28),
    "filter_genes": lambda a: sa.pp.filter_genes(a, min_counts=42),
    "sample": lambda a: sa.pp.sample(a, 0.5, rng=0),
    "sample of genes": lambda a: sa.pp.sample(a, n=9, rng=0, axis="var"),
}


@pytest.mark.parametrize("genes", [np.int32, np.uint16])
@pytest.mark.parametrize("name", CUTS)
def test_exact_counts_are_cut(name: str, genes: type, rng):
    x = counts(rng)
    cpu = ad.AnnData(x.copy(), layers={"also": x.copy()})
    cpu.raw = cpu
    x.indices = x.indices.astype(genes)
    gpu = ad.AnnData(sa.get.X_to_GPU(x, exact=True))
    gpu.layers["also"] = sa.get.X_to_GPU(x, exact=True)
    CUTS[name](cpu)
    CUTS[name](gpu)
    for moved, expected in ((gpu.X, cpu.X), (gpu.layers["also"], cpu.layers["also"])):
        assert moved.data.dtype == np.uint8
        np.testing.assert_array_equal(sa.get.X_to_CPU(moved).toarray(), expected.toarray())


STEPS = {
    "downsample_counts": lambda a: sa.pp.downsample_counts(a, counts_per_cell=1000),
    "scale": lambda a: sa.pp.scale(a, zero_center=False),
    "normalize_total": lambda a: sa.pp.normalize_total(a),
    "log1p": lambda a: sa.pp.log1p(a),
    "filter_cells": lambda a: sa.pp.filter_cells(a, min_genes=2),
}


@pytest.mark.parametrize("name", STEPS)
def test_results_of_several_blocks_have_one_type_of_index(name: str, monkeypatch, rng):
    from scatlas.arrays import cupy_arrays

    monkeypatch.setattr(cupy_arrays, "VALUES_PER_BLOCK", 500)
    monkeypatch.setattr(cupy_arrays, "LEAST_VALUES_PER_BLOCK", 500)
    a = ad.AnnData(sa.get.X_to_GPU(counts(rng).astype(np.float32)))
    STEPS[name](a)
    assert a.X.indices.dtype == a.X.indptr.dtype == np.int32
    assert a[np.arange(5)].copy().X.shape == (5, 40)
    a.X.sum(axis=1)
    a.X[:5].toarray()


def test_offsets_beyond_32_bits_widen_the_genes():
    """Blocks of 2^31 values in all; CuPyX needs genes as wide as the offsets."""
    n = 2**30
    part = blocks.csr(cp.zeros(n, cp.uint8), cp.zeros(n, cp.int32), cp.array([0, n], cp.int32), 1)
    whole = blocks.join([part, part])
    assert whole.indices.dtype == whole.indptr.dtype == np.int64
    assert int(whole.indptr[-1]) == 2 * n
    del part, whole
    cp.get_default_memory_pool().free_all_blocks()


CALLS = {
    "normalize_total": lambda a: sa.pp.normalize_total(a),
    "scale": lambda a: sa.pp.scale(a),
    "regress_out": lambda a: sa.pp.regress_out(a, ["n"]),
    "downsample_counts": lambda a: sa.pp.downsample_counts(a, counts_per_cell=100),
    "pca": lambda a: sa.pp.pca(a, n_comps=10),
}


@pytest.mark.parametrize("name", CALLS)
def test_full_memory_ends_in_a_sentence(name: str, rng):
    x = sp.csr_matrix(rng.poisson(0.5, (20_000, 2000)).astype(np.float32))
    a = ad.AnnData(sa.get.X_to_GPU(x))
    a.obs["n"] = np.arange(a.n_obs) % 7.0
    pool = cp.get_default_memory_pool()
    halves_suffice = name == "downsample_counts"
    gc.collect()  # what other tests leave would be room
    pool.free_all_blocks()
    pool.set_limit(size=pool.total_bytes() + (48 if halves_suffice else 28) * 2**20)
    try:
        with nullcontext() if halves_suffice else pytest.raises(ScatlasError, match="too small"):
            CALLS[name](a)
    finally:
        pool.set_limit(size=0)


def test_errors_of_libraries_end_in_a_sentence(rng, monkeypatch):
    from scatlas.kernels.counts import qc_gpu

    def fail(*_args):
        raise cp.cuda.runtime.CUDARuntimeError(719)

    monkeypatch.setattr(qc_gpu, "row_positive", fail)
    a = ad.AnnData(sa.get.X_to_GPU(counts(rng).astype(np.float32)))
    with pytest.raises(ScatlasError, match="filter_cells failed on the GPU"):
        sa.pp.filter_cells(a, min_genes=1)


def test_a_matrix_of_another_gpu_is_refused(rng):
    skip_without(2)
    with cp.cuda.Device(1):
        a = ad.AnnData(sa.get.X_to_GPU(counts(rng).astype(np.float32)))
        b = ad.AnnData(sa.get.X_to_GPU(counts(rng).astype(np.float32).toarray()))
    for there in (a, b):
        with pytest.raises(InputError, match="GPU 1, but GPU 0 is the current one"):
            sa.pp.normalize_total(there)
    with cp.cuda.Device(1):
        sa.pp.normalize_total(a)


def test_components_do_not_depend_on_free_memory(rng, caplog):
    caplog.set_level(logging.ERROR)
    rates = rng.gamma(0.3, 2.0, 3000) * rng.gamma(2.0, 0.5, (20_000, 1))
    a = ad.AnnData(sp.csr_matrix(rng.poisson(rates).astype(np.float32)))
    sa.pp.log1p(a)
    pool = cp.get_default_memory_pool()
    logged = sa.get.X_to_GPU(a.X)
    held, found = pool.used_bytes(), {}
    for free in (None, 600, 400, 300, 200, 150):
        pool.free_all_blocks()
        pool.set_limit(size=0 if free is None else held + free * 2**20)
        b = ad.AnnData(logged)
        try:
            sa.pp.pca(b, n_comps=20)
            found[free] = cp.asnumpy(b.obsm["X_pca"])
        except ScatlasError:
            pass
        finally:
            pool.set_limit(size=0)
    assert len(found) > 1
    for places in found.values():
        np.testing.assert_array_equal(places, found[None])


def test_pearson_residuals_of_parts_are_those_of_the_whole(rng, monkeypatch):
    a = ad.AnnData(sa.get.X_to_GPU(counts(rng, (500, 80)).astype(np.float32)))
    options = {"flavor": "pearson_residuals", "n_top_genes": 20, "inplace": False}
    whole = sa.pp.highly_variable_genes(a, **options)
    monkeypatch.setattr(hvg_pearson, "_GPU_VALUES_AT_ONCE", 1000)
    parts = sa.pp.highly_variable_genes(a, **options)
    assert whole.equals(parts)


def test_genes_of_many_values_are_filtered_in_seconds():
    """CuPyX's own indexing took more than 90 s of as many."""
    n_rows, n_genes, per_row = 1_000_000, 20_000, 400
    genes = cp.tile(cp.arange(0, n_genes, n_genes // per_row, dtype=cp.uint16), n_rows)
    offsets = cp.arange(0, n_rows * per_row + 1, per_row, dtype=cp.int64)
    a = ad.AnnData(blocks.csr(cp.ones(n_rows * per_row, cp.uint8), genes, offsets, n_genes))
    begin = time.perf_counter()
    sa.pp.filter_genes(a, min_cells=1)
    assert a.shape == (n_rows, per_row)
    assert time.perf_counter() - begin < 20
    del a, genes, offsets
    cp.get_default_memory_pool().free_all_blocks()
