"""Labels and embeddings of new cells: kinds of X, representations, missing labels, errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.manifold import trustworthiness

import scatlas as sa
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.matrix.reference_map import join_parts
from scatlas.tl import _ingest


def cells(n_cells: int, seed: int) -> ad.AnnData:
    """Four groups of cells with 80 genes."""
    means = np.random.default_rng(0).gamma(0.5, 3.0, (4, 80))
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 4, n_cells)
    x = sparse.csr_matrix(np.log1p(rng.poisson(means[group])).astype(np.float32))
    obs = pd.DataFrame({"group": pd.Categorical([f"g{i}" for i in group]), "number": group})
    return ad.AnnData(x, obs=obs.set_index(obs.index.astype(str)))


@pytest.fixture(scope="module")
def reference() -> ad.AnnData:
    adata = cells(300, 1)
    sa.pp.pca(adata, 10)
    sa.pp.neighbors(adata, 10)
    sa.tl.umap(adata)
    return adata


@pytest.fixture(scope="module")
def mapped(reference: ad.AnnData) -> ad.AnnData:
    return sa.tl.ingest(cells(90, 2), reference, obs=["group", "number"], inplace=False)


def test_labels_and_coordinates(reference: ad.AnnData, mapped: ad.AnnData) -> None:
    truth = cells(90, 2).obs
    assert list(mapped.obs["group"]) == list(truth["group"])
    assert mapped.obs["group"].dtype == reference.obs["group"].dtype
    assert list(mapped.obs["number"]) == list(truth["number"])
    assert (mapped.obsm["X_umap"].dtype, mapped.obsm["X_umap"].shape) == (np.float32, (90, 2))
    joint = [np.vstack([a.obsm[k] for a in (reference, mapped)]) for k in ("X_pca", "X_umap")]
    alone = trustworthiness(*(reference.obsm[k] for k in ("X_pca", "X_umap")), n_neighbors=10)
    assert trustworthiness(*joint, n_neighbors=10) > alone - 0.01


def test_cells_of_the_reference_get_their_own_components(reference: ad.AnnData) -> None:
    """Also those of a few cells alone, whose mean is another."""
    part = reference[reference.obs["group"] == "g1"].copy()
    known = part.obsm.pop("X_pca")
    sa.tl.ingest(part, reference, embedding_method="pca")
    largest = np.abs(known).max()
    np.testing.assert_allclose(part.obsm["X_pca"], known, atol=1e-6 * largest)
    fewer = reference[60:].copy()  # the mean of its X is another one, too
    sa.tl.ingest(part, fewer, embedding_method="pca")
    np.testing.assert_allclose(part.obsm["X_pca"], known, atol=1e-6 * largest)


def test_every_kind_of_x(
    array_type: Any,
    block_loads: Any,
    dense: Any,
    reference: ad.AnnData,
    mapped: ad.AnnData,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same bits in any blocks and on any number of threads, in one pass."""
    adata = cells(90, 2)
    adata.X = array_type(adata.X)
    monkeypatch.setattr(_ingest, "join_parts", partial(join_parts, n_rows=20))
    with use_threads(3):
        sa.tl.ingest(adata, reference, obs="group")
    if array_type.is_dask:
        assert block_loads.passes() == sa.tl.ingest.passes == 1
        block_loads.assert_unchanged()
    np.testing.assert_array_equal(adata.obsm["X_umap"], mapped.obsm["X_umap"])
    assert list(adata.obs["group"]) == list(mapped.obs["group"])
    assert hasattr(adata.obsm["X_pca"], "dask") == array_type.is_dask
    np.testing.assert_array_equal(dense(adata.obsm["X_pca"]), mapped.obsm["X_pca"])


