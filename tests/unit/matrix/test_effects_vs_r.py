"""Effects beside edgeR 3.40 and limma 3.54: tables of R beside the real plates.

Deviations are tests, too: contrasts with weights, genes without control values, empty samples, F.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from scatlas.errors import InputError
from scatlas.matrix import effects as fx
from scatlas.matrix.effects_design import Design
from scatlas.matrix.effects_model import LinearModel, split_by_missing
from scatlas.matrix.effects_moderation import (
    _inverse_trigamma,
    f_pvalues,
    log_odds,
    lowess,
    n_discoveries,
    t_pvalues,
)
from scatlas.matrix.effects_scaling import LogScale, filter_by_expr, library_sizes, scale_libraries
from scatlas.matrix.rank_statistics import adjust_pvalues

CLOSE = 1e-9


def read(case: str, name: str) -> pd.DataFrame:
    folder = Path(os.environ.get("SCATLAS_TEST_DATA", ""), "../refs/limma").resolve()
    if "SCATLAS_TEST_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("there are no results of R: SCATLAS_TEST_DATA/../refs/limma")
    path = folder / case / f"{name}.tsv.gz"
    return pd.read_csv(path, sep="\t", index_col=0, float_precision="round_trip")


def scalar(case: str, name: str) -> float:
    return float(read(case, "scalars").loc[name, "value"])


def counts_of(case: str, name: str = "counts") -> np.ndarray:
    """[samples, genes]."""
    return np.ascontiguousarray(read(case, name).to_numpy(np.float64).T)


def assert_close(found, wanted, rtol: float = CLOSE) -> None:
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol)


def assert_same_p(found, wanted, rtol: float = 1e-8) -> None:
    """R keeps denormal numbers, SciPy none; both to 1e-8 of the logarithm."""
    found, wanted = (np.log(np.maximum(np.asarray(v, float), 1e-300)) for v in (found, wanted))
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol / 10)


class Given(NamedTuple):
    """Values and weights ``[genes, samples]`` that are not of counts."""

    e: np.ndarray
    weights: np.ndarray | None

    def of_design(self, design: Design, genes):
        w = np.ones((1, design.samples.size))
        if self.weights is not None:
            w = self.weights[genes][:, design.samples]
        return self.e[genes][:, design.samples], w

    def of_singles(self, samples, genes):
        e = self.e[genes][:, samples].T.copy()
        return e, 1.0 if self.weights is None else 1 / self.weights[genes][:, samples].T


def model_of(
    e: np.ndarray, conditions, blocks=None, weights=None, level=None, robust=False
) -> tuple[LinearModel, np.ndarray, np.ndarray]:
    """Model of values ``[genes, samples]``, condition 0 is the control; differences and t."""
    e = np.asarray(e, float)
    missing = np.isnan(e).T if weights is None else np.isnan(e).T | (weights == 0).T
    codes = np.asarray(conditions, np.intp)
    blocks = np.zeros(codes.size, np.intp) if blocks is None else np.asarray(blocks, np.intp)
    parts = split_by_missing(missing if missing.any() else None, len(e), codes, blocks, 0)

    return fitted(parts, Given(e, weights), level, codes.max(), robust)


def fitted(parts, values, level=None, n_conditions: int = 1, robust=False):
    model = LinearModel.fit(parts, values, np.arange(1, n_conditions + 1), level, robust=robust)
    change, t = np.full((2, model.moderation.s2.size, n_conditions), np.nan)
    for block in model.blocks():
        change[block.genes], t[block.genes] = block.log2_fold_change.T, block.t.T
    return model, change, t


def assert_fit(
    wanted: pd.DataFrame, fit, names, *, genes=slice(None), with_b: bool = True, rtol: float = CLOSE
) -> None:
    """Variances, differences, t, p, B and BH of the named coefficients."""
    model, change, t = fit
    m = model.moderation
    assert_close(np.sqrt(m.s2[genes]), np.where(m.df_residual > 0, wanted["sigma"], 0)[genes])
    for own, column in (
        (m.df_residual, "df_residual"),
        (m.s2_prior, "s2_prior"),
        (m.df_prior, "df_prior"),
        (m.s2_post, "s2_post"),
        (m.df_total, "df_total"),
    ):
        assert_close(own[genes], wanted[column].to_numpy()[genes], rtol)
    for j, name in enumerate(names):
        assert_close(change[genes, j], wanted[f"coef.{name}"].to_numpy()[genes])
        assert_close(t[genes, j], wanted[f"t.{name}"].to_numpy()[genes], rtol)
        p = t_pvalues(t[:, j], m.df_total)
        assert_same_p(p[genes], wanted[f"p.{name}"].to_numpy()[genes], 10 * rtol)
        if with_b:
            unscaled = change[:, j] / t[:, j] / np.sqrt(m.s2_post)
            found = log_odds(t[:, j], unscaled, m.df_total, m)
            assert_close(found[genes], wanted[f"B.{name}"].to_numpy()[genes], 1e-8)
            known = ~np.isnan(p)
            adjusted = adjust_pvalues(p[known], "benjamini-hochberg")
            assert_same_p(adjusted, wanted[f"adj_p.{name}"].to_numpy()[known])
            for fdr in (0.05, 0.2):
                n = n_discoveries(t[:, j : j + 1].T, m.df_total, fdr)[0]
                assert n == (wanted[f"adj_p.{name}"] <= fdr).sum()


def fit_case(case: str, control: str, group: str, **options) -> fx.Effects:
    """The whole way from counts, with the groups and blocks of the samples of R."""
    samples = read(case, "samples")
    table = pd.DataFrame({"condition": pd.Categorical(samples[group])}, index=samples.index)
    if "plate" in samples:
        table["block"] = samples["plate"]
    return fx.fit_effects(
        counts_of(case), table, read(case, "counts").index, control=control, **options
    )


def results(fit: fx.Effects) -> tuple[LinearModel, np.ndarray, np.ndarray]:
    change, t = fit.to_memory(dtype=np.float64)
    return fit.model, change.T, t.T


@pytest.mark.parametrize("method", ["voom", "trend"])
def test_plain_from_counts_to_log_odds(method):
    fit = fit_case("plain", "a", "group", method=method)
    wanted = read("plain", method)
    assert list(fit.genes.index) == list(wanted.index)
    assert_close(fit.samples["scaling_factor"], read("plain", "samples")["TMM"])
    assert_fit(wanted, results(fit), ["b"])
    assert_close(fit.genes["mean_expression"], wanted["AveExpr"])


def test_unequal_groups_with_plates_from_counts():
    """R's contrasts with weights are those of `voom_reparametrised`, fitted again."""
    case = "unequal_blocks_contrasts"
    fit = fit_case(case, "ctrl", "group")
    assert_fit(read(case, "voom_reparametrised"), results(fit), ["x_ctrl", "y_ctrl"])
    _, _, t = results(fit)
    of_r = read(case, "voom_contrasts")["t.x_ctrl"]
    assert 1e-3 < np.abs(t[:, 0] / of_r - 1).max() < 0.12


