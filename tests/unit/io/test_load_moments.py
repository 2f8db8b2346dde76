"""`hvg` writes the same bytes from the moments that `load` took as from the counts."""

from __future__ import annotations

import json
import logging
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum
from scatlas.io.products.load_statistics import cells_digest, read_moments, write_moments
from scatlas.kernels.moments.shares import ShareMoments
from scatlas.workflow import cell_filter
from scatlas.workflow.config.sections import HVG

NO_BOUNDS: dict[str, Any] = dict.fromkeys(("filter", *cell_filter.BOUNDS))
READ = "the counts are read, because "
NOT_READ = "load took the moments, no counts are read"


@cache
def script(name: str):
    return runpy.run_path(str(Path(__file__).parents[3] / f"scripts/{name}.py"))["main"]


class Plate:
    """The steps of a plate up to `hvg`, in a folder."""

    def __init__(self, folder: Path, x: Any, obs: pd.DataFrame | None = None) -> None:
        self.folder, self.store = folder, folder / "counts.zarr"
        self.moments = folder / "moments.parquet"
        names = [f"MT-{i}" if i < 3 else f"g{i}" for i in range(x.shape[1])]
        obs = pd.DataFrame(index=[f"c{i}" for i in range(x.shape[0])]) if obs is None else obs
        ad.AnnData(x, obs=obs, var=pd.DataFrame(index=names)).write_h5ad(folder / "plate.h5ad")

    def run(self, step: str, **options: Any) -> None:
        given = {"plate": "p", "manifest": self.folder / f"{step}.json"} | options
        pairs = ((f"--{k.replace('_', '-')}", str(v)) for k, v in given.items() if v is not None)
        script(step)([word for pair in pairs for word in pair])

    def load(self, kept_cells: dict[str, Any], **options: Any) -> None:
        files = {"source": self.folder / "plate.h5ad", "store": self.store}
        moments = {"moments": self.moments, "kept_cells": json.dumps(kept_cells)}
        self.run("load", **files, **moments, **options)

    def choose_cells(self, bounds: dict[str, Any], target_sum: float | None = None, **rare) -> None:
        qc = self.folder / "qc.parquet"
        outputs = {"table": qc, "summary": self.folder / "qc_summary.json"}
        self.run("qc_filter", store=self.store, **outputs, config=json.dumps({"qc": bounds}))
        options: dict[str, Any] = {"store": self.store} | rare if rare else {}
        options["config"] = json.dumps({"normalize": {"target_sum": target_sum}})
        self.run("normalize", qc=qc, table=self.folder / "size_factors.parquet", **options)

    def hvg(self, **options: Any) -> bytes:
        table = self.folder / "hvg.parquet"
        factors = self.folder / "size_factors.parquet"
        given = {"n_top_genes": 20, "backend": "cpu"} | options
        of_hvg = {key: given.pop(key) for key in HVG.model_fields if key in given}
        given["config"] = json.dumps({"hvg": of_hvg})
        self.run("hvg", store=self.store, size_factors=factors, table=table, **given)
        return table.read_bytes()


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, "scatlas")

    def said() -> str:
        text = caplog.text
        caplog.clear()
        return text

    return said


def counts(n_cells: int, highest: int = 200, dtype: Any = np.float32, n_genes: int = 70) -> Any:
    """Counts with cells of very different totals, empty cells, and a gene that no cell has."""
    rng = np.random.default_rng(n_cells)
    depth = rng.lognormal(0, 1, (n_cells, 1))
    x = rng.poisson(depth * rng.gamma(0.3, 3.0, n_genes))
    x[::50] = 0
    x[:, 5] = 0
    x[-1, -2:] = highest, 1
    return sp.csr_matrix(x.astype(dtype))


def check(plate: Plate, said, **options: Any) -> bytes:
    """The bytes of `hvg`, the same with and without the moments, which do serve."""
    said()
    wanted = plate.hvg(**options)
    assert NOT_READ not in said()
    assert plate.hvg(moments=plate.moments, **options) == wanted
    assert NOT_READ in said()
    return wanted


BOUNDS = [
    {},
    {"min_genes": 12, "max_counts": 400},
    {"max_genes": 30, "min_counts": 20, "max_pct_mt": 30},
    {"filter": "line in ['a', 'c'] and depth > 3"},
    {"filter": "line == 'b' or (n_genes_by_counts > 15 and pct_counts_mt < 8.5)", "min_counts": 9},
    {"filter": "depth > depth.median() and line.str.startswith('a')"},
    {"filter": "index > 'c3'", "max_genes": 40},
    {"min_counts": 250},  # a few cells
]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_same_bytes_for_the_cells_of_any_bounds(tmp_path, log, bounds):
    x = counts(600)
    rng = np.random.default_rng(1)
    obs = pd.DataFrame(
        {"line": pd.Categorical(rng.choice(["a", "b", "c"], 600)), "depth": rng.random(600) * 10},
        index=[f"c{i}" for i in range(600)],
    )
    plate = Plate(tmp_path, x, obs)
    plate.load({"bounds": NO_BOUNDS | bounds}, block_budget=9000)
    tables = set()
    for target in (None, 1234.5):
        plate.choose_cells(bounds, target)
        tables |= {check(plate, log), check(plate, log, min_cells=4, n_top_genes=7)}
        tables.add(check(plate, log, drop_rare_genes=40))
    assert len(tables) == 6


