"""Every measured gene of an atlas: from its copy, by the command, and made again where needed."""

from __future__ import annotations

import json
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scatlas as sa
from scatlas.datasets import write_plate
from scatlas.workflow.command_line.main import main
from scatlas.workflow.config.loading import load
from tests.workflow.conftest import PLATES
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

TARGET = "results/by_gene.zarr/zarr.json"
PIECES = {f"by_gene/{plate}" for plate in PLATES}


def kept(plates: dict[str, Path]) -> ad.AnnData:
    """Counts of the cells of the atlas, from the plates' files."""
    parts = [ad.read_h5ad(path) for path in plates.values()]
    return ad.concat([part[part.obs["pass_filter"] == "full"] for part in parts])


def test_all_genes_and_what_makes_them_again(
    built: Project, plates: dict[str, Path], tmp_path: Path, caplog
):
    atlas, cells = built.results / "atlas.zarr", kept(plates)
    values = sa.get.genes(atlas, [*cells.var_names], layer="counts")
    np.testing.assert_array_equal(values, cells.X.toarray())
    whole = ad.read_zarr(atlas)
    np.testing.assert_array_equal(sa.get.genes(atlas, [*whole.var_names]), whole.X.toarray())
    assert "read" not in caplog.text, "no other pass over the cells"

    project = built.copied(tmp_path / "copy")
    project.change(leiden={"resolution": 2}, consensus={"min_plates": 1})
    other = ad.read_h5ad(plates["p2"])
    other.X.data[:] += 1
    write_plate(tmp_path / "p2.h5ad", other)
    project.write_plates(dict(plates) | {"p2": tmp_path / "p2.h5ad"})
    ran = project.build(TARGET)
    assert "select_genes/p1" in ran, "a premise: the atlas has other genes"
    assert ran & PIECES == {"by_gene/p2"}

    unused = next(name for name in cells.var_names if name not in whole.var_names)
    project.change(by_gene={"genes": [unused, "absent"]}, consensus={"min_plates": 2})
    assert project.build(TARGET) & PIECES == PIECES
    facts = json.loads((project.results / "manifests/merge_by_gene.json").read_text())
    genes = pd.read_csv(project.results / "consensus_genes.tsv", sep="\t")["gene"]
    assert facts["n_genes"] == len(genes) + 1
    project.change(by_gene=False)
    assert not project.planned() & {"by_gene", "merge_by_gene"}


def test_the_command(built: Project, plates: dict[str, Path], tmp_path: Path, capsys, monkeypatch):
    project = built.copied(tmp_path / "copy")
    monkeypatch.chdir(project.folder)
    atlas, cells = ad.read_zarr("results/atlas.zarr"), kept(plates)
    unused = next(name for name in cells.var_names if name not in atlas.var_names)
    used = atlas.var_names[3]
    words = ["gene", unused, used, "--config", "my.yaml", "--table", "t/values.tsv", "--add"]
    assert main(words) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["leiden", "cells"]
    leiden = atlas.obs["leiden"]
    counts = cells[:, unused].X.toarray().ravel()
    for row, cluster in zip(rows, [*leiden.cat.categories, "all"], strict=False):
        own = (leiden == cluster).to_numpy() | (cluster == "all")
        numbers = row.split()
        assert numbers[:2] == [cluster, f"{own.sum():,}"]
        assert numbers[2] == f"{100 * (counts[own] > 0).mean():.1f}"
        mean = atlas[own, used].X.toarray().mean(dtype=np.float64)
        assert numbers[5] == f"{mean:.3f}"
    table = pd.read_csv("t/values.tsv", sep="\t", index_col=0, dtype={"leiden": str})
    assert [*table.index] == [*atlas.obs_names]
    assert [*table["leiden"]] == [*leiden]
    np.testing.assert_array_equal(
        table[used].to_numpy(np.float32), atlas[:, used].X.toarray().ravel()
    )
    assert load(Path("my.yaml")).explore.genes == [unused, used]

    words = ["gene", used, "--config", "my.yaml", "--by", "drug", "--counts"]
    assert main([*words, "--figure", "gene.png"]) == 0
    assert "mean count" in capsys.readouterr().out
    assert Path("gene.png").read_bytes().startswith(b"\x89PNG")
    for words, sentence in (
        (["CD3D"], "no plate measures a gene 'CD3D'"),
        ([used, "--by", "drugs"], "obs has no column 'drugs': name one of"),
        ([used, "--atlas", "none.zarr"], "none.zarr: no such file"),
    ):
        assert main(["gene", *words, "--config", "my.yaml"]) == 1
        assert sentence in capsys.readouterr().err
