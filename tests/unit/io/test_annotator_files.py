"""CellTypist models become annotators by an unpickler that runs nothing."""

from __future__ import annotations

import gzip
import os
import pickle
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import scatlas as sa
from scatlas.errors import InputError
from scatlas.io.products.celltypist_models import _read, convert_celltypist

GENES = np.array([f"g{i}" for i in range(30)])


def model(n_types: int, *, with_mean: bool = True, **changes) -> dict:
    """What celltypist pickles."""
    rng = np.random.default_rng(0)
    labels = np.array(["B cell", "T cell", "monocyte, classical"])[np.arange(90) % n_types]
    x = rng.poisson(2.0, (90, 30)) + (labels == "B cell")[:, None]
    scaler = StandardScaler(with_mean=with_mean).fit(x)
    classifier = LogisticRegression(max_iter=2000).fit(scaler.transform(x), labels)
    classifier.features = GENES
    return {"Model": classifier, "Scaler_": scaler, "description": {"date": "2026"}, **changes}


@pytest.mark.parametrize("n_types", [2, 3])
@pytest.mark.parametrize("with_mean", [True, False])
def test_a_model_becomes_plain_arrays(n_types, with_mean, tmp_path):
    given = model(n_types, with_mean=with_mean)
    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(given))
    found = _read(path)
    classifier, scaler = given["Model"], given["Scaler_"]
    assert found.labels.tolist() == classifier.classes_.tolist()
    assert found.genes.tolist() == GENES.tolist()
    assert (found.link, found.min_probability) == ("sigmoid", 0.5)
    np.testing.assert_array_equal(found.coef[-1], classifier.coef_[-1])
    if n_types == 2:
        np.testing.assert_array_equal(found.coef[0], -classifier.coef_[0])
        np.testing.assert_array_equal(found.intercept, [1, -1] * -classifier.intercept_)
    np.testing.assert_array_equal(found.mean, scaler.mean_ if with_mean else np.zeros(30))
    np.testing.assert_array_equal(found.scale, scaler.scale_)
    assert found.record["celltypist"] == "model.pkl"


@pytest.mark.parametrize("name", ["binary", "multi", "mini_batch"])
def test_models_of_celltypist_itself(name, tmp_path):
    folder = Path(os.environ.get("SCATLAS_TEST_DATA", ""), "../refs/celltypist").resolve()
    if "SCATLAS_TEST_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("there are no results of celltypist: SCATLAS_TEST_DATA/../refs/celltypist")
    of = np.load(folder / f"{name}.npz")
    genes = of["all_genes"]
    x = np.zeros((300, genes.size), np.float32)
    for cell, (start, stop) in enumerate(zip(of["all_indptr"], of["all_indptr"][1:], strict=False)):
        x[cell, of["all_indices"][start:stop]] = of["all_data"][start:stop]
    query = ad.AnnData(x)
    query.var_names = genes
    # In another process once: its start takes seconds.
    path = folder / f"{name}.pkl"
    sa.tl.annotate(query, path if name == "mini_batch" else _read(path))
    known = query.obs["cell_type"].notna()
    best = of["all_probability"].max(axis=1)
    np.testing.assert_array_equal(known, best >= 0.5)
    assert (query.obs["cell_type"][known] == of["all_label"][known]).all()
    np.testing.assert_allclose(query.obs["cell_type_probability"], best, rtol=1e-6)


REFUSED = {
    "another class": (
        pickle.dumps({"Model": Fraction(1, 2)}),
        "it holds fractions.Fraction, which",
    ),
    "another dict": (pickle.dumps(OrderedDict(a=1)), "it holds collections.OrderedDict, which"),
    "no model": (pickle.dumps({"a": 1}), "it has no entries 'Model' and 'Scaler_'"),
    "a list": (pickle.dumps([1, 2]), "it has no entries 'Model' and 'Scaler_'"),
    "no objects": (pickle.dumps({"Model": 1, "Scaler_": 2}), "its classifier has no classes_"),
    "cut": (pickle.dumps(model(3))[:1000], "it cannot be unpickled"),
    "gzip": (gzip.compress(pickle.dumps(model(3))), "it cannot be unpickled"),
    "empty": (b"", "it cannot be unpickled"),
    "text": (b"gene\tlabel\n", "it cannot be unpickled"),
    "no genes": (pickle.dumps(model(3, Model=LogisticRegression())), "has no classes_"),
    "another scaler": (pickle.dumps(model(3, Scaler_=StandardScaler())), "has no scale_"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_are_refused_and_nothing_is_written(name, tmp_path):
    raw, reason = REFUSED[name]
    path = tmp_path / "model.pkl"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=reason):
        _read(path)
    if name == "another class":
        reason = (
            f"model.pkl is no CellTypist model: ({reason}).*: give the .pkl of celltypist, or an "
        )
        with pytest.raises(InputError, match=reason) as error:
            convert_celltypist(path, tmp_path / "out.h5ad")
        assert "\n" not in str(error.value)
    assert [each.name for each in tmp_path.iterdir()] == ["model.pkl"]


def test_files_that_are_no_annotators_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a.h5ad: there is no such model"):
        sa.io.read_annotator(tmp_path / "a.h5ad")
    with pytest.raises(InputError, match=r"a.pkl: there is no such model"):
        convert_celltypist(tmp_path / "a.pkl", tmp_path / "b.h5ad")
    (tmp_path / "a.h5ad").write_text("cells")
    with pytest.raises(InputError, match=r"a.h5ad is no annotator: give the h5ad that"):
        sa.io.read_annotator(tmp_path / "a.h5ad")
    ad.AnnData(np.ones((2, 3))).write_h5ad(tmp_path / "cells.h5ad")
    with pytest.raises(
        InputError, match=r"cells.h5ad is an h5ad of another kind, not an annotator"
    ):
        sa.io.read_annotator(tmp_path / "cells.h5ad")
