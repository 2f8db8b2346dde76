"""``scatlas init`` and ``check``: what they see in the files people have, and their errors."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import yaml

from scatlas.datasets import simulate_plate, write_plate
from scatlas.workflow.command_line import COMMON_KEYS, JSON_KEYS
from scatlas.workflow.command_line.main import main
from scatlas.workflow.command_line.plate_facts import (
    kept_by,
    read_facts,
    suggest_bounds,
    unlike_others,
)
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import read_plates
from tests.unit.io.test_text_matrices import split_pipe, write
from tests.workflow import warm

Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Command:
    """Run the command in an empty folder, expect its exit status, and return what it printed.

    Snakemake is forked from a process that has imported it; test_wheel.py starts it as a user does.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", warm.python())
    monkeypatch.setenv("PATH", warm.environment()["PATH"])

    def run(*words: str, status: int = 0) -> str:
        found = main([*words])
        said = capsys.readouterr()
        assert found == status, said
        return said.out if status == 0 else said.out + said.err

    return run


def plate(number: int, **options: int) -> ad.AnnData:
    return simulate_plate(number, **{"n_cells": 150, "n_genes": 300, **options})


def normalised(adata: ad.AnnData) -> sp.csr_matrix:
    return sp.csr_matrix(adata.X.astype(np.float32)).log1p()


def save(**plates: ad.AnnData) -> None:
    """Write files of plates into the working folder."""
    for name, adata in plates.items():
        adata.write_h5ad(f"{name}.h5ad")


def seen() -> tuple[dict, list]:
    """Config and plates that init has written; they are valid together."""
    config = load(Path("atlas.yaml"))
    return yaml.safe_load(Path("atlas.yaml").read_text()), read_plates(config.plates.sheet)


