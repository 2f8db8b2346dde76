"""Linear models of conditions and blocks beside dense least squares, their bits, and whether their
p-values are honest: control against control.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.matrix import effects as fx
from scatlas.matrix import effects_model
from scatlas.matrix.effects_design import Design
from scatlas.matrix.effects_moderation import n_discoveries, t_pvalues
from scatlas.matrix.rank_statistics import adjust_pvalues


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(8, 7), (3, 12), (12, 3)])
def test_a_fit_is_that_of_dense_least_squares(shape, weighted):
    """Either side of the table of conditions and blocks is eliminated, with gaps in it."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        n, (n_conditions, n_blocks) = rng.integers(3, 30), rng.integers(1, shape, 2)
        codes, blocks = rng.integers(0, n_conditions, n), rng.integers(0, n_blocks, n)
        e = rng.normal(size=(3, n))
        w = rng.gamma(2, 1, (3, n)) if weighted else np.ones((1, n))
        design = Design.build(np.arange(n), codes, blocks, 0)
        at = design.samples
        solution = design.solve(e[:, at], w[:, at])
        levels = design.levels(solution)
        found = design.contrasts(solution, *levels, compared := design.compared())
        squares = design.residual_sum(e[:, at], w[:, at], solution)
        explained, explained_df = design.explained(solution)
        x = np.c_[np.eye(n_conditions)[codes], np.eye(n_blocks)[blocks]]
        assert design.rank == np.linalg.matrix_rank(x)
        contrasts = np.eye(n_conditions, x.shape[1])[compared]
        contrasts[:, 0] -= 1
        for g in range(3):
            own = w[g % len(w)]
            inverse = np.linalg.pinv(x.T * own @ x, rcond=1e-12)
            beta = inverse @ (x.T @ (own * e[g]))
            np.testing.assert_allclose(found[0][g], contrasts @ beta, atol=1e-11)
            variance = ((contrasts @ inverse) * contrasts).sum(axis=1)
            np.testing.assert_allclose(found[1][g % len(w)], variance, rtol=1e-10)
            residual = (own * (e[g] - x @ beta) ** 2).sum()
            assert squares[g] == pytest.approx(residual, abs=1e-11)
            means = np.bincount(blocks, own * e[g]) / np.maximum(np.bincount(blocks, own), 1e-9)
            alone = (own * (e[g] - means[blocks]) ** 2).sum()
            assert explained[g] == pytest.approx(alone - residual, abs=1e-11)
        assert explained_df == design.rank - np.unique(blocks).size


def test_conditions_are_compared_where_a_block_has_both():
    codes, blocks = np.array([0, 0, 1, 2, 2, 3, 4]), np.array([0, 1, 0, 1, 2, 2, 3])
    # 3 is linked to the control by condition 2 alone, 4 by nothing.
    assert Design.build(np.arange(7), codes, blocks, 0).compared().tolist() == [1, 2]


def draw(rng, conditions, blocks, *, changed=0, spread=0.6, n_genes=400, levels=3.5):
    """Counts of pseudobulks with effects of plates; each condition but ctrl changes some genes."""
    n = len(conditions)
    mean, disp = np.exp(rng.normal(levels, 1.5, n_genes)), 0.5 / rng.chisquare(10, n_genes)
    mu = mean * np.exp(rng.normal(0, 0.5, (max(blocks) + 1, n_genes)))[blocks]
    truth = {}
    for condition in sorted({*conditions} - {"ctrl"}):
        truth[condition] = rng.permutation(n_genes) < changed
        fold = np.where(rng.random(n_genes) < 0.5, 4.0, 0.25)
        mu[conditions == condition] *= np.where(truth[condition], fold, 1.0)
    library = np.exp(rng.normal(0, spread, n)) * mean.sum()
    mu *= (library / mu.sum(axis=1))[:, None]
    return rng.poisson(mu * rng.gamma(1 / disp, disp, (n, n_genes))), truth


