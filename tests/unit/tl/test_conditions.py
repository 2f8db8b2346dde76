"""Distances and compositions of conditions: values by plain loops, calibration, what is missing."""

from __future__ import annotations

from itertools import combinations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest
from threadpoolctl import threadpool_limits

import scatlas as sa
from scatlas import pl
from scatlas.errors import InputError
from scatlas.matrix.composition import compositions
from scatlas.matrix.edistance import edistances


def screen(replicates: dict[str, int], seed: int = 0, n: int = 14, blocks: int = 1) -> ad.AnnData:
    """Cells of replicates, whose means differ, and more so of the condition ``far``."""
    rng = np.random.default_rng(seed)
    parts, rows = [], []
    for name, times in replicates.items():
        for i in range(times):
            size = n + i
            shift = rng.normal(0, 0.3, 3) + 2.0 * (name == "far") + 5.0 * (i % blocks)
            parts.append(rng.normal(size=(size, 3)) + shift)
            rows += [(name, f"{name}{i}", f"plate{i % blocks}", f"c{k % 3}") for k in range(size)]
    obs = pd.DataFrame(rows, columns=["drug", "well", "plate", "cluster"]).rename(index=str)
    return ad.AnnData(obs=obs, obsm={"X_pca": np.concatenate(parts).astype(np.float32)})


def mean_of_pairs(x: np.ndarray, y: np.ndarray, n_pairs: int) -> float:
    return sum(float(((a - b) ** 2).sum()) for a in x for b in y) / n_pairs


def energy(x: np.ndarray, y: np.ndarray, dof: int) -> float:
    """scperturb's form (dof 1), or pertpy's of squared distances (0), by a loop over pairs."""
    n, m = len(x), len(y)
    within = mean_of_pairs(x, x, n * (n - dof)) + mean_of_pairs(y, y, m * (m - dof))
    return 2 * mean_of_pairs(x, y, n * m) - within


@pytest.mark.parametrize("dof", [0, 1])
def test_distances_are_those_of_pairs_of_cells(dof: int) -> None:
    adata = screen({"dmso": 3, "near": 2, "far": 1}, n=10)
    x, drug = adata.obsm["X_pca"].astype(float), adata.obs["drug"]
    found = sa.tl.edistance(adata, "drug", "dmso", replicate="well", dof=dof)
    assert list(found["drug"]) == ["far", "near"]
    wanted = [energy(x[drug == name], x[drug == "dmso"], dof) for name in found["drug"]]
    np.testing.assert_allclose(found["edistance"], wanted, rtol=1e-12)
    whole = sa.tl.edistance(adata, "drug", "dmso", dof=dof)
    np.testing.assert_allclose(whole["edistance"], wanted, rtol=1e-12)


