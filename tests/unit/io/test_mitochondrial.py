"""Mitochondrial genes, by the names that plates give them."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.io import load_plate
from scatlas.workflow.command_line.plate_facts import read_facts

SYMBOLS = [*(f"MT-ND{i}" for i in range(3)), *(f"G{i}" for i in range(17))]
MOUSE = [name.replace("MT-", "mt-") for name in SYMBOLS]


def named(form: str, names: list[str] = SYMBOLS) -> list[str]:
    return [form.format(name, number=i) for i, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "prefix", "n"),
    [
        (named("{}"), "MT-", 3),
        (named("GRCh38_{}"), "GRCh38_MT-", 3),
        (named("GRCh38_____{}"), "GRCh38_____MT-", 3),
        (named("GRCh38-2020-A_{}"), "GRCh38-2020-A_MT-", 3),
        (named("mm10---{}", MOUSE), "mm10---mt-", 3),  # as Seurat writes underscores
        (named("{}_hg38"), "MT-", 3),
        ([name.replace("MT-ND", "Mt-nd") for name in SYMBOLS], "Mt-", 3),  # rat
        (named("ENSG{number}_{}"), "MT-", 0),  # no prefix fits them all
        (["HLA-MT-1", *SYMBOLS[3:]], "MT-", 0),
    ],
)
def test_the_prefix_is_found(tmp_path: Path, names: list[str], prefix: str, n: int):
    """And `load` finds as many genes by it, among them in a column."""
    x = np.random.default_rng(0).poisson(1.0, (20, len(names))).astype(np.float32)
    obs = pd.DataFrame(index=[f"c{i}" for i in range(20)])
    for column in (None, "symbol"):
        var = pd.DataFrame({column or "note": names if column else "a"}, index=names)
        var.index = [f"ENSG{i}" for i in range(len(names))] if column else names
        ad.AnnData(x, obs=obs, var=var).write_h5ad(tmp_path / "p.h5ad")
        facts, _ = read_facts("p", str(tmp_path / "p.h5ad"))
        assert (facts.n_mt, facts.mt_prefix) == (n, prefix)
        assert facts.gene_names == (column if n else None)
        options = {"mt_prefix": facts.mt_prefix, "gene_names": facts.gene_names}
        plate = load_plate(tmp_path / "p.h5ad", tmp_path / "o.zarr", plate="p", **options)
        assert plate["n_mt_genes"] == n


def test_a_second_genome_is_named(tmp_path: Path):
    names = [*named("GRCh38_{}"), *named("mm10___{}", MOUSE[1:])]
    x = np.random.default_rng(0).poisson(1.0, (20, len(names))).astype(np.float32)
    obs = pd.DataFrame(index=[f"c{i}" for i in range(20)])
    ad.AnnData(x, obs=obs, var=pd.DataFrame(index=names)).write_h5ad(tmp_path / "p.h5ad")
    facts, _ = read_facts("p", str(tmp_path / "p.h5ad"))
    assert (facts.n_mt, facts.mt_prefix) == (3, "GRCh38_MT-")
    assert any("begin with GRCh38_MT-, but also with mm10___mt-: " in n for n in facts.notices)
