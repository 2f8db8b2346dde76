"""Folders of Cell Ranger, by a pattern in place of a plate sheet."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from tests.workflow.conftest import CONFIG
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow


def write_folder(folder: Path, adata: ad.AnnData) -> None:
    folder.mkdir(parents=True)
    (folder / "barcodes.tsv").write_text("".join(f"{name}\n" for name in adata.obs_names))
    (folder / "genes.tsv").write_text("".join(f"id {name}\t{name}\n" for name in adata.var_names))
    x = adata.X.tocsr()
    cells = np.repeat(np.arange(adata.n_obs), np.diff(x.indptr))
    entries = np.column_stack([x.indices + 1, cells + 1, x.data.astype(int)])
    head = "%%MatrixMarket matrix coordinate integer general"
    size = f"{adata.n_vars} {adata.n_obs} {x.nnz}"
    np.savetxt(folder / "matrix.mtx", entries, "%d", header=f"{head}\n{size}", comments="")


def test_folders_of_cell_ranger_are_plates(tmp_path: Path, plates: dict[str, Path]):
    place = {"plates": "runs/*/outs", "qc": {}}
    project = Project(tmp_path / "project", CONFIG | place)
    sources = [ad.read_h5ad(plates[name]) for name in ("p1", "p2")]
    for name, adata in zip(("s9", "s10"), sources, strict=True):
        write_folder(project.folder / f"runs/{name}/outs", adata)
    assert project.build("--until", "load") == {"load/s9", "load/s10"}
    for name, adata in zip(("s9", "s10"), sources, strict=True):
        facts = json.loads((project.results / f"manifests/load/{name}.json").read_text())
        assert [facts["n_cells"], facts["total_counts"]] == [adata.n_obs, int(adata.X.sum())]

    shutil.rmtree(project.folder / "runs/s9/outs")
    write_folder(project.folder / "runs/s9/outs", sources[1])
    assert project.build("--until", "load") == {"load/s9"}
