"""Which cells stay, and which genes the plates agree on."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import scatlas.io.tables.column as columns
from scatlas.errors import InputError
from scatlas.io import METRICS, CsrWriter
from scatlas.io.tables.cell_parquet import kept_names, read_cells, write_cells
from scatlas.workflow.cell_filter import (
    BOUNDS,
    DEVIATIONS,
    drop_outliers,
    evaluate_filter,
    frequent_genes,
    qc_filter,
)
from scatlas.workflow.consensus import consensus_genes


@pytest.fixture
def obs() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "pass_filter": pd.Categorical(["full", "full", "minimal", "full", "full"]),
            "reads": pd.array([1, None, 3, 4, 5], "Int64"),
            "ok": pd.array([True, None, True, False, True], "boolean"),
            "drug dose": ["a", "b", "a", "b", "a"],
            "total_counts": [100, 200, 300, 0, 500],
            "n_genes_by_counts": [10, 20, 30, 0, 50],
            "pct_counts_mt": [5.0, 10.0, 1.0, np.nan, 50.0],
        },
        index=list("abcde"),
    )


@pytest.mark.parametrize(
    "expression, kept",
    [
        ("pass_filter == 'full'", "abde"),
        ("reads > 1", "cde"),
        ("ok", "ace"),
        ("ok == True and pass_filter == 'full'", "ae"),
        ("`drug dose` in ['b']", "bd"),
        ("pass_filter == 'full' and total_counts > 150", "be"),
    ],
)
def test_a_filter_keeps_what_query_keeps(obs, expression, kept):
    mask = evaluate_filter(obs, expression, source="p")
    assert mask.dtype == bool
    assert "".join(obs.index[mask]) == kept == "".join(obs.query(expression).index)


@pytest.mark.parametrize(
    "expression, sentence",
    [
        ("nothing > 1", r"^p: obs has no column 'nothing'.*use one of: pass_filter, reads"),
        ("total_counts", r"^p: .*gives no true or false"),
        ("total_counts > 9999", r"^p: .*keeps none of the 5 cells"),
        ("pass_filter ==", r"^p: .*cannot be evaluated"),
        ("reads if ok else total_counts", r"^p: .*cannot be evaluated"),
        ("1 / 0 > total_counts", r"^p: .*cannot be evaluated"),
        ("pass_filter > 3", r"^p: .*cannot be evaluated"),
    ],
)
def test_a_filter_that_cannot_work_ends_with_one_sentence(obs, expression, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        evaluate_filter(obs, expression, source="p")
    assert "\n" not in str(caught.value)


def test_bounds_are_inclusive_and_rules_take_in_turn(obs):
    keep, removed = qc_filter(
        obs, source="p", filter="pass_filter == 'full'", min_genes=10, max_counts=500, max_pct_mt=10
    )
    assert "".join(obs.index[keep]) == "ab"
    # d fails min_genes and has no percentage: the first rule that it fails counts it.
    assert removed == {"filter": 1, "min_genes": 1, "max_counts": 0, "max_pct_mt": 1}
    assert sum(removed.values()) == len(obs) - keep.sum()
    assert list(removed) == [rule for rule in ("filter", *BOUNDS) if rule in removed]
    keep, _ = qc_filter(obs, source="p", max_pct_mt=100)
    assert "".join(obs.index[keep]) == "abce", "an empty cell has no percentage"
    keep, removed = qc_filter(obs, source="p")
    assert (keep.all(), removed) == (True, {})


def test_no_cell_left_names_the_rules(obs):
    with pytest.raises(InputError, match=r"no cell is left of 5 \(min_genes took 4, max_genes"):
        qc_filter(obs, source="p", min_genes=50, max_genes=49)


@pytest.fixture
def cells() -> pd.DataFrame:
    """Two samples with their own depth, poor cells, an empty one, and a sample of three cells."""
    rng = np.random.default_rng(0)
    depth = np.repeat([7.0, 9.0], 400)
    depth[::40], depth[1::400] = 3, 13
    counts = np.round(np.exp(rng.normal(depth, 0.2)))
    pct = np.clip(rng.normal(np.repeat([3.0, 20.0], 400), 1), 0, 100)
    pct[5::100] += 40
    obs = pd.DataFrame({"total_counts": counts, "n_genes_by_counts": counts // 3})
    obs["pct_counts_mt"], obs["sample"] = (
        pct,
        ["deep" if d > 400 else "shallow" for d in range(800)],
    )
    obs.loc[7, ["total_counts", "n_genes_by_counts", "pct_counts_mt"]] = 0, 0, np.nan
    obs.loc[[10, 20, 30], "sample"] = "tiny"
    return obs


def test_cells_unlike_those_of_their_group_leave(cells):
    """A plain reference: is_outlier of sc-best-practices.org, group by group."""
    groups = pd.Categorical(cells["sample"])
    before = (cells["n_genes_by_counts"] >= 3).to_numpy()
    keep, removed, bounds = drop_outliers(
        cells, before, mads=5, groups=groups, limits={"min_genes": 3, "max_pct_mt": 25}
    )
    wanted = before.copy()
    for sample in ("deep", "shallow"):
        inside = before & (cells["sample"] == sample).to_numpy()
        for name, log in (
            ("total_counts", True),
            ("n_genes_by_counts", True),
            ("pct_counts_mt", False),
        ):
            values = np.log1p(cells[name]) if log else cells[name]
            middle = np.median(values[inside])
            mad = np.median(np.abs(values[inside] - middle))
            reach = 5 * mad if log else max(3 * mad, 8)
            high = middle + reach
            wanted &= ~inside | ((values <= high) & ((values >= middle - reach) | (not log)))
            if name == "total_counts":
                assert bounds.loc[sample, "max_counts"] == pytest.approx(np.expm1(high), rel=1e-12)
    np.testing.assert_array_equal(keep, wanted)
    assert list(removed) == list(DEVIATIONS)
    assert sum(removed.values()) == before.sum() - keep.sum() > 20
    assert bounds["cells"].sum() == before.sum()
    assert bounds["kept"].sum() == keep.sum()
    # Limits win; a group of few cells, here an outlier of its sample, has no other bound.
    assert bounds["max_pct_mt"].tolist() == [25, pytest.approx(11, abs=0.5), 25]
    assert bounds.loc["tiny"].dropna().to_dict() == {
        "cells": 3,
        "kept": 3,
        "min_genes": 3,
        "max_pct_mt": 25,
    }


def test_no_spread_gives_no_bound_and_an_empty_cell_leaves(cells):
    flat = cells.assign(total_counts=100)
    keep, _, bounds = drop_outliers(flat, np.ones(800, bool), mads=5)
    assert bounds.loc["all", ["min_counts", "max_counts"]].isna().all()
    assert not keep[7]
    one, _, _ = drop_outliers(cells[:1], np.ones(1, bool), mads=5)
    assert one.all()


# -- the script ----------------------------------------------------------------------------------

SCRIPT = Path(__file__).parents[3] / "scripts" / "qc_filter.py"


@pytest.fixture
def store(tmp_path, obs, monkeypatch) -> Path:
    """A plate's store with what `load` adds, read in pieces of two cells."""
    monkeypatch.setattr(columns, "ROWS", 2)
    obs["total_counts_mt"] = [5, 20, 3, 0, 250]
    obs["barcode"] = [f"b{i}" for i in range(5)]
    obs.index.name = "BARCODE"
    var = pd.DataFrame({"mt": [True, False, False]}, index=["MT-A", "B", "C"])
    with CsrWriter(tmp_path / "counts.zarr", n_vars=3, obs=obs, var=var) as writer:
        writer.append(sp.csr_matrix((5, 3), dtype=np.uint8))
    return tmp_path / "counts.zarr"