def fit(counts, conditions, blocks=None, **options) -> fx.Effects:
    samples = pd.DataFrame({"condition": pd.Categorical(conditions)})
    if blocks is not None:
        samples["block"] = blocks
    genes = pd.Index([f"g{i}" for i in range(counts.shape[1])])
    return fx.fit_effects(counts, samples, genes, control="ctrl", **options)


SCREEN = np.array(["ctrl"] * 3 + ["a", "b", "c"] + ["ctrl"] * 3 + ["a", "e", "f"])
PLATES = np.repeat([0, 1], 6)


@pytest.mark.parametrize("method", ["voom", "trend"])
@pytest.mark.parametrize("missing", [False, True])
def test_no_bit_depends_on_blocks_of_genes_or_threads(method, missing, monkeypatch):
    counts, _ = draw(np.random.default_rng(1), SCREEN, PLATES, n_genes=60)
    if missing:
        counts = counts.astype(float)
        counts[PLATES == 1, 7:20] = np.nan
        counts[3, 11:15] = np.nan
    wanted = None
    for size, threads in ((2**20, 1), (1, 2), (90, 2), (300, 1)):
        monkeypatch.setattr(effects_model, "BLOCK_VALUES", size)
        for module in (fx, effects_model):
            monkeypatch.setattr(module, "ROWS_AT_ONCE", 1 + size % 7)
        with use_threads(threads):
            found = fit(counts, SCREEN, PLATES, method=method, robust=missing)
            arrays = [*found.to_memory(dtype=np.float64), found.genes.to_numpy()]
            arrays += [*found.model.f_statistics()]
        wanted = arrays if wanted is None else wanted
        for own, other in zip(arrays, wanted, strict=True):
            np.testing.assert_array_equal(own, other)


def test_results_by_conditions_are_those_by_genes(tmp_path, monkeypatch):
    counts, _ = draw(np.random.default_rng(8), SCREEN, PLATES, n_genes=60)
    counts = counts.astype(float)
    counts[PLATES == 1, 7:20] = np.nan
    monkeypatch.setattr(effects_model, "BLOCK_VALUES", 90)
    found = fit(counts, SCREEN, PLATES)
    change, t = found.to_memory()
    for n in (1, 2, 100):
        passed = 0
        for rows, *own in found.by_rows(tmp_path, n):
            assert (rows.start, rows.stop) == (passed, passed := min(passed + n, len(t)))
            np.testing.assert_array_equal(own, [change[rows], t[rows]])
        assert passed == len(t)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("n_plates", [1, 2])
def test_robust_priors_are_not_changed_by_a_few_wild_genes(n_plates):
    """Their own variances are believed, the df of the others are as without them."""
    conditions, plates = SCREEN, PLATES * (n_plates - 1)
    counts, _ = draw(np.random.default_rng(9), conditions, plates, spread=0.1, levels=7)
    wild = counts.copy()
    wild[:, :8] = wild[:, :8] * np.exp(np.random.default_rng(0).normal(0, 2, (12, 8)))
    calm = fit(counts[:, 8:], conditions, plates, robust=True)
    plain, robust = (fit(wild, conditions, plates, robust=r) for r in (False, True))
    df, s2 = (robust.genes[name].to_numpy() for name in ("df", "s2"))
    most = calm.genes["df"].max()
    assert abs(df[8:].max() / most - 1) < 0.2
    assert plain.genes["df"].max() < 0.7 * most
    assert (df[:8] < df[8:].max() / 2).mean() > 0.8
    believed = robust.genes["s2_post"].to_numpy()[:8] / s2[:8]
    assert (believed[df[:8] < df[8:].max() / 2] > 0.5).all()


def test_integers_and_floats_have_the_same_bits():
    """Small integers are looked up in tables."""
    counts, _ = draw(np.random.default_rng(2), SCREEN, PLATES, n_genes=50)
    counts[:, 3] += 70_000  # beyond the tables
    wanted = fit(counts, SCREEN, PLATES).to_memory(dtype=np.float64)
    for dtype in (np.int32, np.float32, np.float64):
        found = fit(counts.astype(dtype), SCREEN, PLATES).to_memory(dtype=np.float64)
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(fit(counts[:, 4:], SCREEN, PLATES).genes.index[0], "g0")


