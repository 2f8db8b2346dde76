"""Values of which a result would have no meaning are refused, of every kind of X alike."""

from __future__ import annotations

from functools import partial

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas.errors import InputError
from scatlas.matrix.gene_scale import GeneScale
from scatlas.matrix.gram import GramAccumulator
from scatlas.matrix.harmony import harmonize

N_CELLS, N_GENES = 20, 30


@pytest.fixture
def reals(make_counts) -> np.ndarray:
    """float64 [cells x genes], most of them zero."""
    return make_counts(N_CELLS, N_GENES, seed=1).toarray().astype(np.float64)


@pytest.mark.filterwarnings("ignore:zero-centering a sparse")
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda a: sa.pp.scale(a, zero_center=True),
        lambda a: sa.pp.scale(a, zero_center=False),
        lambda a: sa.pp.regress_out(a, "batch"),
        lambda a: sa.pp.regress_out(a, "number"),
    ],
)
def test_what_is_not_finite_is_refused(array_type, make_adata, reals, call, odd):
    """Zeros that are stored became NaN, others stayed 0."""
    reals[7, 2] = odd
    adata = make_adata(array_type(reals))
    adata.obs["number"] = np.arange(N_CELLS) % 5.0
    with pytest.raises(InputError, match="1 genes, the first at position 2, have NaN or infinite"):
        call(adata)


def test_scale_asks_the_cells_of_the_mask_alone(make_adata, reals):
    reals[7, 2] = np.nan
    adata = make_adata(reals)
    sa.pp.scale(adata, mask_obs=np.arange(N_CELLS) != 7)
    assert np.isfinite(np.delete(adata.X, 7, axis=0)).all()


DOMINANT = {"exclude_highly_expressed": True, "target_sum": 1.0}
NO_COUNTS = [
    # A gene that is not stored is above a fraction of a negative total.
    (lambda a: sa.pp.normalize_total(a, **DOMINANT), "are these counts"),
    *(
        (partial(sa.pp.highly_variable_genes, flavor=name, size_factors=np.ones(N_CELLS)), message)
        for message in ["gene 'MT-gene2' has a mean below 0"]
        for name in ("seurat", "cell_ranger")
    ),
]


@pytest.mark.parametrize(("call", "message"), NO_COUNTS)
def test_scaled_values_are_no_counts(array_type, make_adata, reals, call, message):
    reals[:, 2] = np.linspace(-0.9, 0.5, N_CELLS)
    reals[7] -= 3 * (message == "are these counts")
    with pytest.raises(InputError, match=message):
        call(make_adata(array_type(reals)))


def test_scaled_genes_are_not_variable_and_nothing_warns(array_type, make_adata, reals):
    """As with scanpy, they have no dispersion; NumPy's warning is not ours."""
    reals[:, 2] = np.linspace(-0.9, 0.5, N_CELLS)
    adata = make_adata(array_type(np.clip(reals, None, 3)))
    sa.pp.highly_variable_genes(adata, n_top_genes=5)
    assert np.isnan(adata.var["dispersions"].iloc[2])
    assert not adata.var["highly_variable"].iloc[2]


def test_no_scale_follows_from_sums_of_nothing(reals):
    for cells, message in ((reals[:0], "without cells"), (reals * np.nan, "NaN or infinite")):
        with GramAccumulator(N_GENES) as total:
            total.add(cells)
        with pytest.raises(InputError, match=message):
            GeneScale.from_stats(total.result(), zero_center=True, max_value=None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: sa.pp.highly_variable_genes(a, n_top_genes=2.5), "n_top_genes=2.5 is not"),
        (lambda a: sa.pp.highly_variable_genes(a, n_bins=None), "n_bins=None is not possible"),
        (lambda a: sa.pp.pca(a, n_comps="5"), "n_comps='5' is not possible"),
        (lambda a: sa.pp.scrublet(a, n_prin_comps=0), "n_prin_comps=0 .* whole number from 1 on"),
        (lambda a: sa.pp.scrublet(a, random_state=-1), "random_state=-1 .* from 0 to 4294967295"),
        (lambda a: sa.pp.sample(a, n=2.5), "n=2.5 is not possible"),
        (lambda a: sa.pp.sample(a, n=2, rng=-1), "rng=-1 is not possible"),
        (lambda a: sa.tl.score_genes(a, ["MT-gene2"], ctrl_size=-1), "ctrl_size=-1 is not"),
        (lambda a: sa.pp.sample(a, n=2, p=["x"] * N_CELLS), "p holds values .*: give numbers"),
        (lambda a: sa.pp.calculate_qc_metrics(a, percent_top=[2.5]), "percent_top=2.5 is not"),
        (lambda a: sa.tl.score_genes(a, ["MT-gene2"], n_bins=np.inf), "n_bins=inf is not"),
        (lambda a: sa.tl.rank_genes_groups(a, "batch", n_genes=np.nan), "n_genes=nan is not"),
        (lambda a: sa.pp.downsample_counts(a, 5, random_state=0.5), "random_state=0.5 is not"),
        (
            lambda a: sa.pp.normalize_total(
                a, counts_per_cell=np.array([pd.Timestamp(0)] * N_CELLS)
            ),
            "counts_per_cell holds values of type object that are no numbers: give numbers",
        ),
    ],
)
def test_arguments_that_are_no_numbers(make_adata, reals, call, message):
    with pytest.raises(InputError, match=message):
        call(make_adata(reals))


def test_whole_numbers_and_probabilities_of_other_types(make_adata, reals):
    """As R, JSON and NumPy have them."""
    adata, same = make_adata(reals), make_adata(reals)
    sa.pp.normalize_total(adata, counts_per_cell=np.arange(1, N_CELLS + 1).astype(object))
    sa.pp.normalize_total(same, counts_per_cell=np.arange(1, N_CELLS + 1))
    np.testing.assert_array_equal(adata.X, same.X)
    wanted = sa.pp.highly_variable_genes(adata, n_top_genes=5, inplace=False)
    for n, top, array in ((5.0, (2.0, 5), tuple), (np.int8(5), (2, 5), np.array)):
        table = sa.pp.highly_variable_genes(adata, n_top_genes=n, inplace=False)
        pd.testing.assert_frame_equal(table, wanted)
        obs, _ = sa.pp.calculate_qc_metrics(adata, percent_top=array(top))
        assert "pct_counts_in_top_5_genes" in obs
    p = np.random.default_rng(0).random(100_003).astype(np.float32)
    p /= p.sum()
    assert abs(p.sum(dtype=np.float64) - 1) > 1e-8
    assert sa.pp.sample(sparse.csr_matrix((p.size, 2)), n=5, p=p)[0].shape == (5, 2)
    with pytest.raises(InputError, match="must sum to 1"):
        sa.pp.sample(sparse.csr_matrix((p.size, 2)), n=5, p=p * 1.01)


def test_harmony_names_the_components_that_are_cut(make_adata, reals):
    adata = make_adata(reals)
    adata.obsm["X_pca"] = da.from_array(reals[:, :6], chunks=(10, 3))
    with pytest.raises(InputError, match=r"adata.obsm\['X_pca'\] = adata.obsm\['X_pca'\].rechunk"):
        sa.pp.harmony_integrate(adata, "batch")


def test_harmony_of_sparse_components_is_refused():
    x = sparse.random(80, 5, density=0.5, format="csr", random_state=0)
    labels = {"plate": pd.Series(np.arange(80) % 2)}
    with pytest.raises(InputError, match="dense"):
        harmonize(x, labels)
