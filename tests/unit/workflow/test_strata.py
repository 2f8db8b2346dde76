"""The sample of cells: which ones are drawn, with and without strata."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from scatlas.errors import InputError
from scatlas.io import write_embedding
from scatlas.io.files.local_zarr import open_store
from scatlas.workflow import strata as strata_module
from scatlas.workflow.sample import components_of_sample, rows_of_sample
from scatlas.workflow.strata import choose_cells, read_strata

# Of zarr-python, about the stores that anndata writes.
pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")

SIZES = (5000, 900, 40, 3)


def strata() -> np.ndarray:
    codes = np.repeat(np.arange(len(SIZES), dtype=np.int32), SIZES)
    return np.random.default_rng(1).permutation(codes)


@pytest.mark.parametrize(("n_cells", "wanted"), [(1000, 30), (100_000, 500), (50, 50)])
def test_without_strata_the_draw_is_that_of_numpy(n_cells: int, wanted: int) -> None:
    expected = np.sort(np.random.default_rng(7).choice(n_cells, size=wanted, replace=False))
    np.testing.assert_array_equal(choose_cells(n_cells, wanted, 7), expected)


@pytest.mark.parametrize("wanted", [143, 144, 1000, sum(SIZES)])
def test_each_stratum_has_its_cells(wanted: int) -> None:
    codes = strata()
    chosen = choose_cells(len(codes), wanted, 0, strata=codes, min_cells=50)
    assert chosen.dtype == np.int64
    assert len(chosen) == wanted
    assert (np.diff(chosen) > 0).all()
    counts = np.bincount(codes[chosen], minlength=len(SIZES))
    assert (counts >= [50, 50, 40, 3]).all()
    if wanted == 143:
        assert counts.tolist() == [50, 50, 40, 3]


def test_the_rest_is_drawn_in_proportion_to_the_other_cells() -> None:
    codes = strata()
    drawn = [
        np.bincount(codes[choose_cells(len(codes), 743, seed, strata=codes)], minlength=4)
        for seed in range(40)
    ]
    # 600 of the 4,950 and 850 cells that are left of the large strata.
    assert np.mean(drawn, axis=0)[:2] == pytest.approx([50 + 512.1, 50 + 87.9], abs=5)


def test_every_cell_of_a_stratum_can_be_drawn() -> None:
    codes = strata()
    times = np.zeros(len(codes), np.int64)
    for seed in range(300):
        times[choose_cells(len(codes), 143, seed, strata=codes)] += 1
    middle = times[codes == 1]  # 50 of 900 cells, 300 times: 16.7 on average
    assert middle.min() > 0
    assert middle.max() < 45
    assert (times[codes >= 2] == 300).all()


def test_the_draw_depends_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = strata()
    once = choose_cells(len(codes), 500, 3, strata=codes)
    monkeypatch.setattr(strata_module, "_CELLS_AT_ONCE", 7)
    np.testing.assert_array_equal(choose_cells(len(codes), 500, 3, strata=codes), once)
    assert (choose_cells(len(codes), 500, 4, strata=codes) != once).any()


def test_strata_that_need_more_than_the_sample_are_refused() -> None:
    codes = strata()
    with pytest.raises(InputError, match=r"4 strata .* need 143 cells, but the sample has 142: "):
        choose_cells(len(codes), 142, 0, strata=codes, min_cells=50)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    obs = pd.DataFrame(index=[f"c{i}" for i in range(8)])
    obs["plate"] = pd.Categorical(list("ppppqqqq"), categories=["q", "unused", "p"])
    obs["line"] = pd.Categorical(["a", "b", None, "a", "a", None, "b", None])
    obs["text"] = ["x", "y", "x", "y", "x", "y", "x", "y"]
    obs["number"] = pd.array([1, 2, None, 1, 1, 2, None, 2], dtype="Int64")
    obs["real"] = [0.5, np.nan, 0.5, 1.5, 1.5, 1.5, np.nan, 0.5]
    path = tmp_path_factory.mktemp("strata") / "atlas.zarr"
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        x, x_pca = sparse.eye_array(8, format="csr", dtype=np.float32), np.zeros((8, 2))
        ad.AnnData(x, obs=obs, obsm={"X_pca": x_pca}).write_zarr(path)
    return path


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (["plate"], [1, 1, 1, 1, 0, 0, 0, 0]),
        (["line"], [0, 1, 2, 0, 0, 2, 1, 2]),  # cells without a line: the last stratum
        (["plate", "line"], [3, 4, 5, 3, 0, 2, 1, 2]),
        (["text"], [0, 1, 0, 1, 0, 1, 0, 1]),
        (["number"], [0, 1, 2, 0, 0, 1, 2, 1]),
        (["real"], [0, 2, 0, 1, 1, 1, 2, 0]),
        (["text", "plate"], [1, 3, 1, 3, 0, 2, 0, 2]),
    ],
)
def test_strata_are_combinations_of_values(store: Path, by: list[str], expected: list[int]) -> None:
    assert read_strata(store, by, most=8).tolist() == expected


def test_columns_that_cannot_be_strata(store: Path) -> None:
    with pytest.raises(InputError, match=r"no column 'drug', .* there are plate, line, text"):
        read_strata(store, ["plate", "drug"], most=8)
    for by, most in ((["plate", "line"], 4), (["text"], 1), (["plate"], 1)):
        with pytest.raises(InputError, match=f"more than {most} combinations of values"):
            read_strata(store, by, most=most)


def test_the_script_draws_by_strata(store: Path, tmp_path: Path) -> None:
    main = runpy.run_path(str(Path(__file__).parents[3] / "scripts/subset.py"))["main"]
    out, manifest, pca = (tmp_path / name for name in ("subset.zarr", "subset.json", "pca.zarr"))
    x = np.random.default_rng(0).random((8, 2)).astype(np.float32)
    write_embedding(pca, "X_pca", x)
    subset = {"n_cells": 7, "by": ["plate", "line"], "min_cells": 1}
    options = ["--config", json.dumps({"subset": subset}), "--seed=5"]
    files = [f"--pca={pca}", f"--merged={store}", f"--subset={out}", f"--manifest={manifest}"]
    main([*files, *options])
    codes = read_strata(store, ["plate", "line"], most=8)
    expected = choose_cells(8, 7, 5, strata=codes, min_cells=1)
    assert rows_of_sample(out).tolist() == expected.tolist()
    np.testing.assert_array_equal(components_of_sample(out, pca, "X_pca"), x[expected])
    facts = json.loads(manifest.read_text())
    assert {key: facts[key] for key in ("n_cells", "n_cells_of_atlas", "n_strata")} == {
        "n_cells": 7,
        "n_cells_of_atlas": 8,
        "n_strata": 6,
    }
    main([*files, "--config", json.dumps({"subset": {"by": ["plate"]}})])
    assert rows_of_sample(out).tolist() == list(range(8))
    assert "obsm/X_pca" not in open_store(out), "all cells are not written twice"
    np.testing.assert_array_equal(components_of_sample(out, pca, "X_pca"), x)
