"""rank_genes_groups: passes and memory, moments, tables, groups, errors.

tests/parity compares it with scanpy; kernels and logistic regression have other files.
"""

from __future__ import annotations

import logging
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas.compute import memory
from scatlas.errors import InputError, TooLargeError
from scatlas.kernels.moments.group_sums_cpu import SumKinds
from scatlas.tl import _rank_groups, _rank_sums

TESTS = ("t-test", "t-test_overestim_var", "wilcoxon")
COLUMNS = ("scores", "pvals", "pvals_adj", "logfoldchanges")
KEY = "rank_genes_groups"
LOGREG = {"method": "logreg"}


def logged(counts: Any, dtype: Any = np.float64) -> np.ndarray:
    """Log-normalised values with many ties."""
    return np.log1p(counts.toarray() if sparse.issparse(counts) else counts).astype(dtype)


def table(adata: ad.AnnData, group: str, key: str = KEY) -> pd.DataFrame:
    """Result of a group, in the order of var."""
    found = adata.uns[key]
    columns = {name: found[name][group] for name in COLUMNS if name in found}
    return pd.DataFrame(columns, index=found["names"][group]).reindex(adata.var_names)


def bits(adata: ad.AnnData, key: str = KEY) -> list[Any]:
    found = adata.uns[key]
    names = [name for name in COLUMNS if name in found]
    return [found["names"].tolist(), *(found[name].tobytes() for name in names)]


def ranked(adata: ad.AnnData, method: str = "t-test", **options: Any) -> ad.AnnData:
    return sa.tl.rank_genes_groups(adata, "batch", method=method, copy=True, **options)


# --- every kind of X --------------------------------------------------------------------------


# --- passes and memory ------------------------------------------------------------------------


@pytest.mark.parametrize("reference", ["rest", "b1"])
def test_wilcoxon_in_several_passes(
    reference, dask_type, counts, make_adata, block_loads, monkeypatch, caplog
):
    x = logged(counts, np.float32)
    expected = bits(ranked(make_adata(x), "wilcoxon", tie_correct=True, reference=reference))
    caplog.set_level(logging.INFO, "scatlas")
    for budget, passes in ((10**6, 1), (6 * 400, None), (1, 50)):
        block_loads.reset()
        caplog.clear()
        monkeypatch.setattr(_rank_sums, "memory_budget", lambda x, budget=budget: budget)
        adata = make_adata(dask_type(x))
        found = ranked(adata, "wilcoxon", tie_correct=True, reference=reference)
        assert bits(found) == expected
        n = block_loads.per_block()[-1] - 1
        assert n == passes if passes else 1 < n < 50
        assert f"{n + 1} passes over X" in caplog.text
        block_loads.assert_unchanged()


def test_less_at_a_time_where_there_is_no_memory(counts, make_adata, monkeypatch, caplog):
    from scatlas.kernels.ranking import rank_sums_cpu

    adata = make_adata(logged(counts))
    expected = bits(ranked(adata, "wilcoxon"))
    whole = rank_sums_cpu.NonzerosByGene

    def small(counts: np.ndarray, *args: Any) -> Any:
        if counts.sum() > 200:
            raise MemoryError
        return whole(counts, *args)

    monkeypatch.setattr(rank_sums_cpu, "NonzerosByGene", small)
    assert bits(ranked(adata, "wilcoxon")) == expected
    assert "half" in caplog.text
    monkeypatch.setattr(rank_sums_cpu, "NonzerosByGene", lambda *args: small(np.array([201])))
    with pytest.raises(TooLargeError, match="values of one gene take"):
        ranked(adata, "wilcoxon")


def test_what_does_not_fit_is_refused(counts, make_adata, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1000)
    monkeypatch.setattr("scatlas.matrix.group_sums.available_memory", lambda: 1000)
    with pytest.raises(TooLargeError, match="the result of the ranked genes is 3 x 50 values"):
        ranked(make_adata(logged(counts)))


# --- moments ----------------------------------------------------------------------------------


