"""Values of which a result would have no meaning are refused, of every kind of X alike."""

from __future__ import annotations

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
@pytest.mark.parametrize("zero_center", [True, False])
def test_scale_refuses_what_is_not_finite(array_type, make_adata, reals, odd, zero_center):
    """Zeros that are stored became NaN, others stayed 0."""
    reals[7, 2] = odd
    with pytest.raises(InputError, match="the first at position 2, have NaN or infinite values"):
        sa.pp.scale(make_adata(array_type(reals)), zero_center=zero_center)


def test_scale_asks_the_cells_of_the_mask_alone(make_adata, reals):
    reals[7, 2] = np.nan
    adata = make_adata(reals)
    sa.pp.scale(adata, mask_obs=np.arange(N_CELLS) != 7)
    assert np.isfinite(np.delete(adata.X, 7, axis=0)).all()


@pytest.mark.parametrize("key", ["batch", "number"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_regress_out_refuses_what_is_not_finite(array_type, make_adata, reals, key, odd):
    reals[7, 2] = odd
    adata = make_adata(array_type(reals))
    adata.obs["number"] = np.arange(N_CELLS) % 5.0
    with pytest.raises(InputError, match="1 genes, the first at position 2"):
        sa.pp.regress_out(adata, key)


def test_dominant_genes_of_a_negative_total_are_refused(array_type, make_adata, reals):
    """A gene that is not stored is above a fraction of it, which dense X saw and CSR did not."""
    reals[7] -= 3
    adata = make_adata(array_type(reals))
    options = {"exclude_highly_expressed": True, "target_sum": 1.0}
    with pytest.raises(InputError, match="are these counts"):
        sa.pp.normalize_total(adata, **options)


@pytest.mark.parametrize("flavor", ["seurat", "cell_ranger"])
def test_scaled_values_are_no_counts_to_divide(array_type, make_adata, reals, flavor):
    """They ended in NaN and a warning of NumPy's."""
    reals[:, 2] = np.linspace(-0.9, 0.5, N_CELLS)
    adata = make_adata(array_type(reals))
    with pytest.raises(InputError, match="gene 'MT-gene2' has a mean below 0"):
        sa.pp.highly_variable_genes(adata, flavor=flavor, size_factors=np.ones(N_CELLS))


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


def test_harmony_of_sparse_components_is_refused():
    x = sparse.random(80, 5, density=0.5, format="csr", random_state=0)
    labels = {"plate": pd.Series(np.arange(80) % 2)}
    with pytest.raises(InputError, match="dense"):
        harmonize(x, labels)