def test_counts_are_found_where_they_are(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for number, place in enumerate(("X", "layers/counts", "raw"), start=1):
        adata = plate(number)
        if place == "layers/counts":
            adata.layers["counts"] = adata.X.copy()
        if place == "raw":
            adata.raw = adata.copy()
        if place != "X":
            adata.X = normalised(adata)
        adata.write_h5ad(tmp_path / f"runs/p{number}.h5ad")
    text = command("init", "runs")
    config, plates = seen()
    assert [plate.counts for plate in plates] == ["X", "layers/counts", "raw"]
    assert "source" not in config
    assert "p2     150    300    layers/counts" in text


def test_one_place_of_all_plates_is_in_the_config(command: Command) -> None:
    for number in (1, 2):
        adata = plate(number)
        adata.layers["counts"], adata.X = adata.X.copy(), normalised(adata)
        save(**{f"p{number}": adata})
    command("init", "p*.h5ad")
    config, plates = seen()
    assert config["source"] == {"counts": "layers/counts"}
    assert [plate.counts for plate in plates] == [None, None]
    assert "is valid: 2 plates" in command("check")


def test_mitochondrial_genes_behind_ids_are_found_or_missed(command: Command) -> None:
    adata = plate(1)
    adata.var["symbol"] = adata.var_names.str.replace("MT-", "mt-")
    adata.var_names = [f"ENSMUSG{i:05}" for i in range(adata.n_vars)]
    save(mouse=adata)
    command("init", "mouse.h5ad")
    qc = seen()[0]["qc"]
    assert (qc["mt_prefix"], qc["gene_names"]) == ("mt-", "symbol")
    assert qc["max_pct_mt"] >= 5

    del adata.var["symbol"]
    save(ids=adata)
    said = "no bound on mitochondrial counts: plate ids has no genes that begin with MT- or mt-"
    assert said in command("init", "ids.h5ad", "--force")
    assert "max_pct_mt" not in seen()[0]["qc"]
    assert "plate ids has no genes that begin with MT- or mt-" in Path("atlas.yaml").read_text()


@pytest.mark.parametrize(
    ("first", "second", "shared", "setting"),
    [(slice(300), slice(5, 300), 295, "intersect"), (slice(200), slice(120, 300), 80, "union")],
)
def test_genes_that_differ_are_intersected_or_united(
    command: Command, first: slice, second: slice, shared: int, setting: str
) -> None:
    save(p1=plate(1)[:, first].copy(), p2=plate(2)[:, second].copy())
    said = command("init", ".")
    assert f"all plates share {shared} genes of 300 that any has: genes: {setting}" in said
    config = seen()[0]
    assert config["genes"] == setting
    # Half of all genes that the atlas may have.
    assert config["hvg"]["n_top_genes"] == (shared if setting == "intersect" else 300) // 2
    text = Path("atlas.yaml").read_text()
    Path("atlas.yaml").write_text(text.replace(f"genes: {setting}", "genes: same"))
    assert f"set genes: {setting}" in command("check", status=1)


def expected(adata: ad.AnnData) -> ad.AnnData:
    """Expected counts, of which a third are fractional."""
    adata.X = adata.X.astype(np.float32)
    adata.X.data[::3] += 0.25
    return adata


def test_expected_counts_are_seen_and_rounded(command: Command, tmp_path: Path) -> None:
    for number in (1, 2):
        expected(plate(number)).write_h5ad(tmp_path / f"p{number}.h5ad")
    said = command("init", "p1.h5ad", "p2.h5ad")
    assert "p1.h5ad: X holds expected counts, which are fractional: they will be rounded" in said
    config, plates = seen()
    assert config["source"] == {"counts": "X", "fractional": "round"}
    assert plates[0].fractional is None
    assert "is valid: 2 plates" in command("check")

    text = Path("atlas.yaml").read_text()
    Path("atlas.yaml").write_text(text.replace("  fractional: round\n", ""))
    errors = command("check", status=1).splitlines()
    assert [line.partition(": if")[0] for line in errors] == [
        f"error: p{number}.h5ad: X of plate 'p{number}' is fractional" for number in (1, 2)
    ]
    assert "write 'source: {fractional: round}' in the config" in errors[0]


def test_expected_counts_of_one_plate_are_a_column(command: Command) -> None:
    save(p1=plate(1), p2=expected(plate(2)))
    command("init", "p1.h5ad", "p2.h5ad")
    config, plates = seen()
    assert config["source"] == {"counts": "X"}
    assert [row.fractional for row in plates] == ["refuse", "round"]
    assert "see the column fractional of plates.tsv" in Path("atlas.yaml").read_text()
    assert "is valid: 2 plates" in command("check")


def test_genes_of_different_kinds_are_refused(command: Command) -> None:
    adata = plate(2)
    adata.var_names = [f"ENSG{i:05}" for i in range(adata.n_vars)]
    save(p1=plate(1), p2=adata)
    text = command("init", "p1.h5ad", "p2.h5ad", status=1)
    assert text.startswith("error: p2.h5ad: it shares no gene with p1.h5ad")
    assert not Path("atlas.yaml").exists()


def write_mtx(folder: Path, adata: ad.AnnData) -> None:
    folder.mkdir(parents=True)
    with gzip.open(folder / "matrix.mtx.gz", "wb") as file:
        scipy.io.mmwrite(file, sp.csc_matrix(adata.X.T.astype(int)))
    features = pd.DataFrame({"id": adata.var_names, "name": adata.var_names})
    features["type"] = "Gene Expression"
    options = {"sep": "\t", "header": False, "index": False}
    features.to_csv(folder / "features.tsv.gz", **options)
    pd.DataFrame(adata.obs_names).to_csv(folder / "barcodes.tsv.gz", **options)


def test_a_folder_of_cell_ranger_is_read_by_its_first_cells(tmp_path: Path) -> None:
    adata = plate(1)
    write_mtx(tmp_path / "run1", adata)
    facts, genes = read_facts("run1", str(tmp_path / "run1"))
    assert (facts.n_cells, facts.n_genes, facts.counts) == (150, 300, "X")
    assert list(genes) == list(adata.var_names)
    totals = np.asarray(adata.X.sum(1)).ravel()
    np.testing.assert_array_equal(facts.metrics["total_counts"], totals)
    adata.write_h5ad(tmp_path / "run1.h5ad")
    other, _ = read_facts("run1", str(tmp_path / "run1.h5ad"))
    pd.testing.assert_frame_equal(facts.metrics, other.metrics)
    assert facts.n_mt == other.n_mt > 0


def test_names_come_from_what_differs(command: Command, tmp_path: Path) -> None:
    for number in (1, 2):
        write_mtx(tmp_path / f"runs/s{number}/outs/filtered_feature_bc_matrix", plate(number))
    command("init", "runs/*/outs/filtered_feature_bc_matrix")
    assert [row.plate for row in seen()[1]] == ["s1", "s2"]
    assert seen()[1][0].n_cells == 150


def test_samples_of_one_folder_of_split_pipe_are_plates(command: Command, tmp_path: Path) -> None:
    """The path is quoted as YAML needs it."""
    write(tmp_path / "run: 2, new/all-sample/DGE_filtered", split_pipe())
    said = command("init", "run: 2, new/all-sample")
    assert "each of its 2 samples is a plate: a, b_2" in said
    place = {"path": "run: 2, new/all-sample/DGE_filtered", "by": "sample"}
    assert yaml.safe_load(Path("atlas.yaml").read_text())["plates"] == place
    assert "which found 2 plates with 30 cells" in Path("atlas.yaml").read_text()
    assert not Path("plates.tsv").exists()
    assert "2 plates" in command("check")


def test_an_unfiltered_matrix_is_noticed(command: Command, tmp_path: Path) -> None:
    adata = plate(1)
    empty = sp.csr_matrix((1000, adata.n_vars), dtype=adata.X.dtype)
    names = [*adata.obs_names, *(f"empty{i}" for i in range(1000))]
    whole = sp.vstack([adata.X, empty], "csr")
    ad.AnnData(whole, obs=pd.DataFrame(index=names), var=adata.var[[]]).write_h5ad(
        tmp_path / "raw.h5ad"
    )
    text = command("init", "raw.h5ad")
    assert "87% of the barcodes have fewer than 10 genes: this matrix is not filtered" in text
    assert seen()[0]["qc"]["min_genes"] > 10


def test_an_unfiltered_matrix_of_few_genes_has_a_bound_of_its_own(command: Command) -> None:
    rng = np.random.default_rng(0)
    rate = np.full(1000, 0.03)
    rate[::10] = 1.2
    counts = sp.csr_matrix(rng.poisson(rate[:, None] * np.ones(80)).astype(np.float32))
    ad.AnnData(counts).write_h5ad("raw.h5ad")
    assert "90% of the barcodes have fewer than 10 genes" in command("init", "raw.h5ad")
    assert 10 <= seen()[0]["qc"]["min_genes"] <= 50
    cells = counts[::10]
    cells.data[:] = 1
    same = sp.vstack([cells[[0] * 30], sp.csr_matrix((90, 80), dtype=np.float32)])
    ad.AnnData(same.tocsr()).write_h5ad("equal.h5ad")
    command("init", "equal.h5ad", "--force")
    assert 10 <= seen()[0]["qc"]["min_genes"] <= 20, "cells of equal numbers of genes suggest none"


def test_cells_of_another_plate_are_named(command: Command) -> None:
    whole = plate(1)
    save(all=whole, good=whole[whole.obs_names[20:80]].copy(), other=plate(2))
    sentence = (
        "plate good: nearly all of its cells are on plate all, too, with the same names and "
        "numbers of genes: remove one of the two from the plate sheet"
    )
    assert sentence in command("init", "all.h5ad", "good.h5ad", "other.h5ad").splitlines()
    assert sentence in command("check").splitlines()
    told = json.loads(command("check", "--json"))
    assert told["same_cells"] == [{"message": sentence, "plate": "good"}]


def metrics(
    middle: float, sd: float, *, pct: float = 9, n: int = 4000, broken: float = 0.02
) -> pd.DataFrame:
    """Metrics of a run's cells; the broken ones have few genes and are half mitochondrial."""
    rng = np.random.default_rng(n)
    is_broken = rng.random(n) < broken
    genes = np.expm1(np.where(is_broken, rng.normal(3.5, 0.8, n), rng.normal(middle, sd, n)))
    mt = np.where(is_broken, rng.uniform(20, 95, n), rng.normal(pct, 1.5, n))
    names = ["total_counts", "n_genes_by_counts", "pct_counts_mt"]
    return pd.DataFrame(dict(zip(names, (genes * 3, genes, mt), strict=True)))


def test_bounds_are_those_of_the_widest_plate() -> None:
    deep, shallow = metrics(8, 0.3, broken=0), metrics(7, 0.2, broken=0)
    options = {"with_mt": True, "n_genes": 20_000}
    bounds = suggest_bounds([deep, shallow], **options)
    # Five deviations are 3.37 standard deviations: exp(7 - 0.67) and exp(8 + 1.01).
    assert bounds["min_genes"] == pytest.approx(np.exp(6.33), rel=0.05)
    assert bounds["max_genes"] == pytest.approx(np.exp(9.01), rel=0.05)
    assert bounds["max_pct_mt"] == 17  # 8 points above 9
    assert kept_by(deep, bounds)[0].mean() > 0.98
    # Above the genes of the files it could not act.
    assert "max_genes" not in suggest_bounds([deep], with_mt=True, n_genes=6_000)
    floors = suggest_bounds([deep, shallow], **options, floors=True)
    assert set(floors) == {"min_genes", "min_counts", "max_pct_mt"}
    assert "max_pct_mt" not in suggest_bounds([deep], with_mt=False, n_genes=20_000)
    # Without a spread there is no bound.
    flat = deep.assign(n_genes_by_counts=1200, pct_counts_mt=0)
    assert suggest_bounds([deep, flat], **options) == suggest_bounds([deep], **options)
    assert set(suggest_bounds([flat], **options)) == {"min_counts", "max_counts", "max_pct_mt"}


def test_a_damaged_run_and_a_tiny_one_shape_no_bound() -> None:
    runs = {f"r{i}": metrics(7.5 + 0.1 * i, 0.35, n=3000 + i) for i in range(4)}
    options = {"with_mt": True, "n_genes": 20_000, "floors": True}
    wanted = suggest_bounds(runs.values(), **options)
    six = {**runs, "bad": metrics(7.6, 0.4, broken=0.6), "tiny": metrics(7.6, 0.9, n=60)}
    named = unlike_others(six)
    assert list(named) == ["bad"]
    assert "genes per cell (usual: 1,9" in named["bad"]
    assert "mitochondrial shares up to 100% (usual: 17%)" in named["bad"]
    found = suggest_bounds([run for name, run in six.items() if name not in named], **options)
    assert found == wanted
    keep, bounds = kept_by(six["bad"], found | {"mads": 5})
    assert keep.mean() < 0.42
    assert bounds.loc["all", "max_pct_mt"] <= 17
    # Sequenced three times as deeply: other cells, but no damaged ones.
    assert unlike_others({**runs, "deep": metrics(8.8, 0.4), "tiny": six["tiny"]}) == {}
    # Two plates have no majority, nor have two of each kind.
    assert unlike_others({"r1": runs["r1"], "bad": six["bad"]}) == {}
    assert [*unlike_others({"r1": runs["r1"], "r2": runs["r2"], "bad": six["bad"]})] == ["bad"]
    assert unlike_others(dict.fromkeys("ab", runs["r1"]) | dict.fromkeys("cd", six["bad"])) == {}


def test_several_plates_get_bounds_of_their_own(command: Command) -> None:
    bad = plate(3)
    mt = bad.var_names.str.startswith("MT-")
    broken = np.arange(bad.n_obs) % 5 > 1
    counts = bad.X.toarray()
    counts[np.ix_(broken, ~mt)] *= (
        np.random.default_rng(0).random((broken.sum(), (~mt).sum())) < 0.05
    )
    bad.X = sp.csr_matrix(counts)
    empty = plate(5)
    empty.X = sp.csr_matrix(np.random.default_rng(1).binomial(empty.X.toarray().astype(int), 0.01))
    save(p1=plate(1), p2=plate(2), p3=bad, p4=plate(4), p5=empty)
    said = command("init", *(f"p{number}.h5ad" for number in range(1, 6)))
    assert "p3.h5ad: it is unlike the other plates: " in said
    assert re.search(r"p3.h5ad: only [34]\d% of its cells would be kept", said)
    assert (
        "p5.h5ad: none of its cells would be kept, which stops a run: leave out this file" in said
    )
    qc = seen()[0]["qc"]
    assert (qc["mads"], qc["by"]) == (5, "plate")
    assert not {"max_genes", "max_counts"} & set(qc)
    assert "the widest of all plates but p3, p5 (unlike the others)" in " ".join(
        Path("atlas.yaml").read_text().replace("# ", "").split()
    )
    command("init", "p1.h5ad", "--force")
    assert "mads" not in seen()[0]["qc"]


def test_nothing_is_replaced_without_force(command: Command, tmp_path: Path) -> None:
    plate(1).write_h5ad(tmp_path / "p1.h5ad")
    Path("plates.tsv").write_text("mine")
    text = command("init", "p1.h5ad", status=1)
    assert "plates.tsv: it exists already" in text
    assert Path("plates.tsv").read_text() == "mine"
    command("init", "p1.h5ad", "--force")
    assert seen()[1][0].path == "p1.h5ad"


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    adata = plate(1)
    adata.write_h5ad(folder / "p1.h5ad")
    shutil.copy(folder / "p1.h5ad", folder / "copy.h5ad")
    (folder / "link.h5ad").symlink_to("p1.h5ad")
    (folder / "two").mkdir()
    shutil.copy(folder / "p1.h5ad", folder / "two/s.h5ad")
    write_plate(folder / "two/s.h5", plate(2))
    for name in ("filtered_feature_bc_matrix", "raw_feature_bc_matrix"):
        shutil.copy(folder / "p1.h5ad", folder / f"{name}.h5")
    (folder / "empty").mkdir()
    (folder / "deep/run/outs").mkdir(parents=True)
    shutil.copy(folder / "p1.h5ad", folder / "deep/run/outs/filtered_feature_bc_matrix.h5")
    (folder / "notes.txt").write_text("a text")
    adata.X = normalised(adata)
    adata.write_h5ad(folder / "normalised.h5ad")
    return folder


@pytest.mark.parametrize(
    "files, sentence",
    [
        (["notes.txt"], "notes.txt: neither an HDF5 file nor a Zarr store"),
        (
            ["empty"],
            "empty: the folder is empty: give h5ad, Zarr, Loom, Cell Ranger's .h5 or a folder",
        ),
        (["deep"], "/deep/*/*/filtered_feature_bc_matrix.h5'"),
        (["nowhere.h5ad"], "nowhere.h5ad: no such file or folder: correct the path"),
        (["*.loom"], "*.loom: no path matches this pattern: correct it (patterns start in "),
        (["C:\\data\\p1.h5ad"], "p1.h5ad: no such file: write a path of Windows as Linux does"),
        (["p1.h5ad", "link.h5ad"], "p1.h5ad: the same data as "),
        (["p1.h5ad", "copy.h5ad"], "p1.h5ad: it has the same counts as "),
        (["two/s.h5ad", "two/s.h5"], "s.h5ad: plate 's', which "),
        (["*_feature_bc_matrix.h5"], "raw_feature_bc_matrix.h5: the same sample as "),
        (["normalised.h5ad"], "no element holds raw counts: X holds fractional values; give a"),
    ],
)
def test_bad_arguments_are_one_sentence(
    command: Command, odd_files: Path, tmp_path: Path, files: list[str], sentence: str
) -> None:
    given = [name if name.startswith("C:") else str(odd_files / name) for name in files]
    text = command("init", *given, status=1)
    assert text.startswith("error: ")
    assert sentence in text
    assert text.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_check_names_each_plate_that_cannot_be_used(command: Command, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        plate(number).write_h5ad(tmp_path / f"p{number}.h5ad")
    command("init", "p*.h5ad")
    adata = plate(1)
    adata.layers["umis"], adata.X = adata.X.copy(), normalised(adata)
    adata.write_h5ad(tmp_path / "p1.h5ad")
    size = (tmp_path / "p3.h5ad").stat().st_size
    os.truncate(tmp_path / "p3.h5ad", 4000)
    found = command("check", status=1).splitlines()
    assert found == [
        (
            "error: p1.h5ad: X of plate 'p1' holds fractional values, but layers/umis holds raw "
            "counts: correct source.counts, or the column counts"
        ),
        (
            f"error: p3.h5ad: the file is truncated (4,000 of {size:,} bytes): copy or download it "
            "again"
        ),
    ]
    told = json.loads(command("check", "--json", status=1))
    assert told["errors"] == [
        {"message": line.removeprefix("error: "), "plate": name}
        for line, name in zip(found, ("p1", "p3"), strict=True)
    ]
    assert (told["exit_code"], told["n_plates"], told["left_out"]) == (1, 3, [])
    text = Path("atlas.yaml").read_text()
    Path("atlas.yaml").write_text(
        text.replace("plates: plates.tsv", "plates: {sheet: plates.tsv, on_error: skip}")
    )
    said = command("check")
    assert said.count("will be left out: ") == 2
    assert "is valid: 3 plates" in said


def test_check_finds_the_columns_that_steps_would_miss(command: Command, tmp_path: Path) -> None:
    """A label of the sheet and a column of some plates are columns of those plates alone."""
    for number in (1, 2):
        adata = plate(number)
        if number == 1:
            adata.obs["tissue"] = "liver"
        adata.write_h5ad(tmp_path / f"p{number}.h5ad")
    command("init", "p*.h5ad")
    sheet, config = Path("plates.tsv"), Path("atlas.yaml")
    header, *rows = sheet.read_text().splitlines()
    rows = [f"{row}\tD{number}" for number, row in enumerate(rows)]
    sheet.write_text("\n".join([f"{header}\tdonor", *rows]))
    text = config.read_text()
    Path("labels.tsv").write_text("cluster,cell_type\n0,T cells\n")
    known = (
        "markers: {by: [leiden, donor, cell_type, plate]}\nintegrate: {key: [donor, plate]}\n"
        "pseudobulk: {by: [cell_type, drug]}\nlabels: labels.tsv\n"
        "explore: {columns: [leiden, donor, cell_type]}\n"
        "report: {colors: [leiden, pct_counts_mt]}\n"
    )
    config.write_text(text + known)
    assert "is valid: 2 plates" in command("check")
    Path("labels.tsv").unlink()
    text = re.sub("min_genes: .*", "min_genes: 100000", text)
    config.write_text(
        re.sub("max_pct_mt: .*", "max_pct_mt: 0.15", text).replace("by: plate", "by: vial")
        + "labels: labels.tsv\nmarkers: {by: [leiden, cel_line]}\nintegrate: {key: [tissue]}\n"
        "pseudobulk: {by: [leiden, donor, dose]}\nreport: {colors: [celltype]}\n"
        "subset: {by: [vial]}\nconsensus: {also: [MT-CO1, mt-co1]}\nby_gene: {genes: [Nope]}\n"
    )
    colour, gene, percent, *said, last = command("check", status=1).splitlines()
    assert "write 15 if you mean 15%" in percent
    assert colour.startswith("no plate has an obs column 'celltype', which report.colors names")
    columns = ", ".join(plate(1).obs.columns)
    which = "an obs column {!r}, which {} names; {}plate {} has {}"
    hints = ("did you mean cell_line? ",)
    n_genes = plate(1).n_vars
    few = f"has {n_genes:,} genes, so it would keep no cell: lower it"
    assert said == [
        *(f"error: qc.min_genes is 100,000, but plate {name} {few}" for name in ("p1", "p2")),
        "error: labels.tsv: there is no such table of labels: write it with scatlas label",
    ] + [
        f"error: {how_many} {which.format(*rest)}"
        for how_many, *rest in (
            ("no plate has", "vial", "qc.by", "", "p1", f"{columns}, tissue"),
            ("no plate has", "cel_line", "markers.by", hints[0], "p1", f"{columns}, tissue"),
            ("no plate has", "dose", "pseudobulk.by", "", "p1", f"{columns}, tissue"),
            ("no plate has", "vial", "subset.by", "", "p1", f"{columns}, tissue"),
            ("1 of 2 plates have", "tissue", "integrate.key", "", "p2", columns),
        )
    ]
    asked = (
        "no plate measures a gene 'mt-co1', which consensus.also names; close names are 'MT-CO1'"
    )
    assert last.startswith(f"error: {asked}")
    assert gene.startswith("no plate measures a gene 'Nope', which by_gene.genes names; no name")
    assert json.loads(command("check", "--json", status=1))["notices"] == [colour, gene, percent]


def test_commands_without_a_config_say_what_to_do(command: Command) -> None:
    for name in ("check", "run", "status", "open"):
        text = command(name, status=1)
        assert (
            text == "error: atlas.yaml: there is no such config: write it with scatlas init FILES\n"
        )
    for name in ("check", "status"):
        told = json.loads(command(name, "--json", status=1))
        assert told.keys() == {*COMMON_KEYS, *JSON_KEYS[name]}
        assert [error["message"] for error in told["errors"]] == [text.strip()[len("error: ") :]]
        assert {told[key] for key in JSON_KEYS[name]} == {None}


def test_defaults_of_another_workflow_are_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text("samples: samples.tsv")
    plate(1).write_h5ad(tmp_path / "p1.h5ad")
    text = command("init", "p1.h5ad", status=1)
    assert "config/config.yaml: Snakemake would read this file as defaults of the atlas" in text


def test_sentences_of_snakemake_are_shown(command: Command, tmp_path: Path) -> None:
    plate(1).write_h5ad(tmp_path / "p1.h5ad")
    command("init", "p1.h5ad")
    Path("results").touch()
    for name in ("check", "status"):
        sentence = (
            "atlas.yaml: Snakemake cannot plan the run: outdir: results is a file, not a folder: "
            "name another"
        )
        assert command(name, status=1) == f"error: {sentence}\n"
        told = json.loads(command(name, "--json", status=1))
        assert told["errors"] == [{"message": sentence, "plate": None}]
