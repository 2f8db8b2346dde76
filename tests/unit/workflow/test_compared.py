"""Users read what is wrong with a comparison of conditions before it is computed."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from scatlas.errors import InputError
from scatlas.io import load_plate, open_tables, write_cells
from scatlas.workflow.command_line.compared import ComparedSamples
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.config.sections import Config

ROOT = Path(__file__).parents[3]
OPTIONS: dict[str, Any] = {"condition": "drug", "control": "DMSO", "replicate": "well"}
OPTIONS |= {"block": "plate", "min_cells": 3}


def wells(**drugs: Any) -> pd.DataFrame:
    """Five cells of each well, by its name."""
    table = pd.DataFrame({"well": [*drugs], "drug": [*drugs.values()]})
    return table.loc[table.index.repeat(5)].reset_index(drop=True)


GOOD = wells(a="DMSO", b="DMSO", c="x")


def said(folder: Path, *plates: pd.DataFrame, by: str | None = None, **config: Any):
    """Problems and notices of plates p1, p2 and so on."""
    effects = OPTIONS | config.pop("effects", {})
    compared = ComparedSamples(Config.model_validate({"effects": effects, **config}))
    problems = []
    for number, obs in enumerate(plates, start=1):
        path = folder / f"p{number}.h5ad"
        obs = obs.set_axis([f"c{i}" for i in range(len(obs))])
        ad.AnnData(sparse.csr_matrix((len(obs), 1), dtype=np.float32), obs=obs).write_h5ad(path)
        with open_tables(path) as (table, _):
            plate = Plate(plate=f"p{number}", path=str(path))
            problems += [problem.message for problem in compared.add(plate, table, by)]
    others, notices = compared.sentences(len(plates))
    return problems + [problem.message for problem in others], notices


@pytest.mark.parametrize("dtype", ["str", "category"])
def test_sound_plates_are_not_spoken_of(tmp_path: Path, dtype: str):
    assert said(tmp_path, GOOD.astype(dtype), GOOD) == ([], [])
    one_file = pd.concat([GOOD.assign(lane="L1"), GOOD.assign(lane="L2")])
    assert said(tmp_path, one_file, by="lane") == ([], [])


@pytest.mark.parametrize(
    ("obs", "options", "words"),
    [
        (GOOD, {"control": "DMS"}, "no plate has the control 'DMS', which .* such as 'DMSO'$"),
        (
            wells(a=0.5, b=0.5, c=2.0),
            {"control": "0"},
            "'0', which effects.control names, in drug, which holds numbers: .*'0.5'",
        ),
        (
            wells(a="DMSO", b="DMSO", c=None),
            {},
            r"p1: obs\['drug'\] \(effects\) has no value in 5 of 15 rows: leave .* by qc.filter",
        ),
        (wells(a="DMSO", b="DMSO", c="NA"), {}, "has the label 'NA', which tables read as a gap"),
        (wells(a="DMSO", b="DMSO", c=""), {}, "has the label '', which tables read as a gap"),
        (
            wells(**{f"w{i}": i / 3 for i in range(80)}),
            {},
            "holds 80 different numbers, which are no groups",
        ),
        (wells(a="DMSO", b="x"), {}, "no condition has two values of well with 3 cells or more"),
        (GOOD, {"min_cells": 6}, "no value of well with 6 cells .* can be compared with it in one"),
        (
            GOOD.assign(batch=(GOOD["drug"] == "x").map({True: "1", False: "2"})),
            {"block": "batch"},
            "no value of well with 3 cells .* of another condition than 'DMSO' can be compared",
        ),
    ],
)
def test_what_gives_no_effects_is_an_error(tmp_path: Path, obs, options, words):
    (problem,), notices = said(tmp_path, obs, effects=options)
    assert re.search(words, problem)
    assert notices == []


def test_what_is_left_out_is_counted(tmp_path: Path):
    """Cells of a filter do not count, nor do gaps that it drops."""
    other = wells(a="x", b="y", c="z")
    problems, (without, few) = said(tmp_path, GOOD, pd.concat([other, wells(d="v")[:2]]))
    assert problems == []
    assert without.startswith("1 of 2 values of plate have no value of well with 3 cells of the")
    assert "and 3 conditions with them; the first is 'p2'" in without
    assert "1 of 4 conditions have no value of well with 3 cells (effects.min_cells)" in few
    assert few.endswith("the first is 'v', with 2")
    gaps = wells(a="DMSO", b="DMSO", c="x", d=None)
    assert said(tmp_path, gaps, qc={"filter": "drug.notna()"}) == ([], [])
    assert said(tmp_path, gaps, qc={"filter": "pct_counts_mt < 5"}) == ([], [])
    lines = GOOD.assign(line=["u"] * 13 + ["v"] * 2)
    _, (few,) = said(tmp_path, lines, effects={"within": ["line", "leiden"]})
    assert few.endswith("the first is 'v, x', with 2")


def test_sums_refuse_gaps_that_qc_left(tmp_path: Path):
    """Else the sums would leave these cells out without a word."""
    obs = wells(a="DMSO", b="x", c=None).astype("category").rename(index="c{}".format)
    cells = ad.AnnData(sparse.csr_matrix(np.ones((15, 2), np.float32)), obs=obs)
    cells.write_h5ad(tmp_path / "p1.h5ad")
    load_plate(tmp_path / "p1.h5ad", tmp_path / "counts.zarr", plate="p1")
    main = runpy.run_path(str(ROOT / "scripts/pseudobulk.py"))["main"]
    words = ["--plate", "p1", "--store", str(tmp_path / "counts.zarr"), "--by", "drug", "well"]
    words += ["--qc", str(tmp_path / "qc.parquet"), "--sums", str(tmp_path / "sums.zarr")]
    words += ["--key", "effects", "--complete", "drug", "well"]
    for keep in (obs["drug"].notna(), obs["well"] != "b"):
        write_cells(tmp_path / "qc.parquet", keep.to_frame("keep"), [cells.obs_names.to_numpy()])
        if keep.iloc[5]:
            main([*words, "--manifest", str(tmp_path / "sums.json")])
            continue
        with pytest.raises(InputError, match=r"obs\['drug'\] \(effects\) has no value in 5 of 10"):
            main([*words, "--manifest", str(tmp_path / "sums.json")])