def test_a_gene_that_is_constant_in_the_rest_has_no_variance_there(make_adata):
    """Though the group's own sums are a hundred million times larger."""
    rng = np.random.default_rng(0)
    x = np.full((60, 2), 0.1)
    x[::3] = rng.normal(size=(20, 2)) * 1e7
    adata = make_adata(x)
    for group, codes in enumerate(([0, 1, 2] * 20, [2, 1, 0] * 20)):
        adata.obs["batch"] = pd.Categorical.from_codes(codes, ["b0", "b1", "b2"])
        groups = _rank_groups.parse_groups(adata.obs, "batch", "all", "rest")
        wanted = SumKinds(sums=True, squares=True, nonzero=False)
        found = _rank_groups.moments(x, groups, adata.var_names, None, wanted)
        of = 0 if group == 0 else 2
        np.testing.assert_array_equal(found.var_other[of], 0)
        np.testing.assert_allclose(found.mean_other[of], 0.1, rtol=1e-15)
        assert (found.var_other[1] > 1).all()


def test_a_rest_of_one_cell_has_no_variance():
    obs = pd.DataFrame({"g": ["a", "a", "a", None]}, index=list("wxyz"))
    x = np.array([[1.0], [2.0], [4.0], [8.0]])
    adata = ad.AnnData(X=x, obs=obs)
    sa.tl.rank_genes_groups(adata, "g")
    expected = (7 / 3 - 8) / np.sqrt(7 / 3 / 3)
    np.testing.assert_allclose(adata.uns[KEY]["scores"]["a"], expected, rtol=1e-7)


def test_constant_genes(make_adata):
    """Of one value in all cells, and of another one in a group."""
    x = np.ones((60, 3))
    x[::3, 1] = 2
    x[:, 2] = np.arange(60)
    for method in TESTS:
        found = table(ranked(make_adata(x), method, tie_correct=True), "b0")
        assert found["scores"].tolist()[0] == 0
        assert found["pvals"].tolist()[0] == 1
        assert found["logfoldchanges"].tolist()[0] == 0
        marks = found["scores"].tolist()[1]
        assert np.isinf(marks) if method != "wilcoxon" else 7 < marks < 8


# --- tables -----------------------------------------------------------------------------------


def test_what_is_written(counts, make_adata):
    adata = make_adata(logged(counts, np.float32))
    assert ranked(adata).n_obs == 60
    assert KEY not in adata.uns
    assert sa.tl.rank_genes_groups(adata, "batch", pts=True, n_genes=7, key_added="k") is None
    found = adata.uns["k"]
    assert list(found) == ["params", "pts", "pts_rest", "names", *COLUMNS]
    assert found["params"] == {
        "groupby": "batch",
        "reference": "rest",
        "method": "t-test",
        "use_raw": False,
        "layer": None,
        "corr_method": "benjamini-hochberg",
    }
    kinds = {"names": "O", "scores": "f4", "pvals": "f8", "pvals_adj": "f8", "logfoldchanges": "f4"}
    for name, kind in kinds.items():
        assert isinstance(found[name], np.recarray)
        assert found[name].dtype == [(f"b{i}", kind) for i in range(3)]
        assert found[name].shape == (7,)
    assert found["pts"].index.equals(adata.var_names)
    assert "pts_rest" not in ranked(adata, pts=True, reference="b0").uns[KEY]


def test_it_is_stored_and_read_again(tmp_path, counts, make_adata):
    adata = ranked(make_adata(logged(counts)), pts=True)
    adata.write_h5ad(tmp_path / "a.h5ad")
    assert bits(ad.read_h5ad(tmp_path / "a.h5ad")) == bits(adata)


def test_genes_by_score_and_equal_ones_in_their_order(make_adata):
    x = np.random.default_rng(0).integers(0, 3, (60, 40)).astype(float)
    x[:, 20:] = x[:, :20]
    x[:, [5, 25]] = 0
    adata = make_adata(x, mt=0)
    for method in TESTS:
        for by_size in (False, True):
            found = ranked(adata, method, rankby_abs=by_size).uns[KEY]
            cut = ranked(adata, method, rankby_abs=by_size, n_genes=9).uns[KEY]
            for group in ("b0", "b1", "b2"):
                assert cut["names"][group].tolist() == found["names"][group][:9].tolist()
                scores = found["scores"][group].astype(float)
                assert (scores < 0).any()
                key = -np.abs(scores) if by_size else -scores
                places = [int(name.removeprefix("gene")) for name in found["names"][group]]
                assert (np.diff(key) >= 0).all()
                assert (np.diff(places)[np.diff(key) == 0] > 0).all()
    assert len(ranked(adata, n_genes=999).uns[KEY]["names"]) == 40


