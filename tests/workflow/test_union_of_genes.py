"""``genes: union``: plates that lack genes make the atlas of plates with zeros in their place."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.datasets import simulate_plate
from scatlas.export import to_h5ad
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

CONFIG = {
    "plates": "plates.tsv",
    # A gene that no cell of a plate expresses is ranked there neither with zeros nor without them.
    "qc": {"filter": "pass_filter == 'full'", "min_cells": 1},
    "hvg": {"n_top_genes": 300},
    "consensus": {"min_plates": 1},
    "pca": {"n_comps": 10},
    "subset": {"n_cells": 300},
    "map": {"cells": "sample"},
    "markers": {"by": ["cell_line"], "n_genes": 20},
    "pseudobulk": {"by": ["cell_line"]},
}
TARGETS = ("atlas", "results/tables/markers.tsv", "results/pseudobulk.h5ad")


def unequal(plates: dict[str, ad.AnnData]) -> dict[str, ad.AnnData]:
    """Each plate without some genes, with a column of var that two plates share; the second plate
    has its genes in another order."""
    rng = np.random.default_rng(0)
    cut = {}
    for name, plate in plates.items():
        genes = np.flatnonzero(rng.random(plate.n_vars) < 0.9)
        genes = genes if name == "p1" else rng.permutation(genes)
        cut[name] = plate[:, genes].copy()
        cut[name].var = pd.DataFrame(index=cut[name].var_names)
        cut[name].var["gene_id"] = "ID" + cut[name].var_names
        cut[name].var["level"] = np.arange(cut[name].n_vars)  # other values on each plate
    return cut


def with_zeros(plates: dict[str, ad.AnnData]) -> dict[str, ad.AnnData]:
    """The plates of ``anndata.concat(join="outer", fill_value=0)``."""
    order = list(dict.fromkeys(gene for plate in plates.values() for gene in plate.var_names))
    bare = {name: ad.AnnData(p.X, p.obs, p.var[[]]) for name, p in plates.items()}
    whole = ad.concat(bare, join="outer", fill_value=0, label="which", index_unique="@")
    filled = {}
    for name, plate in plates.items():
        part = whole[(whole.obs["which"] == name).to_numpy(), order].copy()
        part.obs = plate.obs.copy()
        part.var["gene_id"] = "ID" + part.var_names
        filled[name] = part
    return filled


def build(folder: Path, plates: dict[str, ad.AnnData], genes: str, also: list[str]) -> Project:
    folder.mkdir()
    paths = {name: folder / f"{name}.h5ad" for name in plates}
    for name, plate in plates.items():
        plate.write_h5ad(paths[name])
    consensus = CONFIG["consensus"] | {"also": also}
    project = Project(folder / "project", CONFIG | {"genes": genes, "consensus": consensus})
    project.write_plates(paths)
    project.build(*TARGETS)
    return project


def test_absent_genes_are_zeros(tmp_path: Path):
    plates = unequal({f"p{i}": simulate_plate(i, n_cells=250, n_genes=800) for i in (1, 2)})
    # Genes of both plates and of one, of which few vary.
    also = sorted({*plates["p1"].var_names[:20], *plates["p2"].var_names[:20]})
    found = build(tmp_path / "union", plates, "union", also)
    expected = build(tmp_path / "zeros", with_zeros(plates), "same", also)

    ours, theirs = (ad.read_zarr(p.results / "atlas.zarr") for p in (found, expected))
    lacking = {name: ~ours.var_names.isin(plate.var_names) for name, plate in plates.items()}
    assert all(mask.any() for mask in lacking.values())
    assert (ours.X != theirs.X).nnz == 0
    for name, mask in lacking.items():
        assert ours[ours.obs["plate"] == name, mask].X.nnz == 0
    pd.testing.assert_frame_equal(ours.obs, theirs.obs)
    pd.testing.assert_frame_equal(ours.var, theirs.var, check_names=False)
    named = ours.var_names.isin(also)
    assert named.sum() == len(also) > 20
    # The others are those of any plate, which min_plates asks for.
    assert (ours.var["also"] == (ours.var["highly_variable_nbatches"] == 0)).all()
    assert ours.var["also"].any()
    assert not ours.var["also"][~named].any()
    assert ours.var["gene_id"].tolist() == [f"ID{gene}" for gene in ours.var_names]
    assert "level" not in ours.var
    np.testing.assert_array_equal(ours.obsm["X_pca"], theirs.obsm["X_pca"])
    np.testing.assert_array_equal(ours.varm["PCs"], theirs.varm["PCs"])

    for name in ("consensus_genes.tsv", "tables/markers.tsv"):
        assert (found.results / name).read_text() == (expected.results / name).read_text(), name
    ours, theirs = (ad.read_h5ad(p.results / "pseudobulk.h5ad") for p in (found, expected))
    assert (ours.X != theirs.X).nnz == 0
    pd.testing.assert_frame_equal(ours.obs, theirs.obs)
    pd.testing.assert_frame_equal(ours.var, theirs.var, check_names=False)

    exports = []
    for project in (found, expected):
        path = tmp_path / f"{len(exports)}.h5ad"
        to_h5ad(project.results / "atlas.zarr", path, genes="all", counts=True)
        exports.append(ad.read_h5ad(path))
    ours, theirs = exports
    assert ours.n_vars == len(set().union(*(plate.var_names for plate in plates.values())))
    assert (ours.X != theirs.X).nnz == 0
    assert (ours.layers["counts"] != theirs.layers["counts"]).nnz == 0
    pd.testing.assert_frame_equal(ours.var, theirs.var, check_names=False)

    # As with `intersect`, a plate that changes no consensus gene leaves the others as they are.
    assert found.build(*TARGETS) == set()
    found.change(consensus={"also": ["nowhere"]})
    failed = found.run("atlas")
    assert "consensus.also: no plate measures a gene 'nowhere'" in failed.stdout