def test_inverted_lists_find_the_labels(
    reference: ad.AnnData, mapped: ad.AnnData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scatlas.matrix.inverted_lists.FASTER_FROM", 100)
    adata = sa.tl.ingest(cells(90, 2), reference, obs="group", inplace=False)
    assert list(adata.obs["group"]) == list(mapped.obs["group"])


@pytest.mark.parametrize("use_rep", ["X", "X_other"])
def test_other_representations(reference: ad.AnnData, use_rep: str) -> None:
    reference, adata = reference.copy(), cells(90, 2)
    for each in (reference, adata):
        each.obsm["X_other"] = each.X[:, :40].toarray()
    sa.pp.neighbors(reference, 10, use_rep=use_rep, key_added="mine")
    sa.tl.ingest(adata, reference, obs="group", embedding_method="umap", neighbors_key="mine", k=3)
    assert (adata.obs["group"] == cells(90, 2).obs["group"]).mean() > 0.95
    assert "X_pca" not in adata.obsm
    del adata.obsm["X_other"]
    if use_rep != "X":
        with pytest.raises(InputError, match="no 'X_other' in obsm"):
            sa.tl.ingest(adata, reference, embedding_method="umap", neighbors_key="mine")


def test_cells_without_a_label_do_not_vote(reference: ad.AnnData) -> None:
    reference = reference.copy()
    of = reference.obs["group"]
    reference.obs["few"] = of.where(of != "g2").where(np.arange(300) % 3 > 0)
    adata = cells(90, 2)
    truth = adata.obs["group"]
    sa.tl.ingest(adata, reference, obs="few", embedding_method=())
    assert adata.obs["few"][truth == "g2"].isna().all()
    assert (adata.obs["few"] == truth)[truth != "g2"].all()


def _without(element: str, key: str) -> Any:
    return lambda reference, adata: getattr(reference, element).pop(key)


def _rename_gene(reference: ad.AnnData, adata: ad.AnnData) -> None:
    adata.var_names = [*adata.var_names[:7], "TP53", *adata.var_names[8:]]


def _change_case(reference: ad.AnnData, adata: ad.AnnData) -> None:
    adata.var_names, reference.var_names = (
        [*names, *adata.var_names[2:]] for names in (["GAPDH", "ACTB"], ["Gapdh", "Actb"])
    )


def _swap_case(reference: ad.AnnData, adata: ad.AnnData) -> None:
    adata.var_names, reference.var_names = (
        [*names, *adata.var_names[2:]] for names in (["GAPDH", "Gapdh"], ["Gapdh", "GAPDH"])
    )


def _scale_reference(reference: ad.AnnData, adata: ad.AnnData) -> None:
    reference.X = reference.X * np.float32(1.1)


def _put_nan(reference: ad.AnnData, adata: ad.AnnData) -> None:
    adata.X = np.where(np.arange(80) == 3, np.nan, adata.X.toarray())


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (_without("varm", "PCs"), {}, r"adata_ref: no varm\['PCs'\], so no components: run sa"),
        (_without("uns", "neighbors"), {}, r"adata_ref: no neighbourhood graph in uns"),
        (_without("obsm", "X_umap"), {}, r"adata_ref: no obsm\['X_umap'\] with uns\['umap'\]"),
        (_rename_gene, {}, "gene 7 of adata is 'TP53', but that of adata_ref is '7'"),
        (_change_case, {}, "gene 0 of adata is 'GAPDH'.* is 'Gapdh': set adata.var_names = "),
        (_swap_case, {}, r"gene 0 of adata is 'GAPDH'.*: select the genes .* adata\[:, adata_ref"),
        (_scale_reference, {}, r"adata_ref: obsm\['X_pca'\] is not the projection of its X"),
        (_put_nan, {}, "'X_pca' holds values that are not finite"),
        (None, {"obs": "drug"}, r"adata_ref: obs has no column 'drug' \(obs\); it has group, num"),
        (None, {"k": 301}, "adata_ref: k=301 is not possible: .* from 1 to 300"),
        (None, {"embedding_method": "tsne"}, "embedding_method 'tsne' is not offered"),
        (None, {"labeling_method": "svm"}, "labeling_method 'svm' is not offered: use 'knn'"),
    ],
)
def test_one_sentence(
    reference: ad.AnnData, change: Any, options: dict[str, Any], message: str
) -> None:
    reference, adata = reference.copy(), cells(20, 3)
    if change is not None:
        change(reference, adata)
    with pytest.raises(InputError, match=message):
        sa.tl.ingest(adata, reference, **{"obs": "group"} | options)
    assert not adata.obsm
    assert list(adata.obs["group"]) == list(cells(20, 3).obs["group"])


def test_other_genes_and_metrics_are_refused(reference: ad.AnnData) -> None:
    with pytest.raises(InputError, match="adata has 79 genes, but adata_ref has 80"):
        sa.tl.ingest(cells(20, 3)[:, 1:].copy(), reference)
    reference = reference.copy()
    sa.pp.neighbors(reference, metric="manhattan")
    with pytest.raises(InputError, match="neighbours are in the metric 'manhattan', but new cells"):
        sa.tl.ingest(cells(20, 3), reference)