def run(store: Path, **qc: object) -> tuple[pd.DataFrame, dict]:
    table, summary = store.with_name("qc.parquet"), store.with_name("qc_summary.json")
    paths = [f"--table={table}", f"--summary={summary}", f"--manifest={store.with_name('m.json')}"]
    config = ["--config", json.dumps({"qc": qc})]
    runpy.run_path(str(SCRIPT))["main"](["--plate", "p", "--store", str(store), *paths, *config])
    return pd.read_parquet(table), json.loads(summary.read_text())


@pytest.mark.parametrize("expression", ["pass_filter == 'full'", "`drug dose` == 'a'", "ok"])
@pytest.mark.parametrize("bounds", [{}, {"min_genes": 10, "max_pct_mt": 10.0}])
def test_script(store, obs, expression, bounds):
    table, summary = run(store, filter=expression, **bounds)
    keep, removed = qc_filter(obs, source="p", filter=expression, **bounds)
    wanted = obs[list(METRICS)].assign(keep=keep)
    # As if it had been written whole.
    wanted.to_parquet(store.with_name("whole.parquet"))
    pd.testing.assert_frame_equal(table, pd.read_parquet(store.with_name("whole.parquet")))
    assert summary["removed"] == removed
    assert (summary["n_cells"], summary["n_kept"], summary["n_genes"]) == (5, keep.sum(), 3)
    assert summary["median_counts"] == obs.loc[keep, "total_counts"].median()
    assert summary["median_genes"] == obs.loc[keep, "n_genes_by_counts"].median()