def test_p_values_are_shares_of_the_relabellings() -> None:
    adata = screen({"dmso": 5, "near": 3, "far": 3}, n=6)
    options = {"replicate": "well", "min_cells": 2}
    found = sa.tl.edistance(adata, "drug", "dmso", **options).set_index("drug")
    wells = adata.obs.groupby("well").indices
    x = adata.obsm["X_pca"].astype(float)
    for name in ("near", "far"):
        names = [well for well in wells if well.startswith((name, "dmso"))]
        values = {}
        for chosen in combinations(names, 3):
            own = np.concatenate([wells[well] for well in chosen])
            rest = np.concatenate([wells[well] for well in names if well not in chosen])
            values[chosen] = energy(x[own], x[rest], 1)
        observed = values[tuple(well for well in names if well.startswith(name))]
        share = np.mean([value >= observed * (1 - 1e-9) for value in values.values()])
        assert found.loc[name, "p_value"] == share
        assert found.loc[name, "n_relabellings"] == 56
    assert found.loc["far", "p_value"] == 1 / 56
    np.testing.assert_allclose(found["fdr"], [2 / 56, found.loc["near", "p_value"]])
    # Random ones are near the exact share, never 0, and the same for the same seed.
    some = [
        sa.tl.edistance(adata, "drug", "dmso", **options, n_permutations=50, random_state=seed)[
            "p_value"
        ].to_numpy()
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(some[0], some[1])
    assert 1 / 51 <= some[2][0] < 0.1


def test_no_byte_depends_on_blocks_threads_or_other_conditions(block_loads) -> None:
    adata = screen({"dmso": 8, "near": 6, "far": 6})
    options = {"replicate": "well", "n_permutations": 300}
    with threadpool_limits(2):
        wanted = sa.tl.edistance(adata, "drug", "dmso", **options)
    lazy = adata.copy()
    lazy.obsm["X_pca"] = block_loads.dask(adata.obsm["X_pca"], rows=37)
    with threadpool_limits(1):
        pd.testing.assert_frame_equal(sa.tl.edistance(lazy, "drug", "dmso", **options), wanted)
    assert block_loads.passes() == sa.tl.edistance.passes == 1
    fewer = sa.tl.edistance(adata[adata.obs["drug"] != "far"], "drug", "dmso", **options)
    kept = wanted[wanted["drug"] == "near"].drop(columns="fdr").reset_index(drop=True)
    pd.testing.assert_frame_equal(fewer.drop(columns="fdr"), kept)


def test_sums_of_plates_add_up() -> None:
    adata = screen({"dmso": 5, "near": 3}, blocks=2)
    adata.obs["part"] = [str(i % 3) for i in range(adata.n_obs)]
    keys = ["drug", "well", "part"]
    sums = sa.get.aggregate(adata, keys, ["sum", "var"], obsm="X_pca", dof=0)
    n = sums.obs["n_obs_aggregated"].to_numpy()
    samples = pd.DataFrame({"condition": sums.obs["drug"], "replicate": sums.obs["well"]})
    found = edistances(
        samples.assign(n_cells=n),
        sums.layers["sum"],
        sums.layers["var"].sum(axis=1) * n,
        control="dmso",
    )
    wanted = sa.tl.edistance(adata, "drug", "dmso", replicate="well")
    pd.testing.assert_frame_equal(found.rename(columns={"condition": "drug"}), wanted, rtol=1e-12)


def test_blocks_are_compared_within() -> None:
    """A plate of other cells is no distance, and a condition without control on it has none."""
    adata = screen({"dmso": 6, "near": 6, "far": 6}, blocks=2)
    options = {"replicate": "well", "block": "plate"}
    found = sa.tl.edistance(adata, "drug", "dmso", **options).set_index("drug")
    x, obs = adata.obsm["X_pca"].astype(float), adata.obs
    parts = []
    for plate in ("plate0", "plate1"):
        own = x[(obs["plate"] == plate) & (obs["drug"] == "near")]
        others = x[(obs["plate"] == plate) & (obs["drug"] == "dmso")]
        weight = len(own) * len(others) / (len(own) + len(others))
        parts.append((weight, own.mean(axis=0) - others.mean(axis=0)))
    mean = sum(weight * part for weight, part in parts) / sum(weight for weight, _ in parts)
    biased = sa.tl.edistance(adata, "drug", "dmso", **options, dof=0).set_index("drug")
    assert biased.loc["near", "edistance"] == pytest.approx(2 * (mean**2).sum(), rel=1e-9)
    assert found.loc["near", "n_relabellings"] == 200  # 20 * 20, both sides are of equal size
    assert found.loc["far", "p_value"] == 2 / 400
    assert found.loc["near", "p_value"] > 0.05
    lone = adata[(obs["plate"] == "plate0") | (obs["drug"] != "dmso")]
    lone = lone[(lone.obs["plate"] == "plate1") | (lone.obs["drug"] != "far")]
    found = sa.tl.edistance(lone, "drug", "dmso", **options).set_index("drug")
    assert np.isnan(found.loc["far", "edistance"])
    assert found.loc["far", "reason"] == "no replicate of dmso has 10 cells in its blocks: plate1"


def test_p_values_between_controls_are_uniform() -> None:
    rng = np.random.default_rng(5)
    condition = pd.Categorical(["a"] * 4 + ["dmso"] * 5)
    samples = pd.DataFrame({"condition": condition, "replicate": range(9), "n_cells": 50})
    p = []
    for _ in range(200):  # 126 relabellings each
        sums = 50 * rng.normal(0, 0.5, (9, 4)) + rng.normal(0, np.sqrt(50), (9, 4))
        found = edistances(samples, sums, rng.chisquare(49 * 4, 9), control="dmso")
        p.append(found["p_value"][0])
    assert kstest(p, "uniform").pvalue > 0.01
    assert np.mean(np.array(p) <= 0.05) <= 0.08


def test_what_cannot_be_tested_has_a_reason() -> None:
    adata = screen({"dmso": 3, "near": 3, "far": 1, "few": 1})
    adata.obs["line"] = np.where(np.arange(adata.n_obs) % 2, "A", "B")
    adata = adata[~((adata.obs["line"] == "B") & (adata.obs["drug"] == "dmso"))]
    adata = adata[: adata.n_obs - 4].copy()
    found = sa.tl.edistance(
        adata, "drug", "dmso", within="line", replicate="well", min_cells=7
    ).set_index(["line", "drug"])
    few = "no replicate has 7 cells"
    assert found.loc[("A", "few"), "reason"] == few
    assert found.loc[("A", "near"), "reason"].startswith("its replicates have 10 relabellings, and")
    assert found.loc[("B", "near"), "reason"] == "no replicate of dmso has 7 cells"
    assert found["p_value"].isna().all()
    assert found["fdr"].isna().all()
    assert found.loc["A", "edistance"].notna().tolist() == [True, False, True]
    with pytest.raises(InputError, match="no control 'dms0': try 'dmso'"):
        sa.tl.edistance(adata, "drug", "dms0")
    with pytest.raises(InputError, match=r"the same value of obs\['drug'\]: keep those of other"):
        sa.tl.edistance(adata[adata.obs["drug"] == "dmso"], "drug", "dmso")
    adata.obsm["X_pca"][5] = np.nan
    with pytest.raises(InputError, match="not finite in 'A_dmso_dmso0': remove those cells first"):
        sa.tl.edistance(adata, "drug", "dmso", within="line", replicate="well")


# -- compositions --------------------------------------------------------------------------------


def counts_of(rng, shares: np.ndarray, sizes: list[int], overdispersed: bool) -> np.ndarray:
    own = rng.dirichlet(60 * shares, len(sizes)) if overdispersed else [shares] * len(sizes)
    return np.array([rng.multinomial(n, p) for n, p in zip(sizes, own, strict=True)])


def composed(counts: np.ndarray, conditions: list[str], **samples) -> pd.DataFrame:
    table = pd.DataFrame({"condition": pd.Categorical(conditions), **samples})
    return compositions(counts, table, pd.RangeIndex(counts.shape[1]).astype(str), control="c")


@pytest.mark.parametrize("overdispersed", [False, True])
@pytest.mark.parametrize("sizes", [[800] * 6, [2000] * 3 + [150] * 3])
def test_shares_between_controls_have_uniform_p_values(overdispersed, sizes) -> None:
    """Replicates of one kind at random on two sides, also with few cells on one."""
    rng = np.random.default_rng(2)
    p, discoveries = [], 0
    for _ in range(100):
        counts = counts_of(rng, rng.dirichlet(np.ones(12)), sizes, overdispersed)
        found = composed(counts, ["c"] * 3 + ["a"] * 3)
        tested = found["p_value"].dropna()
        p.append(tested.sample(1, random_state=1).item())  # those of a table depend on each other
        discoveries += bool((found["fdr"] < 0.05).any())
    assert kstest(p, "uniform").pvalue > 0.01
    assert discoveries / 100 <= 0.06


def test_intervals_hold_the_planted_ratios() -> None:
    rng = np.random.default_rng(3)
    held, significant = [], []
    for _ in range(40):
        control = rng.dirichlet(np.full(8, 5.0))
        treated = control * np.r_[3, np.ones(7)]
        treated /= treated.sum()
        both = [counts_of(rng, shares, [900] * 5, True) for shares in (control, treated)]
        found = composed(np.concatenate(both), ["c"] * 5 + ["a"] * 5)
        ratio = np.log2(treated / control)
        held.append((found["ci_low"] <= ratio) & (ratio <= found["ci_high"]))
        significant.append(found["fdr"][0] < 0.05)
        outside = (found["ci_low"] > 0) | (found["ci_high"] < 0)
        np.testing.assert_array_equal(outside, found["p_value"] < 0.05)
    assert 0.93 <= np.mean(held) <= 0.98
    assert np.mean(significant) > 0.8


def test_blocks_and_single_replicates() -> None:
    """Plates of other shares do no harm; one replicate has the variance of the others."""
    rng = np.random.default_rng(4)
    plates = np.array([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    at = [0, 0, 1, 1, 0, 1, 1]
    shares = [
        plates[i] * ([1, 1, 4] if name == "a" else 1) for i, name in zip(at, "ccccabb", strict=True)
    ]
    counts = np.array([rng.multinomial(5000, row / np.sum(row)) for row in shares])
    conditions = ["c", "c", "c", "c", "a", "b", "b"]
    found = composed(counts, conditions, block=at).set_index(["condition", "cluster"])
    assert found.loc["a", "n_replicates"].tolist() == [1] * 3
    assert found.loc["a", "n_controls"].tolist() == [2] * 3
    assert found.loc[("a", "2"), "fdr"] < 0.05
    assert found.loc["b", "p_value"].min() > 0.05
    plain = composed(counts, conditions).set_index(["condition", "cluster"])
    assert plain.loc[("a", "2"), "p_value"] > 0.1
    assert found.loc[("a", "2"), "share"] == pytest.approx(0.1 * 4 / 1.3, rel=0.1)
    alone = composed(counts[[0, 4]], ["c", "a"])
    assert set(alone["reason"]) == {"no condition has two replicates in one block"}
    assert alone["share"].notna().all()
    assert alone[["p_value", "ci_low", "ci_high", "fdr"]].isna().all(axis=None)
    apart = composed(counts[[0, 1, 5]], ["c", "c", "b"], block=[0, 0, 1])
    assert set(apart["reason"]) == {"no replicate of c has 10 cells in its blocks"}


def test_composition_counts_the_cells_of_an_anndata() -> None:
    adata = screen({"dmso": 3, "near": 3, "few": 1}, n=40)
    adata.obs.loc[adata.obs_names[:2], "cluster"] = None
    adata.obs.loc[adata.obs["drug"] == "few", "cluster"] = None
    adata.obs.loc[adata.obs_names[2:5], "cluster"] = "rare"
    found = sa.tl.composition(adata, "drug", "dmso", groups="cluster", replicate="well")
    assert list(found.columns[:2]) == ["drug", "cluster"]
    assert found["n_cells"].tolist() == [42, 41, 40, 0]
    assert found["reason"].tolist() == ["", "", "", "fewer than 10 cells"]
    figure = pl.composition(found)
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["c0", "c1", "c2"]
    with pytest.raises(InputError, match="no replicate of the control 'dmso' has 99 cells: set"):
        sa.tl.composition(adata, "drug", "dmso", groups="cluster", replicate="well", min_cells=99)
    with pytest.raises(InputError, match="1 of 1 clusters have 10 cells, but shares need two"):
        sa.tl.composition(
            adata[adata.obs["cluster"] == "c1"], "drug", "dmso", groups="cluster", replicate="well"
        )
    with pytest.raises(InputError, match="no row of the table has an interval"):
        pl.composition(found.assign(p_value=np.nan))


def test_the_figure_of_many_conditions_and_clusters(tmp_path) -> None:
    """Those with the smallest p-values, with the same bytes again."""
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"drug": np.repeat([f"d{i}" for i in range(40)], 120)})
    table["label"] = np.tile([f"a long label of a cell type {i}" for i in range(120)], 40)
    ratio, p = rng.normal(size=len(table)), rng.random(len(table))
    p[5], p[-1] = 1e-9, np.nan
    table = table.assign(log2_ratio=ratio, ci_low=ratio - 1, ci_high=ratio + 1, p_value=p, fdr=p)
    table.loc[7, "ci_low"] = -np.inf
    figure = pl.composition(table)
    assert len(figure.axes) == 12
    assert figure.axes[0].get_title(loc="left") == "d0"
    written = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(written) == 26
    assert any(name.endswith("type 5") for name in written)
    assert figure.get_supxlabel().endswith("12 of 40 values of drug\n26 of 120 values of label")
    for name in "ab":
        pl.save(pl.composition(table[table["drug"] == "d0"]), tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