def test_contrasts_with_equal_weights_and_f():
    case = "unequal_blocks_contrasts"
    fit = fit_case(case, "ctrl", "group", method="trend")
    wanted = read(case, "trend_contrasts")
    assert_fit(wanted, results(fit), ["x_ctrl"])
    f, p = fit.model.f_statistics()  # two contrasts span three groups
    assert_close(f, wanted["F"])
    # R lets F have more degrees of freedom than all residuals together
    m = fit.model.moderation
    assert_same_p(p, f_pvalues(f, 2, m.df_total))
    assert_same_p(f_pvalues(f, 2, m.df_prior + m.df_residual), wanted["F_p"])


def test_moderation_caps_f_as_it_caps_t():
    design = read("moderation", "design")
    e = read("moderation", "expression_infinite").to_numpy()
    model, _, t = model_of(e, design["b"])
    f, p = model.f_statistics()
    assert np.isinf(model.moderation.df_prior).all()
    assert_close(f, t[:, 0] ** 2)
    assert_same_p(p, t_pvalues(t[:, 0], model.moderation.df_total))


@pytest.mark.parametrize(
    ("name", "rows", "trend"),
    [
        ("heavy", slice(None), False),
        ("heavy_trend", slice(None), True),
        ("zero_variance", slice(None), False),
        ("zero_variance_trend", slice(None), True),
        ("infinite", slice(None), False),
        ("infinite_trend", slice(None), True),
        ("eight_genes", slice(32, 40), False),
        ("eight_genes_trend", slice(32, 40), True),
        ("one_gene", slice(32, 33), False),
        ("heavy_robust", slice(None), False),
        ("heavy_trend_robust", slice(None), True),
        ("zero_variance_robust", slice(None), False),
        ("infinite_robust", slice(None), False),
    ],
)
def test_moderation_at_its_edges(name, rows, trend):
    e = read("moderation", "expression_infinite" if "infinite" in name else "expression")
    if "zero" in name:
        constant = read("moderation", "expression_zero_variance_rows")
        e.loc[constant.index] = constant
    e = e.to_numpy()[rows]
    options = {"level": e.mean(axis=1) if trend else None, "robust": "robust" in name}
    fit = model_of(e, read("moderation", "design")["b"], **options)
    wanted = read("moderation", name)
    # Residuals of constant genes are rounding alone, in R as here.
    sound = np.flatnonzero(wanted["sigma"] > 1e-10)
    assert_fit(wanted, fit, ["b"], genes=sound, with_b="zero" not in name)