def test_a_gene_that_a_plate_lacks_is_fitted_on_the_others():
    counts, _ = draw(np.random.default_rng(3), SCREEN, PLATES, n_genes=60, levels=7)
    lacking = counts.astype(float)
    lacking[PLATES == 1, :20] = np.nan
    lacking[(SCREEN == "ctrl") & (PLATES == 0), 20:25] = np.nan
    found = fit(lacking, SCREEN, PLATES, method="trend", scaling="none")
    change, t = found.to_memory(dtype=np.float64)
    on_one = [found.conditions.index.get_loc(c) for c in "bc"]
    on_other = [found.conditions.index.get_loc(c) for c in "ef"]
    assert list(found.conditions.index) == list("abcef")
    assert np.isnan(change[np.ix_(on_other, range(20))]).all()
    assert np.isfinite(change[np.ix_([0, *on_one], range(20))]).all()
    # No control value on the plate: no value.
    assert np.isnan(t[np.ix_(on_one, range(20, 25))]).all()
    assert np.isfinite(t[np.ix_([0, *on_other], range(20, 25))]).all()
    assert (found.genes["df_residual"][:20] == 2).all()
    assert (found.genes["df_residual"][25:] == 5).all()
    # As if there were no other plate.
    alone = fit(counts[PLATES == 0], SCREEN[PLATES == 0], method="trend", scaling="none")
    own, _ = alone.to_memory(dtype=np.float64)
    apart = own[1:, :20] - change[np.ix_(on_one, range(20))]
    assert np.ptp(apart, axis=1).max() < 0.05  # the same but for the libraries


def test_a_well_per_drug_is_compared_with_the_controls_of_its_plate():
    """Tahoe's design: every degree of freedom is a control's, no plate is compared with another."""
    plates = np.repeat([0, 1, 2], 7)
    conditions = np.array([["ctrl"] * 3 + [f"d{p}{i}" for i in range(4)] for p in range(3)]).ravel()
    counts, _ = draw(np.random.default_rng(6), conditions, plates, n_genes=40, levels=7)
    found = fit(counts, conditions, plates, method="trend")
    change, t = found.to_memory(dtype=np.float64)
    library = (found.samples["library_size"] * found.samples["scaling_factor"]).to_numpy()
    prior = 2 * library / library.mean()
    logs = np.log2((counts + prior[:, None]) / (library + 2 * prior)[:, None])
    controls = np.stack([logs[(conditions == "ctrl") & (plates == p)] for p in range(3)])
    for row, name in enumerate(found.conditions.index):
        at = np.flatnonzero(conditions == name)[0]
        np.testing.assert_allclose(change[row], logs[at] - controls[plates[at]].mean(axis=0))
    assert (found.genes["df_residual"] == 3 * 3 - 3).all()
    np.testing.assert_allclose(found.genes["s2"], controls.var(axis=1, ddof=1).mean(axis=0))
    error = np.sqrt(found.genes["s2_post"].to_numpy() * (1 + 1 / 3))
    np.testing.assert_allclose(t, change / error, rtol=1e-10)


def test_equal_weights_for_unlike_libraries_are_warned_of(caplog):
    counts, _ = draw(np.random.default_rng(7), SCREEN, PLATES, n_genes=40, levels=7, spread=0.05)
    fit(counts, SCREEN, PLATES, method="trend")
    counts[1] *= 10
    fit(counts, SCREEN, PLATES)
    assert "method='voom'" not in caplog.text
    fit(counts, SCREEN, PLATES, method="trend")
    assert "-fold: with method='trend' p-values are too small, with method='voom'" in caplog.text