def test_script_compares_the_cells_of_a_plate_or_of_a_column(tmp_path, cells, caplog):
    obs = cells.assign(total_counts_mt=0).rename(index="c{}".format)
    var = pd.DataFrame({"mt": [True]}, index=["MT-A"])
    with CsrWriter(tmp_path / "counts.zarr", n_vars=1, obs=obs, var=var) as writer:
        writer.append(sp.csr_matrix((800, 1), dtype=np.uint8))
    limits = {"min_genes": 3, "max_pct_mt": 25.0}
    for by, groups in (("plate", None), ("sample", pd.Categorical(cells["sample"]))):
        table, summary = run(tmp_path / "counts.zarr", mads=5, by=by, **limits)
        before, _ = qc_filter(cells, source="p", **limits)
        keep, removed, bounds = drop_outliers(cells, before, mads=5, groups=groups, limits=limits)
        np.testing.assert_array_equal(table["keep"], keep)
        assert {rule: summary["removed"][rule] for rule in removed} == removed
        assert summary["thresholds"]["mads_counts"] == "5 median absolute deviations"
        found = pd.DataFrame(summary["bounds"]).set_index("group").astype(float)
        pd.testing.assert_frame_equal(found[bounds.columns], bounds.astype(float))
    run(tmp_path / "counts.zarr", max_counts=2000, min_counts=1300)
    assert "plate p keeps only" in caplog.text
    assert "min_counts took" in caplog.text
    with pytest.raises(InputError, match=r"plate p has no obs column .donor., which qc\.by names"):
        run(tmp_path / "counts.zarr", mads=5, by="donor")


def test_script_reads_no_more_than_it_needs(store):
    """Neither the offsets of X nor columns that no rule asks for."""
    for part in ("X/indptr", "obs/barcode"):
        for chunk in (store / part / "c").iterdir():
            chunk.write_bytes(b"damaged")
    table, _ = run(store, filter="reads > 1")
    assert list(table["keep"]) == [False, False, True, True, True]


def test_script_names_all_columns_when_one_is_missing(store):
    columns = "pass_filter, reads, ok, drug dose, total_counts, n_genes_by_counts, pct_counts_mt"
    with pytest.raises(InputError, match=f"no column 'nothing'.* use one of: {columns}, total_"):
        run(store, filter="nothing > 1")


def test_script_filters_by_name(store):
    table, _ = run(store, filter="index in ['b', 'd'] and BARCODE != 'd'")
    assert list(table.index[table["keep"]]) == ["b"]


@pytest.mark.parametrize(
    ("key", "value", "bound"),
    [
        ("max_pct_mt", 9, "9"),
        ("filter", "ok and pct_counts_mt < 9", "ok and pct_counts_mt < 9"),
        ("filter", "total_counts > 2 * total_counts_mt", "total_counts > 2 \\* total_c"),
    ],
)
def test_script_refuses_a_bound_that_cannot_act(store, key, value, bound):
    with zarr.config.set({"array.write_empty_chunks": True}):
        zarr.open_array(store / "var/mt", mode="r+")[:] = False
    wanted = (
        f"^plate p: qc.{key} is {bound}.* all mitochondrial counts are zero.*set qc.mt_prefix: MT-$"
    )
    with pytest.raises(InputError, match=wanted):
        run(store, **{key: value}, mt_prefix="mt-")
    run(store, filter="total_counts > 0", mt_prefix="mt-")


