"""Types of cells: trained and named with doubt, whatever the blocks and the storage."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import expit

import scatlas as sa
from scatlas.errors import InputError
from scatlas.io.products.annotators import Annotator, check_labels
from scatlas.matrix.annotate import Scorer, annotate_values, answers_of_scores, shared_genes, vote
from scatlas.matrix.logistic import LogisticCells, fit
from scatlas.matrix.train_annotator import macro_f1, train

MODELS = ("binary", "multi", "sgd", "mini_batch", "balanced", "selected", "no_mean")
N_GENES = 300
GENES = pd.Index([f"gene{i}" for i in range(N_GENES)])
TYPES = np.array(["B", "NK", "T CD4", "T CD8"])
COARSE = {"B": "B", "NK": "T and NK", "T CD4": "T and NK", "T CD8": "T and NK"}


def donor(seed: int, n_cells: int = 240, types: np.ndarray = TYPES) -> ad.AnnData:
    """Counts of a donor with its own changes; 8% of the cells are shallow."""
    shared, own = np.random.default_rng(7), np.random.default_rng(seed)
    rates = shared.gamma(0.5, 1.0, N_GENES)
    changes = shared.normal(0, 1.2, (TYPES.size, N_GENES)) * (
        shared.random((TYPES.size, N_GENES)) < 0.2
    )
    labels = own.choice(types, n_cells)
    of_donor = np.where(own.random(N_GENES) < 0.5, own.normal(0, 0.2, N_GENES), 0)
    means = rates * np.exp(changes[np.searchsorted(TYPES, labels)] + of_donor)
    depth = np.exp(own.normal(np.log(1500), 0.4, n_cells)) * np.where(
        own.random(n_cells) < 0.08, 0.2, 1
    )
    counts = own.poisson(means / means.sum(axis=1, keepdims=True) * depth[:, None])
    obs = pd.DataFrame(
        {"type": labels, "donor": f"d{seed}"}, index=[f"d{seed}c{i}" for i in range(n_cells)]
    )
    obs["coarse"] = obs["type"].map(COARSE)
    obs["id"] = "CL:" + obs["type"]
    return ad.AnnData(
        sparse.csr_matrix(counts.astype(np.float32)), obs=obs, var=pd.DataFrame(index=GENES)
    )


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def donors(seeds: range, types: np.ndarray = TYPES) -> ad.AnnData:
    return ad.concat([donor(seed, types=types) for seed in seeds])


@pytest.fixture(scope="module")
def reference() -> ad.AnnData:
    return donors(range(3))


@pytest.fixture(scope="module")
def trained(reference) -> Annotator:
    return sa.tl.train_annotator(
        reference, ["coarse", "type"], groups="donor", ontology_ids="id", n_genes=200
    )


def logged(adata: ad.AnnData) -> ad.AnnData:
    adata = adata.copy()
    sa.pp.normalize_total(adata, target_sum=1e4)
    sa.pp.log1p(adata)
    return adata


# -- scores --------------------------------------------------------------------------------------


def dense_scores(x: np.ndarray, model: Annotator) -> np.ndarray:
    """As CellTypist computes them: dense, centred, scaled, bounded."""
    scaled = np.minimum((x - model.mean) / model.scale, 10)
    return scaled @ model.coef.T + model.intercept


@pytest.mark.parametrize("n_labels", [2, 5, 40])
def test_scores_are_those_of_dense_values(n_labels, rng):
    query = logged(donor(5))
    genes = rng.permutation(N_GENES)
    model = Annotator(
        np.array([f"t{i}" for i in range(n_labels)]),
        GENES[genes].to_numpy(),
        rng.normal(size=(n_labels, N_GENES)),
        rng.normal(size=n_labels),
        rng.gamma(1.0, 1.0, N_GENES),
        rng.gamma(1.0, 0.3, N_GENES) + 0.01,  # small enough for the bound to matter
        link="sigmoid",
    )
    # Genes that the query lacks are left out; the second gene of a name is.
    names = GENES.to_numpy(copy=True)
    names[:40], names[60] = [f"other{i}" for i in range(40)], names[61]
    shared = shared_genes(model, pd.Index(names), "query")
    assert shared.of_matrix.tolist() == [*range(40, 61), *range(62, N_GENES)]
    scores = Scorer.from_annotator(model, shared).scores(query.X[:, shared.of_matrix])
    at = shared.of_annotator
    part = replace(model, coef=model.coef[:, at], mean=model.mean[at], scale=model.scale[at])
    expected = dense_scores(query.X.toarray().astype(float)[:, shared.of_matrix], part)
    assert (query.X.toarray()[:, shared.of_matrix] > part.mean + 10 * part.scale).any()
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-9)
    found = annotate_values(query.X, pd.Index(names), model)
    np.testing.assert_array_equal(found.best, expected.argmax(axis=1))
    np.testing.assert_allclose(found.probability, expit(expected).max(axis=1), rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_scores_and_votes_are_celltypists(name):
    """Results that celltypist 1.7.1 gave for models of all its ways of training."""
    folder = Path(os.environ.get("SCATLAS_TEST_DATA", ""), "../refs/celltypist").resolve()
    if "SCATLAS_TEST_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("there are no results of celltypist: SCATLAS_TEST_DATA/../refs/celltypist")
    of = np.load(folder / f"{name}.npz")
    coef, intercept = of["coef"].astype(float), of["intercept"].astype(float)
    if len(coef) == 1:
        coef, intercept = np.vstack([-coef, coef]), np.append(-intercept, intercept)
    mean = of["mean"] if of["with_mean"] else np.zeros(of["scale"].size)
    model = Annotator(of["classes"], of["features"], coef, intercept, mean, of["scale"], "sigmoid")
    for query in ("all", "part"):
        genes = pd.Index(of[f"{query}_genes"])
        arrays = tuple(of[f"{query}_{part}"] for part in ("data", "indices", "indptr"))
        x = sparse.csr_matrix(arrays, shape=(300, genes.size))
        shared = shared_genes(model, genes, "query")
        scores = Scorer.from_annotator(model, shared).scores(x[:, shared.of_matrix])
        np.testing.assert_allclose(scores, of[f"{query}_decision"], rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose(expit(scores), of[f"{query}_probability"], rtol=1e-9)
        answers = answers_of_scores(scores, model)
        assert (model.labels[answers.best] == of[f"{query}_label"]).all()
        clusters = pd.Categorical(of["over_clustering"])
        votes = vote(answers.best, clusters.codes, model.labels.size, len(clusters.categories))
        names = model.labels[votes["label"]]
        assert (names[clusters.codes] == of[f"{query}_vote"]).all()
        enough = np.where(votes["share"] >= 0.8, names, "Heterogeneous")
        assert (enough[clusters.codes] == of[f"{query}_vote_min_prop_0.8"]).all()
    # of all genes, so that the sums of the cells are those of normalised counts
    arrays = tuple(of[f"all_{part}"] for part in ("data", "indices", "indptr"))
    genes = pd.Index(of["all_genes"])
    found = annotate_values(sparse.csr_matrix(arrays, shape=(300, genes.size)), genes, model)
    assert (model.labels[found.best] == of["all_label"]).all()


def test_votes_leave_the_unknown_out():
    codes = np.array([1, 1, 0, -1, -1, -1, 2, 0, -1])
    clusters = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2])
    table = vote(codes, clusters, 3, 4)
    assert table["label"].tolist() == [1, 0, -1, -1]  # of equal ones the first
    assert table["second"].tolist() == [0, 2, -1, -1]
    np.testing.assert_allclose(table["share"], [2 / 6, 0.5, 0, 0])
    np.testing.assert_allclose(table["unknown"], [0.5, 0, 1, 0])
    assert table["n_cells"].tolist() == [6, 2, 1, 0]
    assert table["vote"].tolist() == [-1, 0, -1, -1]  # more are unknown than have the first type


# -- training ------------------------------------------------------------------------------------


def test_new_donors_get_their_types_and_few_are_unknown(trained):
    query = donors(range(10, 13))
    sa.tl.annotate(query, trained, clusters="coarse")
    truth = pd.Categorical(query.obs["type"], categories=TYPES).codes
    answers = annotate_values(query.X, query.var_names, trained)
    assert macro_f1(truth, answers.best, TYPES.size) > 0.97
    assert query.obs["cell_type"].isna().mean() <= 0.05
    named = query.obs[query.obs["cell_type"].notna()]
    assert (named["cell_type"].astype(str) == named["type"]).mean() > 0.98
    assert trained.record["held_out_macro_f1"] > 0.97
    assert trained.record["n_groups"] == trained.record["n_folds"] == 3
    # The level above is known more often, and is that of the type.
    assert query.obs["cell_type_coarse"].isna().sum() <= query.obs["cell_type"].isna().sum()
    assert (named["cell_type_coarse"].astype(str) == named["cell_type"].map(COARSE)).all()
    ids = named["cell_type_ontology_term_id"].astype(str)
    assert (ids == "CL:" + named["cell_type"].astype(str)).all()
    assert set(query.obs["cell_type_vote"][query.obs["coarse"] == "B"]) == {"B"}
    assert query.obs["cell_type_probability"].dtype == np.float32
    assert (
        query.obs["cell_type_runner_up"].astype(str) != query.obs["cell_type"].astype(str)
    ).all()


@pytest.mark.parametrize("lacking", TYPES)
def test_a_type_that_the_reference_lacks_is_unknown(lacking):
    known = TYPES[lacking != TYPES]
    model = sa.tl.train_annotator(
        donors(range(3), known), "type", groups="donor", n_genes=200, max_cells=200
    )
    query = donors(range(10, 12))
    unknown = annotate_values(query.X, query.var_names, model).codes < 0
    of_lacking = (query.obs["type"] == lacking).to_numpy()
    assert unknown[of_lacking].mean() >= 0.9
    assert unknown[~of_lacking].mean() <= 0.05


def test_the_same_bits_lazily_and_from_logarithms(reference, trained):
    lazy = reference.copy()
    lazy.X = da.from_array(reference.X, chunks=(101, N_GENES), asarray=False)
    again = sa.tl.train_annotator(
        lazy, ["coarse", "type"], groups="donor", ontology_ids="id", n_genes=200
    )
    for name in ("coef", "intercept", "mean", "scale", "score_mean", "score_sd"):
        np.testing.assert_array_equal(getattr(again, name), getattr(trained, name))
    assert again.record == trained.record
    query = donor(11)
    expected = annotate_values(query.X, query.var_names, trained)
    forms = {
        "lazy": da.from_array(query.X, chunks=(37, N_GENES), asarray=False),
        "csc": query.X.tocsc(),
        "dense": query.X.toarray(),
        "integers": query.X.astype(np.int32),
    }
    for x in forms.values():
        found = annotate_values(x, query.var_names, trained)
        for name in ("codes", "best", "runner_up", "probability", "fit"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    found = annotate_values(logged(query).X, query.var_names, trained)
    np.testing.assert_array_equal(found.best, expected.best)
    np.testing.assert_allclose(found.probability, expected.probability, rtol=1e-4)
    keep = np.arange(query.n_obs) % 3 > 0
    some = annotate_values(forms["lazy"], query.var_names, trained, keep=keep)
    np.testing.assert_array_equal(some.codes, expected.codes[keep])


def test_without_groups_and_with_rare_types(reference):
    few = reference[reference.obs["type"] != "NK"].copy()
    rare = donor(1, 400)
    rare = rare[rare.obs["type"] == "NK"][:12]
    both = ad.concat([few, rare])
    both.obs["type"] = both.obs["type"].where(both.obs["type"] != "B", None)
    for groups in (None, "donor"):  # all NK are of one donor
        model = sa.tl.train_annotator(both, "type", groups=groups, n_genes=100, max_cells=60)
        assert model.labels.tolist() == ["NK", "T CD4", "T CD8"]
        assert model.record["cells_per_label"] == {"NK": 12, "T CD4": 60, "T CD8": 60}
        assert model.record["n_groups"] == (3 if groups else 0)


def test_other_genes_count_in_the_totals_alone(reference):
    shared, labels = np.arange(0, N_GENES, 2), pd.Categorical(reference.obs["type"])
    model = train(reference.X, reference.var_names, labels, shared=shared, max_cells=10**6)
    assert set(model.genes) <= set(GENES[shared])
    means = logged(reference)[:, model.genes].X.mean(axis=0)
    np.testing.assert_allclose(model.mean, np.asarray(means).ravel(), rtol=1e-5)


def test_centred_descent_ends_at_the_same_optimum(rng):
    codes = rng.integers(0, 3, 400)
    x = rng.normal(size=(400, 6)) + codes[:, None] * 0.4 + np.arange(6) * 3
    cells, sizes = LogisticCells(x, codes, None), np.bincount(codes)
    options = {"C": 0.1, "tol": 1e-9, "max_iter": 2000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scatlas.matrix.logistic._MIN_GAIN", 1e-16)
        plain = fit(cells, sizes, **options)
        centred = fit(cells, sizes, **options, centre=x.mean(axis=0))
    np.testing.assert_allclose(centred[:-1], plain[:-1], atol=1e-5)
    # a number added to all intercepts is of no account
    difference = centred[-1] - plain[-1]
    np.testing.assert_allclose(difference, difference.mean(), atol=1e-4)


# -- files and refusals --------------------------------------------------------------------------


def test_a_saved_annotator_is_read_back_and_has_the_same_bytes(trained, tmp_path):
    for name in ("a.h5ad", "b.h5ad"):
        sa.io.write_annotator(tmp_path / name, trained)
    assert (tmp_path / "a.h5ad").read_bytes() == (tmp_path / "b.h5ad").read_bytes()
    back = sa.io.read_annotator(tmp_path / "a.h5ad")
    assert ad.read_h5ad(tmp_path / "a.h5ad").shape == trained.coef.shape
    assert back.record == trained.record
    assert (back.coarser, back.ontology_ids) == (trained.coarser, trained.ontology_ids)
    query = donor(12, 50)
    copy = sa.tl.annotate(query, tmp_path / "a.h5ad", key_added="x", copy=True)
    sa.tl.annotate(query, trained, key_added="x")
    pd.testing.assert_frame_equal(copy.obs, query.obs)


@pytest.mark.parametrize("name", ["Unassigned", "heterogeneous", "unknown", "", " ", "NA", "a|b"])
def test_names_that_are_no_types_are_refused(name, reference):
    with pytest.raises(InputError, match=r"is no cell type|has a '\|'"):
        check_labels(["B", name])
    some = reference[:60].copy()
    some.obs["type"] = [name] * 30 + ["B"] * 30
    with pytest.raises(InputError, match=r"is no cell type|has a '\|'"):
        sa.tl.train_annotator(some, "type")


def test_references_that_cannot_teach_are_refused(reference):
    def refused(match, label="type", change=None, **options):
        adata = reference.copy()
        if change:
            change(adata)
        with pytest.raises(InputError, match=match):
            sa.tl.train_annotator(adata, label, **options)

    def two_cells(adata):
        adata.obs.loc[adata.obs_names[:2], "type"] = "rare"

    def other_parent(adata):
        adata.obs["coarse"] = np.where(np.arange(adata.n_obs) % 2, "x", "y")

    def scaled(adata):
        adata.X = logged(adata).X.multiply(3).tocsr()

    def negative(adata):
        adata.X = adata.X - adata.X.mean()

    refused("label 'rare' has 2 cells, too few to learn from", change=two_cells)
    refused("label 'B' belongs to 'x' and to 'y'", ["coarse", "type"], other_parent)
    refused("neither counts nor log1p of counts", change=scaled)
    refused("all labelled cells are 'd0'", "one", lambda a: a.obs.insert(0, "one", "d0"))
    refused("no cell has a label", "none", lambda a: a.obs.insert(0, "none", np.nan))
    refused("has no column 'kind'", "kind")
    refused("ontology ids: label 'B' belongs to", ontology_ids="donor")


def test_queries_of_other_genes_or_values_are_refused(trained):
    query = donor(12, 50)
    other = query.copy()
    other.var_names = [f"ENSG{i:011d}" for i in range(N_GENES)]
    with pytest.raises(InputError, match=r"0 of the .* 'gene\d+', the cells 'ENSG00000000000'"):
        sa.tl.annotate(other, trained)
    other = logged(query)
    other.X = other.X * 2
    with pytest.raises(InputError, match="neither counts nor log1p"):
        sa.tl.annotate(other, trained)
    mixed = sparse.vstack([query.X[:25], logged(query).X[25:]]).tocsr()
    for x, match in (
        (mixed, "neither counts nor log1p"),
        (da.from_array(mixed, chunks=(25, N_GENES), asarray=False), "has counts in some cells"),
    ):
        other.X = x
        with pytest.raises(InputError, match=match):
            sa.tl.annotate(other, trained)
    assert "cell_type" not in other.obs