def test_replicates_and_reasons_are_told():
    conditions = np.array(["ctrl", "ctrl", "a", "a", "b", "c", "c", "d", "ctrl", "d"])
    blocks = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 3])
    counts, _ = draw(np.random.default_rng(4), conditions, blocks, n_genes=50)
    counts[7] = 0
    found = fit(counts, conditions, blocks)
    assert found.conditions["n_replicates"].to_dict() == {"a": 2, "d": 1}
    assert found.conditions["n_controls"].to_dict() == {"a": 2, "d": 1}
    assert found.left_out.to_numpy().tolist() == [
        ["d", "7", "it has no counts"],
        ["b", "", "no pseudobulk of the control is in its block: 1"],
        ["c", "", "no pseudobulk of the control is in its block: 2"],
    ]


@pytest.mark.parametrize(
    ("conditions", "blocks", "message"),
    [
        ("ctrl a b c", None, "no condition has two pseudobulks in one block"),
        ("ctrl ctrl a a", [0, 0, 1, 1], "no condition has a pseudobulk in a block with"),
        ("a a b b", None, "no condition has a pseudobulk in a block with the control 'ctrl'"),
    ],
)
def test_designs_that_tell_nothing_are_refused(conditions, blocks, message):
    conditions = np.array(conditions.split())
    counts, _ = draw(np.random.default_rng(5), conditions, [0] * len(conditions), n_genes=30)
    with pytest.raises(InputError, match=message):
        fit(counts, conditions, blocks)
    with pytest.raises(InputError, match="no gene has 10 counts in enough of 4 pseudobulks"):
        fit(counts * 0 + 1, conditions, blocks)
    with pytest.raises(InputError, match="no gene has 10 counts in enough of 0 pseudobulks"):
        fit(counts * 0, conditions, blocks)


@pytest.mark.parametrize(("method", "spread", "levels"), [("voom", 0.6, 3.5), ("trend", 0.1, 6.5)])
@pytest.mark.parametrize("n_plates", [1, 4])
def test_p_values_are_honest(method, spread, levels, n_plates):
    """Control against control is uniform; of what is called at a rate of 0.05, 6% is wrong at most.

    Libraries differ tenfold and counts are low for voom; equal weights need others.
    """
    rng = np.random.default_rng(11)
    p_null, wrong, missed, size = [], [], [], {"spread": spread, "levels": levels}
    plates = np.repeat(np.arange(n_plates), 24 // n_plates)
    for _ in range(12):
        conditions = np.array(["ctrl"] * 24, dtype=object)
        for plate in range(n_plates):
            chosen = rng.permutation(np.flatnonzero(plates == plate))[: 12 // n_plates]
            conditions[chosen] = [f"n{plate}_{i}" for i in range(chosen.size)]
        counts, truth = draw(rng, conditions, plates, **size)
        found = fit(counts, conditions, plates, method=method)
        p_null.append(t_pvalues(found.to_memory()[1], found.genes["df"].to_numpy()))
        counts, truth = draw(rng, conditions, plates, changed=40, **size)
        found = fit(counts, conditions, plates, method=method)
        df = found.genes["df"].to_numpy()
        for condition, t in zip(found.conditions.index, found.to_memory()[1], strict=True):
            called = adjust_pvalues(t_pvalues(t, df), "benjamini-hochberg") <= 0.05
            real = truth[condition][found.genes.index.str[1:].astype(int)]
            assert called.sum() == n_discoveries(t[None], df)[0]
            wrong.append((called & ~real).sum() / max(called.sum(), 1))
            missed.append((real & ~called).sum() / real.sum())
    # The errors of one control are in all comparisons: a tenth of them is enough for the test.
    p = np.concatenate([own[:, ::10].ravel() for own in p_null])
    assert stats.kstest(p, "uniform").pvalue > 0.01
    assert np.mean(np.concatenate([own.ravel() for own in p_null]) < 0.01) < 0.013
    assert np.mean(wrong) <= 0.06
    assert np.mean(missed) < 0.5
