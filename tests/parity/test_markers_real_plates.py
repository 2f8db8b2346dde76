"""Marker genes of cell lines on the real plates: those of scanpy on the concatenated plates."""

from __future__ import annotations

import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.io.products.group_sums import write_group_sums
from scatlas.matrix.markers import merge_plates, rank_markers, sum_plate
from tests.parity.real_plates import read_normalized

pytestmark = pytest.mark.real

N_GENES = 100


@pytest.fixture(scope="module")
def plates(plates_dir: Path) -> dict[str, ad.AnnData]:
    plates = read_normalized(plates_dir)
    for plate in plates.values():
        plate.obs["cell_line"] = plate.obs["cell_line"].astype("category")
    return plates


def test_markers_of_cell_lines_are_those_of_scanpy(
    plates: dict[str, ad.AnnData], tmp_path: Path
) -> None:
    sc = pytest.importorskip("scanpy")
    sums = {}
    for name, plate in plates.items():
        sums[name] = tmp_path / "group_sums.h5"
        found = sum_plate(plate.X, plate.obs[["cell_line"]], plate.var_names)
        with create_hdf5(sums[name], append=sums[name].exists()) as file:
            write_group_sums(file, name, found)
    table = rank_markers(merge_plates(sums, "intersect"), N_GENES).table

    cells = ad.concat(plates, index_unique="-")
    cells.obs["cell_line"] = cells.obs["cell_line"].astype("category")
    cells.X = cells.X.astype(np.float64)  # else scanpy's variances are float32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sc.tl.rank_genes_groups(cells, "cell_line", method="t-test", pts=True)
    lines = list(cells.obs["cell_line"].cat.categories)
    assert len(lines) > 2
    assert list(table["group"].unique()) == lines
    for line in lines:
        rows = table[table["group"] == line].set_index("names")
        expected = sc.get.rank_genes_groups_df(cells, line)
        best = expected["scores"][:N_GENES]
        np.testing.assert_allclose(rows["scores"], best, rtol=1e-6)
        expected = expected.set_index("names").loc[rows.index]
        for name in expected:
            rtol = 1e-8 if name.startswith("pvals") else 1e-6
            np.testing.assert_allclose(rows[name], expected[name], rtol=rtol, atol=1e-300)