def groups_of(case: str) -> np.ndarray:
    design = read(case, "design")
    return (design["b"] + 2 * design["c"]).to_numpy(int)


# Genes whose controls have no value: R answers with another contrast under the same name.
NO_CONTROL = "g0105"


@pytest.mark.parametrize(
    ("name", "weighted"),
    [
        ("missing", False),
        ("missing_robust", False),
        ("weights_zero", True),
        ("missing_weighted", True),
    ],
)
def test_missing_values_and_weights_of_zero(name, weighted):
    case = "missing_and_weights"
    wanted = read(case, name)
    e = read(case, "expression_whole" if name == "weights_zero" else "expression").loc[wanted.index]
    weights = read(case, "weights").to_numpy() if weighted else None
    robust = name == "missing_robust"
    fit = model_of(e.to_numpy(), groups_of(case), weights=weights, robust=robust)
    other = wanted.index != NO_CONTROL
    own, rtol = np.flatnonzero(other), 1e-8 if robust else CLOSE  # of R's search for a root
    assert_fit(wanted, fit, ["b", "c"], genes=own, with_b=False, rtol=rtol)
    _, change, t = fit
    assert np.isnan(change[~other]).all()
    assert np.isnan(t[~other]).all()
    assert np.isfinite(wanted.loc[NO_CONTROL, "coef.b"])


def test_missing_values_with_a_trend():
    case = "missing_and_weights"
    e, wanted = read(case, "expression"), read(case, "missing_trend")
    e = e.loc[wanted.index].to_numpy()
    fit = model_of(e, groups_of(case), level=np.nanmean(e, axis=1))
    other = np.flatnonzero(wanted.index != NO_CONTROL)
    assert_fit(wanted, fit, ["b", "c"], genes=other, with_b=False)


def test_weights_of_samples():
    case = "missing_and_weights"
    e = read(case, "expression_whole").to_numpy()
    weights = np.tile(np.arange(1.0, 15), (len(e), 1))
    assert_fit(
        read(case, "array_weights"), model_of(e, groups_of(case), weights=weights), ["b", "c"]
    )


