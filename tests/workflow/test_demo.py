"""The finished demo: effects of its drugs are those that were planted, and its plates mix.

Set SCATLAS_DEMO to the results of ``make demo``, as .ci/run does; without it the test is skipped.
"""

from __future__ import annotations

import os
from pathlib import Path

import anndata as ad
import pytest

import scatlas as sa
from scatlas.datasets import planted_effects
from tests.helpers.planted import beside_truth, summary

ROOT = Path(__file__).resolve().parents[2]
DEMO = os.environ.get("SCATLAS_DEMO")


def test_the_checks_of_each_change_name_the_demo():
    """Else the test below would be skipped unseen."""
    commands = (ROOT / ".ci/run").read_text().splitlines()
    named = commands.index("export SCATLAS_DEMO=$PWD/results/demo")
    assert commands.index("make demo") < named < commands.index("make test")


@pytest.mark.skipif(not DEMO, reason="SCATLAS_DEMO names no results of make demo")
def test_strong_effects_are_found_and_the_null_drug_is_not():
    effects = ad.read_h5ad(Path(DEMO, "effects.h5ad"))
    table = beside_truth(effects, planted_effects(), 1.0)
    assert set(table["drug"]) == {f"drug_{number}" for number in range(1, 8)}
    genes = summary(table, "drug")
    assert genes["strong"].sum() > 70
    assert genes["strong_found"].equals(genes["strong"])
    assert genes["wrong"].sum() < 0.05 * table["called"].sum()
    null = table[table["drug"] == "drug_4"]
    assert null.groupby("cell_line")["called"].any().sum() <= 1  # 5% of 6 lines, by chance
    assert sorted(path.name for path in Path(DEMO, "figures/volcano").iterdir())
    assert Path(DEMO, "figures/effect_strength.png").exists()


@pytest.mark.skipif(not DEMO, reason="SCATLAS_DEMO names no results of make demo")
def test_harmony_mixes_the_plates_and_keeps_the_cell_lines():
    """One plate differs from the others, and has clusters of it alone."""
    cells = ad.read_h5ad(Path(DEMO, "umap.h5ad"))
    sa.pp.harmony_integrate(cells, "plate")
    found = {}
    for basis in ("X_pca", "X_pca_harmony"):
        sa.pp.neighbors(cells, use_rep=basis)
        for column in ("plate", "cell_line"):
            sa.tl.lisi(cells, column)
        found[basis] = cells.obs[["lisi_plate", "lisi_cell_line"]].mean()
    before, after = found["X_pca"], found["X_pca_harmony"]
    assert after["lisi_plate"] > before["lisi_plate"] + 1
    assert after["lisi_cell_line"] < before["lisi_cell_line"] + 0.02
    said = f"from {before['lisi_plate']:.1f} plates before and from {after['lisi_plate']:.1f} after"
    assert said in (ROOT / "docs/after/batches.md").read_text().replace("\n", " ")