@pytest.mark.parametrize(
    ("highest", "dtype"),
    [(255, np.uint8), (256, np.float32), (2**16, np.int64), (2**31 + 5, np.float64)],
)
def test_same_bytes_for_any_type_of_counts_budget_and_threads(tmp_path, log, highest, dtype):
    plate = Plate(tmp_path, counts(250, highest, dtype))
    tables, files = set(), set()
    for budget, threads in ((1, 1), (7000, 3), ("256MB", 2)):
        load = {"block_budget": budget, "threads": threads}
        plate.load({"bounds": NO_BOUNDS}, **load)
        plate.choose_cells({})
        tables.add(check(plate, log, **load))
        files.add(checksum(plate.moments))
    assert len(tables) == 1
    assert len(files) == 1


@pytest.mark.filterwarnings("ignore:`n_top_genes` > number")
@pytest.mark.parametrize("n_cells", [1, 2, 65, 40_000])
def test_same_bytes_for_any_number_of_cells(tmp_path, log, n_cells):
    x = counts(n_cells)
    plate = Plate(tmp_path, x)
    plate.load({"bounds": NO_BOUNDS})
    plate.choose_cells({}, 1e4)
    if n_cells == 1:  # no dispersion
        for moments in (None, plate.moments):
            with pytest.raises(InputError, match="no gene has a normalised dispersion"):
                plate.hvg(moments=moments)
    else:
        check(plate, log)


def test_moments_of_other_cells_do_not_serve(tmp_path, log):
    plate = Plate(tmp_path, counts(300))
    plate.load({"bounds": NO_BOUNDS | {"min_genes": 5}})
    for bounds, rare in (({"min_genes": 6}, {}), ({"min_genes": 5}, {"drop_rare_genes": 40})):
        plate.choose_cells(bounds, **rare)
        log()
        wanted = plate.hvg(**rare)
        assert plate.hvg(moments=plate.moments, **rare) == wanted
        assert f"{READ}load took the moments for other cells, or other totals" in log()
    plate.choose_cells({"min_genes": 5})
    check(plate, log)
    # Of a store with as many counts per cell, of other genes.
    digest = cells_digest(np.arange(3), np.ones(3, np.int64))
    moments = ShareMoments(np.ones(70), np.ones(70), np.ones(70, np.int64))
    write_moments(tmp_path / "m.parquet", moments, digest)
    assert isinstance(read_moments(tmp_path / "m.parquet", digest, 71), str)
    assert not isinstance(read_moments(tmp_path / "m.parquet", digest, 70), str)


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        ({"unknown": "doublets.filter drops cells later"}, "doublets.filter drops cells later"),
        (
            {"bounds": NO_BOUNDS | {"filter": "total_counts > total_counts.mean()"}},
            "qc.filter (total_counts > total_counts.mean()) may compare the metrics of all cells",
        ),
        ({"bounds": NO_BOUNDS | {"min_genes": 1000}}, "no cell was kept"),
    ],
)
def test_load_says_why_it_takes_no_moments(tmp_path, log, kept, reason):
    plate = Plate(tmp_path, counts(300))
    plate.load(kept)
    said = f"plate p: no moments for hvg, because {reason}"
    assert (said in log()) == (reason != "no cell was kept")
    plate.choose_cells({})
    wanted = plate.hvg()
    log()
    assert plate.hvg(moments=plate.moments) == wanted
    assert f"{READ}{reason}" in log()


def test_other_flavors_read_the_counts(tmp_path, log):
    plate = Plate(tmp_path, counts(300))
    plate.load({"bounds": NO_BOUNDS})
    plate.choose_cells({})
    for flavor in ("cell_ranger", "seurat_v3"):
        options = {"flavor": flavor, "min_cells": 1}
        assert plate.hvg(moments=plate.moments, **options) == plate.hvg(**options)
    assert NOT_READ not in log()


def test_a_store_without_its_counts(tmp_path, log):
    """`hvg` opens none of the chunks of X."""
    plate = Plate(tmp_path, counts(300))
    plate.load({"bounds": NO_BOUNDS})
    plate.choose_cells({})
    wanted = check(plate, log)
    for chunk in (file for file in (plate.store / "X").rglob("c/*") if file.is_file()):
        chunk.write_bytes(bytes(chunk.stat().st_size))
    with pytest.raises(InputError):
        plate.hvg()
    assert plate.hvg(moments=plate.moments) == wanted


def test_the_store_does_not_depend_on_the_moments(tmp_path):
    plate = Plate(tmp_path, counts(300))
    found = set()
    for kept in ({"unknown": "x"}, {"bounds": NO_BOUNDS}, {"bounds": NO_BOUNDS | {"min_genes": 9}}):
        plate.load(kept)
        found.add((checksum(plate.store), (tmp_path / "load.json").read_text()))
    assert len(found) == 1


def test_damaged_moments_are_one_sentence(tmp_path):
    plate = Plate(tmp_path, counts(300))
    plate.load({"bounds": NO_BOUNDS})
    plate.choose_cells({})
    plate.moments.write_bytes(plate.moments.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"moments\.parquet.*"):
        plate.hvg(moments=plate.moments)