@pytest.mark.parametrize("index_name", ["BARCODE", None])
def test_tables_of_cells(tmp_path, index_name, monkeypatch):
    monkeypatch.setattr("scatlas.io.tables.cell_parquet.ROWS", 3)
    names = pd.Index([f"µ{i}" for i in range(10)], name=index_name)
    frame = pd.DataFrame({"n": np.arange(10), "x": np.linspace(0, 1, 10)}, index=names)
    path, whole = tmp_path / "cells.parquet", tmp_path / "whole.parquet"
    pieces = [names.to_numpy(object)[i : i + 4] for i in range(0, 10, 4)]
    write_cells(path, frame.reset_index(drop=True), pieces, index_name=index_name)
    frame.to_parquet(whole)
    pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(whole))
    for file in (path, whole):
        read = read_cells(file, ["x"])
        assert list(read.columns) == ["x"]
        assert list(read.index) == list(range(10))
        np.testing.assert_array_equal(read["x"], frame["x"])
        keep = np.array([True, False, True] + [False] * 3 + [True] * 4)
        name, found = kept_names(file, keep)
        assert name == index_name
        assert [piece.to_pylist() for piece in found] == [["µ0", "µ2"], ["µ6", "µ7", "µ8"], ["µ9"]]
    with pytest.raises(ValueError, match="4 names for 10 cells"):
        write_cells(path, frame, pieces[:1])


# -- the genes that plates agree on --------------------------------------------------------------


def table(genes: str, chosen: str, mean: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "means": mean,
            "dispersions": 2 * mean,
            "dispersions_norm": [np.nan if g == "x" else 3 * mean for g in genes],
            "highly_variable": [g in chosen for g in genes],
        },
        index=list(genes),
    )


def test_frequent_genes_are_those_of_filter_genes():
    n_cells = np.array([0, 9, 10, 11])
    assert frequent_genes(n_cells, 10, source="p").tolist() == [False, False, True, True]
    assert frequent_genes(n_cells, 1, source="p").tolist() == [False, True, True, True]
    sentence = r"^plate p: no gene is expressed in 12 cells \(at most in 11\), which qc.drop_rare"
    with pytest.raises(InputError, match=sentence):
        frequent_genes(n_cells, 12, source="plate p")


def test_genes_by_name_come_on_top_whatever_their_ranks():
    tables = {"p1": table("dcbax", "dbx", 1), "p2": table("dcbax", "bax", 2)}
    found = consensus_genes(tables, n_top_genes=1, min_plates=2, also=["x", "c"])
    assert found.index.tolist() == ["c", "b", "x"]
    assert found["also"].tolist() == [True, False, True]
    assert found["highly_variable"].all(), "the components have them"
    assert found["highly_variable_nbatches"].tolist() == [0, 2, 2]
    assert "also" not in consensus_genes(tables)


def test_consensus_counts_plates_and_keeps_the_first_plates_order():
    tables = {
        "p1": table("dcbax", "dbx", 1),
        "p2": table("dcbax", "bax", 2),
        "p3": table("dcbax", "bcx", 6),
    }
    found = consensus_genes(tables, min_plates=2)
    assert list(found.index) == ["b", "x"]
    assert found.index.name == "gene"
    assert list(found["highly_variable_nbatches"]) == [3, 3]
    assert found["highly_variable_intersection"].all()
    np.testing.assert_allclose(found["means"], 3)
    np.testing.assert_allclose(found["dispersions_norm"], [9, np.nan])
    assert list(consensus_genes(tables, min_plates=1).index) == list("dcbax")


