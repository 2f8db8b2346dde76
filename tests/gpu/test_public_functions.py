"""Public functions on CuPy, CuPyX and Dask-of-CuPy arrays equal the CPU's and change no input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

cp = pytest.importorskip("cupy")
cupy_sparse = pytest.importorskip("cupyx.scipy.sparse")

import scatlas as sa  # noqa: E402
from scatlas import blocks  # noqa: E402
from scatlas.arrays.kinds import is_dask, is_gpu  # noqa: E402
from scatlas.errors import InputError, ScatlasError  # noqa: E402
from scatlas.io.products.annotators import Annotator  # noqa: E402
from scatlas.matrix.hvg import hvg_of_counts  # noqa: E402
from scatlas.matrix.hvg_shares import share_moments  # noqa: E402
from scatlas.matrix.select_normalize import select_and_log_normalize  # noqa: E402
from tests.gpu.shared import host_arrays, needs  # noqa: E402

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
    obs["total"] = np.random.default_rng(1).random(N_CELLS)
    obs["batch"] = pd.Categorical([f"b{i % 3}" for i in range(N_CELLS)])
    return ad.AnnData(X=x, obs=obs, var=var)


def on_gpu(counts: sp.csr_matrix, kind: str):
    x = counts.toarray() if "dense" in kind else counts.tocsc() if kind == "csc" else counts.copy()
    if "dask" in kind:
        x = da.from_array(x, chunks=(150, N_GENES), asarray=False)
    exact = kind.startswith("exact")
    return sa.get.X_to_GPU(x.astype(np.uint8) if exact else x, exact=exact)


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


GENES = ["gene7", "gene20", "gene33", "gene241"]
SOME = np.arange(N_CELLS) % 3 > 0
FACTORS = np.where(np.arange(N_CELLS) % 7 == 0, np.nan, 1.0)


def logged(adata: ad.AnnData) -> ad.AnnData:
    sa.pp.normalize_total(adata)
    sa.pp.log1p(adata)
    return adata


def variable_genes(**options: Any) -> Callable[[ad.AnnData], Any]:
    return lambda a: sa.pp.highly_variable_genes(a, n_top_genes=50, inplace=False, **options)


def ranked(method: str, **options: Any) -> Callable[[ad.AnnData], Any]:
    """All arrays of the result, in the order of its genes."""

    def call(adata: ad.AnnData) -> list[Any]:
        sa.tl.rank_genes_groups(adata, "batch", method=method, pts=True, **options)
        found = adata.uns.pop("rank_genes_groups")
        return [np.array(found[name].tolist()) for name in found if name in ("names", *NUMBERS)]

    return call


FUNCS = ("sum", "mean", "var", "count_nonzero", "median")


def aggregate_of_some(adata: ad.AnnData) -> dict[str, Any]:
    """Cells without a group, and a group without cells."""
    groups = adata.obs["batch"].where(np.arange(N_CELLS) % 5 > 0)
    some = ad.AnnData(adata.X, obs=adata.obs.assign(groups=groups))
    mask = SOME & (groups != "b2").to_numpy()
    return dict(sa.get.aggregate(some, "groups", FUNCS, mask=mask).layers)


def annotated_by_batch(adata: ad.AnnData) -> None:
    """By a model of some genes, so that the result depends on the kernels of `annotate` alone."""
    rng = np.random.default_rng(5)
    genes, shape = adata.var_names[::3].to_numpy(), (4, N_GENES // 3 + (N_GENES % 3 > 0))
    arrays = rng.normal(size=shape), rng.normal(size=4), rng.random(shape[1]), np.ones(shape[1])
    sa.tl.annotate(adata, Annotator(np.array(["a", "b", "c", "d"]), genes, *arrays))
    adata.obs = adata.obs.drop(columns=["cell_type", "cell_type_runner_up"])


NUMBERS = ("scores", "pvals", "pvals_adj", "logfoldchanges")
# Each call with its tolerance for numbers of any result, X among them; 0: the same bits.
CALLS: dict[str, tuple[Callable[[ad.AnnData], Any], float]] = {
    "calculate_qc_metrics": (
        lambda a: sa.pp.calculate_qc_metrics(a, qc_vars=["mt"], percent_top=(10, 50)),
        1e-9,
    ),
    "filter_cells by counts": (lambda a: sa.pp.filter_cells(a, min_counts=30), 0.0),
    "filter_cells by genes": (lambda a: sa.pp.filter_cells(a, min_genes=20), 0.0),
    "filter_genes by counts": (lambda a: sa.pp.filter_genes(a, min_counts=30), 0.0),
    "filter_genes by cells": (lambda a: sa.pp.filter_genes(a, min_cells=20), 0.0),
    "normalize_total": (lambda a: sa.pp.normalize_total(a, key_added="factor"), 0.0),
    "normalize_total without dominant genes": (
        lambda a: sa.pp.normalize_total(a, target_sum=1e4, exclude_highly_expressed=True),
        0.0,
    ),
    "log1p": (logged, 2e-7),
    "seurat": (lambda a: variable_genes()(logged(a)), 1e-6),
    "cell_ranger": (lambda a: variable_genes(flavor="cell_ranger")(logged(a)), 1e-6),
    # On the CPU the rounding errors of the sums are rounded themselves.
    "pearson_residuals": (variable_genes(flavor="pearson_residuals"), 1e-14),
    "pearson_residuals of batches": (
        variable_genes(
            flavor="pearson_residuals",
            batch_key="batch",
            size_factors=FACTORS,
            min_cells=20,
            clip=3,
        ),
        1e-14,
    ),
    "scale": (lambda a: sa.pp.scale(logged(a)), 1e-6),
    "scale clipped": (lambda a: sa.pp.scale(logged(a), max_value=2.0, mask_obs=SOME), 1e-6),
    "scale uncentred": (lambda a: sa.pp.scale(logged(a), zero_center=False, max_value=2.0), 1e-6),
    "pca": (lambda a: sa.pp.pca(logged(a), n_comps=10), 1e-5),
    "pca uncentred": (lambda a: sa.pp.pca(logged(a), n_comps=10, zero_center=False), 1e-5),
    "pca of some genes": (
        lambda a: sa.pp.pca(a, 5, mask_var=np.arange(N_GENES) % 3 > 0, dtype="float64"),
        1e-7,
    ),
    "pca of a matrix": (
        lambda a: [host(part) for part in sa.pp.pca(a.X, 6, return_info=True)],
        1e-5,
    ),
    "regress_out": (lambda a: sa.pp.regress_out(a, ["n", "total"]), 0.0),
    "regress_out of groups": (lambda a: sa.pp.regress_out(a, "batch"), 0.0),
    "downsample_counts": (lambda a: sa.pp.downsample_counts(a, 50), 0.0),
    "downsample_counts to a total": (
        lambda a: sa.pp.downsample_counts(a, total_counts=9000, replace=True),
        0.0,
    ),
    "score_genes_cell_cycle": (
        lambda a: sa.tl.score_genes_cell_cycle(a, s_genes=GENES, g2m_genes=GENES[2:], n_bins=6),
        1e-12,
    ),
    "annotate": (annotated_by_batch, 1e-6),
    "train_annotator": (lambda a: sa.tl.train_annotator(a, "batch").score_mean, 1e-3),
    "aggregate": (lambda a: dict(sa.get.aggregate(a, "batch", FUNCS).layers), 0.0),
    "aggregate of some cells": (aggregate_of_some, 0.0),
    "aggregate of genes": (
        lambda a: dict(sa.get.aggregate(a, "mt", ("sum", "var"), axis=1).layers),
        0.0,
    ),
    **{
        f"rank_genes_groups {method} {i}": (ranked(method, **options), 0.0)
        for method in ("t-test", "t-test_overestim_var", "wilcoxon")
        for i, options in enumerate(({}, {"reference": "b1", "tie_correct": True}))
    },
}
if find_spec("skmisc"):
    CALLS |= {
        f"{flavor} by {key}": (
            variable_genes(flavor=flavor, batch_key=key, size_factors=FACTORS, min_cells=20),
            0.0,
        )
        for flavor in ("seurat_v3", "seurat_v3_paper")
        for key in (None, "batch")
    }


def results(adata: ad.AnnData, returned: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays that a call has returned or written."""
    match returned:
        case pd.DataFrame():
            # Edges of bins are as near as the means.
            known = returned.columns.drop("mean_bin", errors="ignore")
            yield from ((f"table {name}", returned[name].to_numpy()) for name in known)
        case tuple() | list():
            for part in returned:
                yield from results(adata, part)
        case dict():
            yield from ((name, blocks.on_host(part)) for name, part in returned.items())
        case np.ndarray():
            yield "array", returned
    for part in ("obs", "var"):
        table = getattr(adata, part)
        yield from ((f"{part} {name}", table[name].to_numpy()) for name in table)
    yield from ((f"obsm {name}", host(x)) for name, x in adata.obsm.items())
    yield from ((f"varm {name}", x) for name, x in adata.varm.items())
    if "pca" in adata.uns:
        yield "variance", adata.uns["pca"]["variance"]
    yield "X", host(adata.X)


