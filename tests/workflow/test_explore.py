"""explore.html of a run: the cells of all plates, and what reruns its rules."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.datasets import write_plate
from tests.workflow.conftest import PLATES
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def explored(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    copy = built.copied(tmp_path_factory.mktemp("explore"))
    known = pd.read_csv(copy.results / "consensus_genes.tsv", sep="\t")["gene"]
    named = tmp_path_factory.mktemp("list") / "genes.txt"
    named.write_text(f"{next(g for g in counts_of(copy).var_names[5:] if g not in {*known})}\n\n")
    copy.change(explore={"n_genes": 40, "genes": str(named)})
    assert copy.build() == {"explore", "report"}, "the report shows the config"
    return copy


def blocks_of(project: Project) -> dict[str, bytes]:
    text = (project.results / "explore.html").read_text()
    found = re.findall(r'id="block-([^"]+)">([^<]*)<', text)
    return {name: zlib.decompress(base64.b64decode(block), -15) for name, block in found}


def meta_of(project: Project) -> dict:
    return json.loads(blocks_of(project)["meta"])


def counts_of(project: Project) -> ad.AnnData:
    """Counts of the kept cells of all plates, divided by the size factors."""
    parts = []
    for plate in PLATES:
        cells = pd.read_parquet(project.results / f"plates/{plate}/size_factors.parquet")
        part = ad.read_zarr(project.results / f"plates/{plate}/counts.zarr")[cells["row"]].copy()
        part.X = sp.diags(1 / cells["size_factor"].to_numpy()) @ part.X
        parts.append(part)
    return ad.concat(parts)


def test_the_page_has_all_cells_and_the_markers(explored: Project):
    blocks = blocks_of(explored)
    meta = json.loads(blocks["meta"])
    atlas = ad.read_zarr(explored.results / "atlas.zarr")
    assert meta["n_cells"] == atlas.n_obs > 400
    assert meta["n_points"] == 300, "those of the sample"
    columns = {column["name"]: column for column in meta["columns"]}
    assert list(columns)[:2] == ["leiden", "plate"]
    assert columns["plate"]["levels"] == list(PLATES)
    assert "donor" in columns
    markers = pd.read_csv(explored.results / "tables/markers.tsv", sep="\t", dtype={"group": str})
    best = set(markers["names"][markers["rank"] <= 10])
    genes = [gene["name"] for gene in meta["genes"]]
    assert best < set(genes), "in the atlas or not"
    assert len(genes) == max(40, len(best) + 1)
    assert len({*genes} - {*atlas.var_names, *best}) == 1, "as named"
    assert meta["markers"]
    assert [len(names) for _, _, names in meta["markers"]] == [4] * len(meta["markers"])

    counts = counts_of(explored)
    assert len(json.loads(blocks["measured"])) == counts.n_vars - len(genes)
    sample = ad.read_h5ad(explored.results / "umap.h5ad")
    for i, gene in enumerate(genes):
        exact = np.log1p(counts[:, gene].X.toarray().ravel())[sample.obs["atlas_row"]]
        values = np.frombuffer(blocks[f"gene-{i}"], np.uint8)
        assert ((values > 0) == (exact > 0)).all(), gene
        high = meta["genes"][i]["high"]
        assert np.abs((values - 1.0).clip(0) / 254 * high - exact).max() <= high / 200, gene


def test_what_the_config_asks_reruns_what_it_concerns(explored: Project, tmp_path: Path):
    copy = explored.copied(tmp_path / "copy")
    copy.change(explore={"n_genes": 40, "points": 100, "columns": ["leiden", "donor"]})
    assert copy.build() == {"explore", "report"}, "and nothing else"
    assert meta_of(copy)["n_points"] == 100
    assert [column["name"] for column in meta_of(copy)["columns"]] == ["leiden", "donor"]
    copy.change(explore={"columns": ["nothing"]})
    failed = copy.run("results/explore.html")
    assert failed.returncode != 0
    assert "has no obs column 'nothing', which explore.columns names" in failed.stdout


def test_other_labels_of_a_plate_make_another_page(
    explored: Project, plates: dict[str, Path], tmp_path: Path
):
    copy = explored.copied(tmp_path / "copy")
    adata = ad.read_h5ad(plates["p2"])
    kept = np.flatnonzero(adata.obs["pass_filter"] == "full")
    lines = adata.obs["cell_line"].copy()
    first = kept[0]
    other = next(i for i in kept if lines.iloc[i] != lines.iloc[first])
    lines.iloc[[first, other]] = lines.iloc[[other, first]].to_numpy()
    adata.obs["cell_line"] = lines
    write_plate(tmp_path / "p2.h5ad", adata)
    copy.write_plates(plates | {"p2": tmp_path / "p2.h5ad"})
    before = copy.outputs()

    assert {"load/p2", "atlas", "explore"} <= copy.build("results/explore.html")

    assert copy.outputs()["explore.html"] != before["explore.html"]


def test_a_sample_without_markers_and_its_map_before_mixing(explored: Project, tmp_path: Path):
    copy = explored.copied(tmp_path / "copy")
    copy.config |= {"map": {"cells": "sample"}, "markers": {"by": []}}
    copy.change(integrate={"key": ["plate"]})
    copy.build("results/explore.html")
    meta = meta_of(copy)
    assert meta["n_cells"] == meta["n_points"] == 300
    assert meta["markers"] == []
    assert meta["maps"] == ["UMAP", "UMAP before Harmony"]