@pytest.mark.parametrize("method", ["voom", "trend"])
def test_screen_of_300_conditions_once(method):
    kept = read("screen", "filter")["by_group"]
    fit = fit_case("screen", "control", "condition", method=method)
    assert list(fit.genes.index) == list(kept.index[kept])
    # R went on with all genes
    fit = fit_case("screen", "control", "condition", method=method, min_count=0, min_total_count=0)
    model, change, t = results(fit)
    assert_close(fit.samples["scaling_factor"], read("screen", "samples")["TMM"])
    genes = read("screen", f"{method}_genes")
    for name, column in (
        ("s2_post", "s2_post"),
        ("df_residual", "df_residual"),
        ("df", "df_total"),
    ):
        assert_close(fit.genes[name], genes[column])
    assert list(fit.conditions.index) == list(read("screen", f"{method}_t").columns)
    assert_close(change, read("screen", f"{method}_coef"))
    assert_close(t, read("screen", f"{method}_t"))
    assert_same_p(t_pvalues(t, model.moderation.df_total[:, None]), read("screen", f"{method}_p"))
    assert (fit.conditions["n_replicates"] == 1).all()
    assert (fit.conditions["n_controls"] == 12).all()
    if method == "trend":
        n = n_discoveries(t.T, model.moderation.df_total)
        assert n.tolist() == read("screen", "trend_n_significant")["separate"].to_list()


def test_few_samples():
    """Two against one rest on one degree of freedom; one against one is refused."""
    e, lib = counts_of("few_samples"), read("few_samples", "samples")
    codes, every = np.array([0, 1, 0]), np.arange(e.shape[1])
    libraries = scale_libraries(e, every, "tmm")
    assert_close(libraries.factors, lib["TMM"])
    assert_close(scale_libraries(e[:2], every, "tmm").factors, lib["TMM_of_two"][:2])
    parts = split_by_missing(None, every.size, codes, np.zeros(3, np.intp), 0)
    points = read("few_samples", "three_voom_trend_points")  # without genes of no count
    line = lowess(points["x"].to_numpy(), points["y"].to_numpy())
    equal = fx.EqualWeights.fit(e, every, parts, LogScale.of_voom(libraries.effective))
    fit = fitted(parts, fx.VoomWeights(equal, line))
    assert_fit(read("few_samples", "three_voom"), fit, ["b"])
    equal = fx.EqualWeights.fit(e, every, parts, LogScale.of_cpm(libraries.effective))
    fit = fitted(parts, equal, equal.mean)
    assert_fit(read("few_samples", "three_trend"), fit, ["b"])
    with pytest.raises(InputError, match="no condition has two pseudobulks"):
        model_of(np.ones((3, 2)), codes[:2])


def test_many_samples():
    e, samples = counts_of("many_samples"), read("many_samples", "samples")
    every = np.arange(e.shape[1])
    libraries = scale_libraries(e, every, "tmm")
    assert_close(libraries.factors, samples["TMM"])
    wanted = read("many_samples", "filter")
    for name, smallest in (("by_group", 60), ("by_design", 60)):
        assert (filter_by_expr(e, libraries.effective, smallest) == wanted[name]).all()
    assert (filter_by_expr(e, library_sizes(e), 500) == wanted["no_group"]).all()
    codes = (samples["group"] == "b").to_numpy(np.intp)
    parts = split_by_missing(None, every.size, codes, np.zeros(500, np.intp), 0)
    equal = fx.EqualWeights.fit(e, every, parts, LogScale.of_voom(libraries.effective))
    fit = fitted(parts, fx.VoomWeights.fit(equal, parts))
    assert_fit(read("many_samples", "voom"), fit, ["b"])
    # R searches the robust df_prior to 1e-8 of df / (1 + df), here 1e-8 * 45.
    equal = fx.EqualWeights.fit(e, every, parts, LogScale.of_cpm(libraries.effective))
    fit = fitted(parts, equal, equal.mean, robust=True)
    assert_fit(read("many_samples", "trend_robust"), fit, ["b"], with_b=False, rtol=5e-7)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ("counts", "factors"),
        ("counts_sparse", "factors_sparse"),
        ("counts_tied", "factors_tied"),
        ("counts_disjoint", "factors_disjoint"),
    ],
)
def test_scaling_with_zeros_and_ties(counts, wanted):
    e, of_r = counts_of("tmm_zeros_and_ties", counts), read("tmm_zeros_and_ties", wanted)
    every = np.arange(e.shape[1])
    assert_close(scale_libraries(e, every, "tmm").factors, of_r["TMM"])
    if np.isfinite(of_r["upperquartile"]).all():
        assert_close(scale_libraries(e, every, "upper_quartile").factors, of_r["upperquartile"])
    else:
        with pytest.raises(InputError, match="upper quartile is zero"):
            scale_libraries(e, every, "upper_quartile")


