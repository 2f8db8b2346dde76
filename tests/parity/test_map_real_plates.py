"""Each real plate on a map of the four others: lines that these know are told, others are flagged.

The lines were called from SNPs, not from expression.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anndata as ad
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import scatlas as sa
from scatlas.matrix import inverted_lists, projection
from tests.parity.real_plates import PLATES, read_normalized

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real

# All plates have the same total. With the median of each plate, differences in depth between plates
# hide lines: the area under ROC falls to 0.73.
# With 50, the components of a reference without HCC827 hold too little of what sets this line
# apart: the area under ROC is 0.91 on one plate.
N_COMPS = 100
N_NEIGHBORS = 15


@pytest.fixture(scope="module")
def plates(plates_dir: Path) -> dict[str, ad.AnnData]:
    return read_normalized(plates_dir)


def reference_of(plates: dict[str, ad.AnnData], left_out: str, line: str | None) -> ad.AnnData:
    """Components of all plates but one, without the cells of a line."""
    parts = {
        name: plate[plate.obs["cell_line"] != line].copy()
        for name, plate in plates.items()
        if name != left_out
    }
    for part in parts.values():
        sa.pp.highly_variable_genes(part, n_top_genes=2000)
    votes = sum(part.var["highly_variable"].to_numpy().astype(int) for part in parts.values())
    reference = ad.concat(parts, index_unique="-")[:, votes >= 3].copy()
    sa.pp.pca(reference, n_comps=N_COMPS)
    return reference


@pytest.mark.parametrize("left_out", PLATES)
def test_lines_of_a_left_out_plate_are_told(plates: dict[str, ad.AnnData], left_out: str) -> None:
    reference = reference_of(plates, left_out, line=None)
    sa.pp.neighbors(reference, N_NEIGHBORS)
    sa.tl.umap(reference)
    new = plates[left_out][:, reference.var_names].copy()
    truth = new.obs["cell_line"].to_numpy()
    sa.tl.ingest(new, reference, obs="cell_line")
    assert set(truth) <= set(reference.obs["cell_line"])
    right = new.obs["cell_line"].to_numpy() == truth
    assert right.mean() >= 0.99
    # Each cell lies within the cells of its line on the map, too.
    near = nearest_on_map(reference.obsm["X_umap"], new.obsm["X_umap"])
    assert (reference.obs["cell_line"].to_numpy()[near] == truth).mean() >= 0.99


@pytest.mark.parametrize("left_out", PLATES)
def test_novelty_flags_lines_that_the_reference_lacks(
    plates: dict[str, ad.AnnData], left_out: str
) -> None:
    areas = {}
    for line in plates[left_out].obs["cell_line"].unique():
        reference = reference_of(plates, left_out, line)
        sa.pp.neighbors(reference, N_NEIGHBORS)
        new = plates[left_out][:, reference.var_names].copy()
        sa.tl.ingest(new, reference, embedding_method="pca")
        is_unknown = new.obs["cell_line"].to_numpy() == line
        areas[line] = roc_auc_score(is_unknown, novelty(reference, new))
    assert min(areas.values()) >= 0.95, areas


def novelty(reference: ad.AnnData, new: ad.AnnData) -> np.ndarray:
    x = reference.obsm["X_pca"]
    index = inverted_lists.build(x, N_NEIGHBORS)
    _, own = index.neighbors(N_NEIGHBORS)
    found = index.search(new.obsm["X_pca"], N_NEIGHBORS - 1)
    return projection.novelty(*found, own[:, 1:].mean(axis=1))


def nearest_on_map(reference: np.ndarray, new: np.ndarray) -> np.ndarray:
    apart = ((new[:, None] - reference[None]) ** 2).sum(axis=2)
    return apart.argmin(axis=1)