def test_the_best_genes_are_on_most_plates_and_of_best_median_rank():
    names = list("abcdef")
    scores = {"p1": [6, 5, 4, 3, 2, 1], "p2": [1, 6, 5, 4, 3, 2], "p3": [4, 1, 6, 5, 3, 2]}
    chosen = {"p1": "abcd", "p2": "bcd", "p3": "acd"}
    tables = {
        plate: table("abcdef", chosen[plate]).assign(dispersions_norm=scores[plate])
        for plate in scores
    }
    # On 3 plates: c (ranks 2, 1, 0) before d (3, 2, 1); on 2: b (1, 0) before a (0, 2).
    for n, best in enumerate(("", "c", "cd", "bcd", "abcd", "abcd")):
        if n:
            assert "".join(consensus_genes(tables, n_top_genes=n).index) == best
    assert list(consensus_genes(tables, n_top_genes=3, min_plates=3).index) == ["c", "d"]
    shuffled = {plate: tables[plate].loc[names[::-1]] for plate in ("p1", "p2", "p3")}
    assert set(consensus_genes(shuffled, n_top_genes=3).index) == set("bcd")
    # Equal ranks: the order of the genes decides.
    alike = {"p1": table("abcd", "abcd"), "p2": table("abcd", "abcd")}
    assert list(consensus_genes(alike, n_top_genes=2).index) == ["a", "b"]
    # Equal genes of a plate have the ranks of their order: a 0 and 1, b 1 and 0.
    alike["p2"] = alike["p2"].assign(dispersions_norm=[2, 3, 1, 1])
    assert list(consensus_genes(alike, n_top_genes=1).index) == ["a"]


def test_intersect_takes_the_genes_of_all_plates_in_the_first_plates_order():
    tables = {"p1": table("abcd", "abcd"), "p2": table("dca", "dca"), "p3": table("acde", "acde")}
    found = consensus_genes(tables, min_plates=3, genes="intersect")
    assert list(found.index) == list("acd")


def test_union_takes_the_genes_of_any_plate_and_counts_all_plates():
    tables = {"p1": table("abc", "ab"), "p2": table("dca", "da"), "p3": table("ae", "e")}
    found = consensus_genes(tables, min_plates=1, genes="union")
    assert list(found.index) == list("abde")
    assert found["highly_variable_nbatches"].tolist() == [2, 1, 1, 1]
    assert not found["highly_variable_intersection"].any()
    # Of three plates, though one of them has the gene.
    assert found.loc["e", "means"] == pytest.approx((tables["p3"].loc["e", "means"] + 2e-12) / 3)
    assert list(consensus_genes(tables, min_plates=2, genes="union").index) == ["a"]


def test_only_voters_choose_genes():
    tables = {"tiny": table("abc", "a"), "p1": table("abc", "bc"), "p2": table("abc", "b", 3.0)}
    found = consensus_genes(tables, voters=["p1", "p2"])
    assert list(found.index) == ["b", "c"]
    assert found["highly_variable_nbatches"].tolist() == [2, 1]
    assert found["highly_variable_intersection"].tolist() == [True, False]
    assert found["means"].tolist() == [2, 2]
    tables["tiny"] = table("cb", "c")
    assert list(consensus_genes(tables, genes="intersect", voters=["p1", "p2"]).index) == ["c", "b"]
    with pytest.raises(InputError, match=r"on 3 of 2 plates .* or consensus\.min_cells"):
        consensus_genes(tables, genes="intersect", min_plates=3, voters=["p1", "p2"])


@pytest.mark.parametrize(
    ("n_cells", "few"),
    [([60, 130, 900], {"p0": 60}), ([60, 9, 90], {"p1": 9}), ([120, 80, 90], {})],
)
def test_plates_of_few_cells(tmp_path, n_cells, few):
    plates_of_few_cells = runpy.run_path(str(SCRIPT.with_name("consensus.py")))[
        "plates_of_few_cells"
    ]
    for i, n in enumerate(n_cells):
        (tmp_path / f"p{i}.json").write_text(json.dumps({"n_cells": n}))
    assert plates_of_few_cells(["p0", "p1", "p2"], tmp_path, 100) == few


@pytest.mark.parametrize(
    "tables, options, sentence",
    [
        (("ab", "ba"), {}, "plate p2 has 'b' as gene 1 where plate p1 has 'a'"),
        (("ab", "a"), {}, "plate p2 has no gene as gene 2 where plate p1 has 'b'"),
        (("ab", "cd"), {"genes": "intersect"}, "no gene in common"),
        (("ab", "ab"), {"min_plates": 3}, "no gene is highly variable on 3 of 2 plates"),
    ],
)
def test_plates_without_a_consensus(tables, options, sentence):
    named = {f"p{i}": table(genes, genes) for i, genes in enumerate(tables, start=1)}
    with pytest.raises(InputError, match=sentence):
        consensus_genes(named, **options)