def test_an_empty_sample_is_left_out_by_name():
    """In R it stops TMM, and voom gives its genes the highest values of all."""
    assert scalar("tmm_zeros_and_ties", "empty_sample.voom.E") > 18
    e = counts_of("tmm_zeros_and_ties")
    e = np.vstack([e, np.zeros(e.shape[1])])
    names = [f"s{i}" for i in range(8)] + ["empty"]
    samples = pd.DataFrame({"condition": pd.Categorical([*"aaaabbbbb"])}, index=names)
    fit = fx.fit_effects(e, samples, pd.RangeIndex(e.shape[1]).astype(str), control="a")
    assert fit.left_out.to_numpy().tolist() == [["b", "empty", "it has no counts"]]
    assert "empty" not in fit.samples.index
    assert fit.conditions.loc["b", "n_replicates"] == 4


def test_conditions_that_cannot_be_estimated_are_named():
    """R gives x less y under the name of x where the plate is a part of the drug."""
    samples = read("not_estimable", "design")
    drug = np.where(samples["x"] == 1, "x", np.where(samples["y"] == 1, "y", "dmso"))
    table = pd.DataFrame({"condition": pd.Categorical(drug), "block": samples["p2"].astype(int)})
    e, genes = counts_of("not_estimable"), read("not_estimable", "counts").index
    with pytest.raises(InputError, match="no condition has a pseudobulk in a block with"):
        fx.fit_effects(e, table, genes, control="dmso")
    assert read("not_estimable", "voom")["coef.x"].notna().any()
    # One control on the other plate, and both are compared.
    table.loc[table.index[0], "block"] = 1
    fit = fx.fit_effects(e, table, genes, control="dmso")
    assert list(fit.conditions.index) == ["x", "y"]
    assert list(fit.conditions["n_controls"]) == [1, 1]


def test_trends_and_weights_of_voom():
    for case, control, group in (
        ("plain", "a", "group"),
        ("unequal_blocks_contrasts", "ctrl", "group"),
    ):
        wanted = read(case, "voom_trend_line")
        fit = fit_case(case, control, group)
        design = fit.model.parts[0].design
        _, w = fit.model.values.of_design(design, np.arange(len(fit.genes)))
        back = np.argsort(design.samples)
        assert_close(w[:, back], read(case, "voom_weights"))
        points = read(case, "voom_trend_points")
        line = lowess(points["x"].to_numpy(), points["y"].to_numpy())
        assert_close(line(wanted["x"].to_numpy()), wanted["y"])


def test_logarithms_of_counts_per_million():
    samples, kept = read("plain", "samples"), read("plain", "filter")["keep"].to_numpy()
    e = counts_of("plain")
    scale = LogScale.of_cpm((samples["lib_size"] * samples["TMM"]).to_numpy())
    assert_close(scale.logs(e[:, kept], np.arange(40)).T, read("plain", "logcpm"))
    with_all = filter_by_expr(e, library_sizes(e), 40)
    assert (with_all == read("plain", "filter")["keep_alone"]).all()


def test_p_values_at_the_edges():
    edge = read("p_values", "t_to_p")
    edge = edge[np.isfinite(edge["df"]) & (edge["t"] != 1e-8)]
    assert_same_p(t_pvalues(edge["t"].to_numpy(), edge["df"].to_numpy()), edge["p"])
    table = read("p_values", "adjust").dropna()
    assert_close(adjust_pvalues(table["p"].to_numpy(), "benjamini-hochberg"), table["BH"], 1e-14)
    for x in (1e-8, 1e-3, 1.0, 50.0, 1e8):
        from scipy.special import polygamma

        assert polygamma(1, _inverse_trigamma(x)) == pytest.approx(x, rel=1e-6)