@pytest.mark.filterwarnings("ignore:Some cells have zero counts", "ignore:zero-centering a sparse")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
def test_the_same_call(name, kind, counts):
    """On the CPU, and twice on the GPU: within the tolerance, and again the same bits."""
    call, rtol = CALLS[name]
    sides = annotated(counts.copy()), *(annotated(on_gpu(counts, kind)) for _ in range(2))
    expected, found, again = (list(results(adata, call(adata))) for adata in sides)
    assert all(map(is_gpu, (sides[1].X, *sides[1].obsm.values())))
    assert [key for key, _ in found] == [key for key, _ in expected]
    for (key, got), (_, want), (_, other) in zip(found, expected, again, strict=True):
        np.testing.assert_array_equal(got, other, f"{key}: another result of a second call")
        # Exact counts stay integers where X keeps its values.
        assert key != "X" or got.dtype == want.dtype or got.dtype == np.uint8
        if rtol and want.dtype.kind == "f":
            largest = np.abs(want[np.isfinite(want)]).max(initial=1e-2)
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * largest, err_msg=key)
        else:
            np.testing.assert_array_equal(got, want, key)


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
def test_no_bit_depends_on_threads(counts):
    from scatlas.compute.threads import use_threads

    found = set()
    for threads in (1, 4, 8):
        with use_threads(threads):
            adata = logged(annotated(on_gpu(counts, "dask-csr")))
            table = sa.pp.highly_variable_genes(adata, n_top_genes=50, inplace=False)
            sa.pp.pca(adata, n_comps=10)
            arrays = table["dispersions_norm"].to_numpy(), adata.varm["PCs"], adata.obsm["X_pca"]
            found.add(tuple(host(array).tobytes() for array in arrays))
    assert len(found) == 1


