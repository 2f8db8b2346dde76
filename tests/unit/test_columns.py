"""Columns of obs and var, lists of names and tables in obsm, of any type, in all functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
from anndata import AnnData

import scatlas as sa
from scatlas.columns import as_names, get_labels, get_mask, get_numbers
from scatlas.errors import InputError

N = 60
PLAIN = np.array(["", "f0"], object)[np.arange(N) % 2]
GAPS = np.where(np.arange(N) % 10 == 3, None, PLAIN)
TYPES = [
    "category",
    "string",
    pd.StringDtype("pyarrow", na_value=np.nan),
    pd.ArrowDtype(pa.string()),
]
DAYS = pd.Series(pd.date_range("2020-01-01", periods=N))


def cells(labels: Any) -> AnnData:
    """60 cells, 8 genes, a graph, and labels in obs['g']."""
    rng = np.random.default_rng(0)
    adata = AnnData(sp.csr_matrix(np.log1p(rng.poisson(1, (N, 8)).astype("f4"))))
    adata.obs["g"] = pd.Series(labels).set_axis(adata.obs_names)
    adata.obsm["X_pca"] = rng.normal(size=(N, 4))
    sa.pp.neighbors(adata, use_rep="X_pca", n_neighbors=6)
    return adata


def results(adata: AnnData, part: Any) -> list[Any]:
    """What the functions that take a column of labels make of it."""
    sa.tl.rank_genes_groups(adata, "g")
    sa.tl.lisi(adata, "g")
    sa.tl.leiden(adata, flavor="rounds", restrict_to=("g", part))
    return [
        [None if pd.isna(v) else v for v in adata.obs["leiden_R"]],
        adata.uns["rank_genes_groups"]["scores"].dtype.names,
        sa.get.aggregate(adata, "g", "sum").layers["sum"].tolist(),
        adata.obs["lisi_g"].tolist(),
        sa.pp.highly_variable_genes(adata, batch_key="g", inplace=False).fillna(-1).to_dict(),
    ]


@pytest.mark.parametrize("values", [PLAIN, GAPS], ids=["plain", "gaps"])
def test_labels_of_any_type_give_the_results_of_objects(values: Any) -> None:
    expected = results(cells(pd.Series(values, dtype=object)), ["f0"])
    assert expected[1] == ("", "f0")
    assert [v is None for v in expected[0]] == [v is None for v in values]
    # Two chunks with dictionaries in different orders, as after joining tables.
    chunks = [pa.array([*part]).dictionary_encode() for part in (values[:31], values[31:])]
    arrow = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array(chunks)))
    for odd in (arrow, *(pd.Series(values).astype(kind) for kind in TYPES)):
        assert results(cells(odd), "f0") == expected, odd.dtype


def test_numbers_of_any_type_are_regressed_on_as_numbers() -> None:
    numbers, left = np.random.default_rng(1).integers(0, 50, N), []
    for kind in (np.float64, np.float32, object, "Int64", pd.ArrowDtype(pa.int32())):
        adata = cells(pd.Series(numbers).astype(kind))
        sa.pp.regress_out(adata, "g")
        left.append(adata.X)
    assert np.abs(left[0]).sum() > 1
    assert all(np.array_equal(left[0], other) for other in left)


@pytest.mark.parametrize("odd", [DAYS, DAYS - DAYS[0], DAYS.dt.date, DAYS.astype(str)])
def test_dates_and_texts_that_differ_in_all_cells_are_not_regressed_on(odd: pd.Series) -> None:
    with pytest.raises(InputError, match=r"^obs\['g'\] \(keys\) h(olds|as) .*: convert "):
        sa.pp.regress_out(cells(odd), "g")


def test_masks_may_be_objects_and_not_texts_or_gaps() -> None:
    mask = np.arange(N) % 3 == 0
    table = pd.DataFrame({"text": mask.astype(str), "gap": pd.Series([True, None] * 30)})
    for kind in (bool, object, "boolean", "category", float):
        table["m"] = pd.Series(mask).astype(kind)
        np.testing.assert_array_equal(get_mask("m", table, N, "mask", "obs"), mask)
    for given in ("text", "gap", np.arange(N), np.array(["True"] * N, object), mask[1:]):
        with pytest.raises(InputError, match="must be True or False for each of the 60 cells"):
            get_mask(given, table, N, "mask", "obs")


def test_a_text_is_one_name_and_a_set_has_an_order() -> None:
    assert as_names({"b", "a", "c"}, "keys") == ["a", "b", "c"]
    for odd in (3, b"MT", None):
        with pytest.raises(InputError, match=r"^keys=.* is no list of names: pass"):
            as_names(odd, "keys")
    texts, lists = cells(PLAIN), cells(PLAIN)
    sa.tl.score_genes_cell_cycle(texts, s_genes="1", g2m_genes="2", gene_pool=texts.var_names)
    sa.tl.score_genes_cell_cycle(lists, s_genes=["1"], g2m_genes=["2"])
    pd.testing.assert_frame_equal(texts.obs, lists.obs)


def test_columns_that_cannot_be_used_are_named() -> None:
    table = pd.DataFrame([[1, 2, [3]], [4, 5, [6]]], columns=["twice", "twice", "lists"])
    for name, message in (
        ("no", "obs has no column 'no' .key.; it has twice, twice, lists: name one"),
        (["no"], "no column"),
        ("twice", "obs has 2 columns 'twice'"),
        ("lists", "that are no labels: convert"),
    ):
        with pytest.raises(InputError, match=message):
            get_labels(table, name, "key")
    with pytest.raises(InputError, match="holds no numbers"):
        get_numbers(table, "lists", "key")


def test_a_table_in_obsm_gives_the_results_of_its_values() -> None:
    tables, arrays = cells(PLAIN), cells(PLAIN)
    names = [f"PC{i}" for i in range(4)]
    tables.obsm["X_pca"] = pd.DataFrame(arrays.obsm["X_pca"], tables.obs_names, names)
    start = arrays.obsm["X_pca"][:, :2]
    for adata, init in ((tables, pd.DataFrame(start, tables.obs_names)), (arrays, start)):
        adata.obsm["start"] = init
        sa.pp.neighbors(adata, use_rep="X_pca", n_pcs=3, n_neighbors=6)
        sa.tl.umap(adata, init_pos="start", maxiter=2)
        sa.pp.harmony_integrate(adata, "g")
        sa.pl.umap(adata, "g", basis="start")
        sa.pp.scale(adata, obsm="X_pca")
    assert (tables.obsp["distances"] != arrays.obsp["distances"]).nnz == 0
    for key in ("X_umap", "X_pca_harmony", "X_pca"):
        np.testing.assert_array_equal(np.asarray(tables.obsm[key]), arrays.obsm[key])
    assert list(tables.obsm["X_pca"]) == names
    tables.obsm["X_pca"]["PC1"] = "text"
    with pytest.raises(InputError, match=r"^obsm\['X_pca'\]\['PC1'\].* no numbers"):
        sa.pp.neighbors(tables, use_rep="X_pca")
