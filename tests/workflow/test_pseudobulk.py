"""Sums by group: correct, only on request, and again only for a changed plate."""

from __future__ import annotations

import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.datasets import write_plate
from tests.helpers.h5ad_trees import assert_as_anndata_writes
from tests.workflow.conftest import PLATES
from tests.workflow.runs import Project

pytestmark = pytest.mark.workflow

BY = ["drug", "cell_line"]
TARGET = "results/pseudobulk.h5ad"


def by_hand(plates: dict[str, Path]) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """Counts and number of cells of each group, computed from the plates' files."""
    rows, sums = {}, {}
    for plate, path in plates.items():
        adata = ad.read_h5ad(path)
        adata = adata[adata.obs["pass_filter"] == "full"]
        groups = adata.obs.reset_index().groupby(BY, observed=True).indices
        for (drug, line), cells in groups.items():
            key = plate, f"{drug}_{line}"
            rows[key] = {"drug": drug, "cell_line": line, "n": cells.size}
            sums[key] = np.asarray(adata.X[cells].astype(np.int64).sum(axis=0)).ravel()
    return pd.DataFrame(rows).T, sums


def test_sums_of_the_kept_cells_and_what_makes_them_run_again(
    tmp_path: Path, built: Project, plates: dict[str, Path]
):
    project = built.copied(tmp_path / "copy")
    project.change(pseudobulk={"by": BY})
    assert project.build(TARGET) == {*(f"pseudobulk/{p}" for p in PLATES), "merge_pseudobulk"}

    found = ad.read_h5ad(project.folder / TARGET)
    table, sums = by_hand(plates)
    assert found.shape == (len(sums), 600)
    assert found.X.dtype == np.int64
    assert found.obs["plate"].tolist() == [plate for plate, _ in table.index]
    assert found.obs["donor"].tolist() == [f"donor of {plate}" for plate, _ in table.index]
    assert found.obs_names.is_unique
    for i, (plate, name) in enumerate(table.index):
        row, key = found.obs.iloc[i], (plate, name)
        assert found.obs_names[i] in {name, f"{name}-{plate}"}
        assert [row["drug"], row["cell_line"]] == [table.loc[key, c] for c in BY]
        assert row["n_obs_aggregated"] == table.loc[key, "n"]
        np.testing.assert_array_equal(found.X[i].toarray()[0], sums[key])
    assert found.var_names.tolist() == ad.read_h5ad(plates["p1"]).var_names.tolist()
    assert_as_anndata_writes(project.folder / TARGET, tmp_path / "theirs.h5ad")
    assert not list(project.results.glob(".pseudobulk*"))
    assert "Nothing to be done" in project.run(TARGET).stdout

    # One more count on one plate.
    old = project.outputs()
    adata = ad.read_h5ad(plates["p2"])
    kept = np.flatnonzero(adata.obs["pass_filter"] == "full")[0]
    adata.X.data[adata.X.indptr[kept]] += 1
    write_plate(tmp_path / "p2.h5ad", adata)
    project.write_plates(plates | {"p2": tmp_path / "p2.h5ad"})
    steps = ("load", "qc_filter", "pseudobulk")
    assert project.build(TARGET) == {*(f"{step}/p2" for step in steps), "merge_pseudobulk"}
    new = project.outputs()
    others = [name for name in old if name.startswith(("plates/p1", "plates/p3"))]
    assert [name for name in others if new[name] != old[name]] == []
    again = ad.read_h5ad(project.folder / TARGET)
    assert again.X.sum() == found.X.sum() + 1

    # A column missing on the plates.
    project.change(pseudobulk={"by": ["drug", "treatment"]})
    done = project.run(TARGET)
    assert done.returncode != 0
    sentence = r"error: plate p\d has no obs column 'treatment', which pseudobulk.by names; it has"
    assert re.search(sentence, done.stdout)