def test_the_base_of_the_logarithm(counts, make_adata):
    x = logged(counts)
    natural, binary = (make_adata(x / np.log(base)) for base in (np.e, 2))
    natural.uns["log1p"], binary.uns["log1p"] = {"base": None}, {"base": 2}
    for group in ("b0", "b1"):
        got, expected = (table(ranked(made), group)["logfoldchanges"] for made in (binary, natural))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


# --- which genes and which values -------------------------------------------------------------


@pytest.mark.parametrize("method", [*TESTS, "logreg"])
def test_masked_genes(method, array_type, counts, make_adata):
    x = logged(counts)
    mask = np.arange(50) % 3 > 0
    few = ranked(make_adata(x[:, mask]), method)
    adata = make_adata(array_type(x))
    adata.var["some"] = mask
    renamed = dict(zip(few.var_names, adata.var_names[mask], strict=True))
    for option in (mask, "some", adata.var["some"][::-1]):
        found = ranked(adata, method, mask_var=option).uns[KEY]
        for group in found["names"].dtype.names:
            names = [renamed[name] for name in few.uns[KEY]["names"][group]]
            assert found["names"][group].tolist() == names
        assert found["scores"].tobytes() == few.uns[KEY]["scores"].tobytes()


def test_layers_and_raw(counts, make_adata):
    x = logged(counts)
    expected = bits(ranked(make_adata(x)))
    adata = make_adata(np.zeros((60, 50)))
    adata.layers["logged"] = x
    assert bits(ranked(adata, layer="logged")) == expected
    adata.raw = make_adata(x)
    assert bits(ranked(adata)) == expected
    assert ranked(adata).uns[KEY]["params"]["use_raw"] is True
    assert bits(ranked(adata, use_raw=False, layer="logged")) == expected
    with pytest.raises(InputError, match="choose one of"):
        ranked(adata, layer="logged")
    small = ad.AnnData(X=x[:, :3], obs=adata.obs)
    small.raw = adata.raw.to_adata()
    assert bits(ranked(small)) == expected


