"""Genes of an atlas on a new plate."""

from __future__ import annotations

import logging

import pandas as pd
import pytest

from scatlas.errors import InputError
from scatlas.workflow.reference import find_genes

ATLAS = pd.Index(["ACTB", "GAPDH", "TP53", "MYC"])


def test_genes_are_found_in_the_order_of_the_atlas(caplog: pytest.LogCaptureFixture):
    var = pd.DataFrame(index=["x", "MYC", "ACTB", "y", "TP53"])
    with caplog.at_level(logging.WARNING):
        found = find_genes(var, ATLAS, max_missing=0.25)
    assert found.positions.tolist() == [2, 4, 1]
    assert found.columns.tolist() == [0, 2, 3]
    assert found.missing == ["GAPDH"]
    assert "1 of the atlas's 4 genes are missing and count as zero: GAPDH" in caplog.text


@pytest.mark.parametrize("max_missing", [0.2, 0.0])
def test_too_few_genes_are_refused(max_missing: float):
    var = pd.DataFrame(index=["x", "MYC", "ACTB", "TP53"])
    with pytest.raises(InputError, match=r"lacks 1 of the atlas's 4 genes, and new_plates\.max"):
        find_genes(var, ATLAS, max_missing=max_missing)


def test_a_plate_without_any_gene_is_refused_whatever_the_bound():
    with pytest.raises(InputError, match="the atlas has 'ACTB', the plate begins with 'x'"):
        find_genes(pd.DataFrame(index=["x"]), ATLAS, max_missing=0.999)


@pytest.mark.parametrize("column", ["gene_symbols", None])
def test_ids_in_place_of_symbols_are_named(column: str | None):
    var = pd.DataFrame(index=[f"ENSMUSG0000000{i}" for i in range(4)])
    if column:
        var[column] = ATLAS
    where = f"its var column '{column}' has them" if column else "convert them"
    message = (
        "its genes have ids such as 'ENSMUSG00000000', but those of the atlas have symbols such "
        f"as 'ACTB': {where}; make symbols the index of var"
    )
    with pytest.raises(InputError, match=message):
        find_genes(var, ATLAS, max_missing=0.1)


def test_symbols_in_place_of_ids_are_named():
    ids = pd.Index([f"ENSG0000000{i}" for i in range(4)])
    with pytest.raises(InputError, match=r"have symbols such as 'ACTB', but .* have ids such as"):
        find_genes(pd.DataFrame(index=ATLAS), ids, max_missing=0.1)