def test_hvg_does_not_depend_on_the_blocks(counts):
    totals, found = np.asarray(counts.sum(axis=1)).ravel(), set()
    for rows in (70, 700):
        x = da.from_array(counts, chunks=(rows, N_GENES), asarray=False)
        x, names = sa.get.X_to_GPU(x, exact=True), pd.Index([f"gene{i}" for i in range(N_GENES)])
        table = hvg_of_counts(x, names, totals / np.median(totals), n_top_genes=40)
        found.add(table["dispersions"].to_numpy().tobytes())
    assert len(found) == 1


@needs("skmisc")
def test_values_that_are_no_counts_are_told(counts, rng):
    counts.data *= rng.gamma(2.0, 0.5, counts.nnz).astype(np.float32)
    tables = []
    for x in (counts, sa.get.X_to_GPU(counts)):
        with pytest.warns(UserWarning, match="expects raw count data"):
            tables.append(variable_genes(flavor="seurat_v3", batch_key="batch")(annotated(x)))
    same_table(*tables, rtol=1e-14)


def test_scores_of_genes_leave_the_matrix_as_it_is(counts):
    counts.data[::5] = np.nan
    for x in (sa.get.X_to_GPU(counts, exact=True), sa.get.X_to_GPU(counts.toarray())):
        before = [part.tobytes() for part in host_arrays(x)]
        sa.tl.score_genes(annotated(x), GENES, n_bins=6)
        assert [part.tobytes() for part in host_arrays(x)] == before


def test_wide_integers_are_refused():
    obs = pd.DataFrame({"g": ["a", "a"]}, index=["x", "y"])
    adata = ad.AnnData(X=cp.asarray(np.array([[2**62], [2**62]])), obs=obs)
    with pytest.raises(InputError, match="do not fit 64 bits"):
        sa.get.aggregate(adata, "g", "sum")


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_values_in_parts_are_summed(kind: str, rng):
    dense = rng.poisson(1.5, (60, 40)).astype(np.float32)
    whole = sp.csr_matrix(dense).asformat(kind)
    arrays = (np.repeat(whole.data / 2, 2), np.repeat(whole.indices, 2), 2 * whole.indptr)
    made = getattr(cupy_sparse, f"{kind}_matrix")
    halves = made(tuple(map(cp.asarray, arrays)), shape=dense.shape)
    adata = ad.AnnData(dense.copy())
    adata.X = halves
    obs, var = sa.pp.calculate_qc_metrics(adata, percent_top=None, inplace=False)
    np.testing.assert_array_equal(obs["n_genes_by_counts"], (dense > 0).sum(1))
    np.testing.assert_array_equal(var["total_counts"], dense.sum(0))
    sa.pp.log1p(adata)
    np.testing.assert_allclose(adata.X.toarray().get(), np.log1p(dense), rtol=1e-6)
    assert halves.nnz == 2 * whole.nnz, "the user's matrix was changed"


@pytest.mark.parametrize("mean", [0, 1e4, 1e7])
def test_means_far_above_the_spread_cost_no_digits(mean: float, rng):
    x = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 40)) + 0.3 * rng.normal(size=(200, 40))
    x += mean
    expected = np.linalg.svd(x - x.mean(0), compute_uv=False)[:3] ** 2 / 199
    adata = ad.AnnData(x.copy())
    adata.X = cp.asarray(x)
    sa.pp.pca(adata, n_comps=3, mask_var=None)
    np.testing.assert_allclose(adata.uns["pca"]["variance"], expected, rtol=1e-12)


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