def test_a_mask_is_of_the_genes_of_raw_by_name(counts, make_adata):
    adata = make_adata(logged(counts))
    adata.raw = adata
    order = np.random.default_rng(0).permutation(50)
    other = adata[:, order].copy()
    other.var["some"] = np.arange(50) < 9
    kept = adata[:, np.sort(order[:9])].copy()
    expected = bits(ranked(kept, use_raw=False))
    for option in ("some", other.var["some"]):
        assert bits(ranked(other, mask_var=option)) == expected
    with pytest.raises(InputError, match="another order or other names"):
        ranked(other, mask_var=other.var["some"].to_numpy())


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TESTS)
def test_cells_without_a_value_belong_to_the_rest(method, counts, make_adata):
    x = logged(counts)
    adata = make_adata(x)
    adata.obs.loc[adata.obs_names[::5], "batch"] = np.nan
    named = adata.copy()
    named.obs["batch"] = named.obs["batch"].cat.add_categories("none").fillna("none")
    got = ranked(adata, method, pts=True)
    expected = ranked(named, method, groups=["b0", "b1", "b2"], pts=True)
    assert bits(got) == bits(expected)
    for key in ("pts", "pts_rest"):
        pd.testing.assert_frame_equal(got.uns[KEY][key], expected.uns[KEY][key])
    known = named[named.obs["batch"] != "none"].copy()
    got, expected = (ranked(made, method, reference="b1") for made in (adata, known))
    assert bits(got) == bits(expected)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["g10", "g2", "g1"], ("g1", "g2", "g10")),
        ([10, 2, 1], ("1", "2", "10")),
        ([True, False, True], ("False", "True")),
        ([0.5, 2.0, 1.5], ("0.5", "1.5", "2.0")),
    ],
)
def test_values_that_are_no_categories(values, names, counts, make_adata):
    adata = make_adata(logged(counts))
    adata.obs["batch"] = np.array(values * 20)
    before = adata.obs.copy()
    found = ranked(adata)
    assert found.uns[KEY]["names"].dtype.names == names
    pd.testing.assert_frame_equal(found.obs, before)
    for name in names:
        value = next(value for value in values if str(value) == name)
        assert bits(ranked(adata, groups=[value])) == bits(ranked(adata, groups=[name]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groupby": "nope"}, "no column 'nope'"),
        ({"groups": ["b0", "b7"]}, "has no group 'b7'"),
        ({"groups": "b0"}, "must be 'all' or a list"),
        ({"groups": ["b0", "b0"]}, "names 'b0' twice"),
        ({"groups": []}, "leave no group to compare"),
        ({"groups": ["b0"], "reference": "b0"}, "leave no group to compare with 'b0'"),
        ({"reference": "b9"}, "has no group 'b9'"),
        ({"groupby": "few"}, r"fewer of 'y', 'z': leave such groups out"),
        ({"groupby": "one"}, "there is no rest"),
        ({"groupby": "twice"}, "both written '1'"),
        ({"method": "anova"}, "method='anova' is unknown: use t-test, "),
        ({"corr_method": "holm"}, "corr_method='holm' is unknown"),
        ({"n_genes": 0}, "n_genes=0 is not possible"),
        ({"C": 2.0}, "'C' is no option of method='t-test'"),
        ({"layer": "nope"}, "layers has no 'nope'"),
        ({"use_raw": True}, "raw is empty"),
        ({"mask_var": "nope"}, "var has no column 'nope'"),
        ({"mask_var": np.ones(3, dtype=bool)}, "but is bool of shape"),
        ({"mask_var": np.ones(50)}, "each of the 50 genes"),
        ({"mask_var": np.zeros(50, dtype=bool)}, "leaves no gene"),
        (LOGREG | {"groups": ["b0"]}, "two groups or more, not 'b0' alone"),
        (LOGREG | {"C": 0}, "C=0 must be above 0"),
        (LOGREG | {"tol": -1.0}, "tol=-1.0 must be above 0"),
        (LOGREG | {"max_iter": 0}, "max_iter=0 must be above 0"),
        (LOGREG | {"class_weight": {"b0": 2}}, "class_weight="),
        (LOGREG | {"penalty": "l1"}, "penalty='l1'"),
        (LOGREG | {"solver": "saga"}, "method='logreg' has no solver='saga'"),
        (LOGREG | {"n_jobs": 4}, "method='logreg' has no n_jobs=4"),
    ],
)
def test_errors(options, message, counts, make_adata):
    adata = make_adata(logged(counts))
    adata.obs["few"] = pd.Categorical(["x"] * 59 + ["y"], categories=["x", "y", "z"])
    adata.obs["one"] = "x"
    adata.obs["twice"] = pd.Categorical([1, "1"] * 30)
    with pytest.raises(InputError, match=message):
        sa.tl.rank_genes_groups(adata, **{"groupby": "batch", **options})
    assert KEY not in adata.uns


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
@pytest.mark.parametrize("method", [*TESTS, "logreg"])
def test_values_that_are_not_finite(method, value, array_type, counts, make_adata):
    x = logged(counts)
    x[13, 30] = value
    adata = make_adata(array_type(x))
    if value == 1e200 and method in ("wilcoxon", "logreg"):
        return
    with pytest.raises(InputError, match="gene 'gene30' has NaN or infinite values"):
        ranked(adata, method)


def test_values_that_are_no_numbers(make_adata):
    with pytest.raises(InputError, match="type complex128"):
        ranked(make_adata(np.zeros((60, 4), dtype=complex)))


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_counts_are_noticed(dtype, counts, make_adata, caplog):
    for method in ("t-test", "wilcoxon"):
        caplog.clear()
        ranked(make_adata(counts.astype(dtype)), method)
        assert "X seems to hold counts" in caplog.text
        caplog.clear()
        ranked(make_adata(logged(counts)), method)
        ranked(make_adata(-counts.astype(np.float32)), method)
        assert caplog.text == ""


def test_too_many_cells_to_rank(counts, make_adata, monkeypatch):
    monkeypatch.setattr(_rank_sums, "MAX_CELLS", 60)
    with pytest.raises(InputError, match="60 cells are too many to rank"):
        ranked(make_adata(logged(counts)), "wilcoxon")
