"""sa.tl.effects and sa.get.effects on cells and on pseudobulks."""

from __future__ import annotations

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas as sa
from scatlas.errors import InputError

N_GENES, CHANGED = 80, 12


@pytest.fixture(scope="module")
def cells() -> ad.AnnData:
    """Two lines on two plates, wells of one condition: "strong" acts on line A, "null" nowhere."""
    rng = np.random.default_rng(0)
    wells = pd.DataFrame(
        [
            (plate, drug, f"{plate}_{drug}_{i}")
            for plate in ("p1", "p2")
            for drug, n in (("DMSO_TF", 3), ("strong", 2), ("null", 1))
            for i in range(n)
        ],
        columns=["plate", "drug", "well"],
    )
    obs = wells.loc[np.repeat(wells.index, 60)].reset_index(drop=True)
    obs["line"] = np.tile(["A", "B"], len(obs) // 2)
    obs.index = [f"c{i}" for i in range(len(obs))]
    mean = np.exp(rng.normal(0, 1, N_GENES)) * np.exp(rng.normal(0, 0.1, (len(wells), N_GENES)))
    mu = np.repeat(mean, 60, axis=0) * np.where(obs["plate"] == "p1", 1, 1.4)[:, None]
    acts = ((obs["drug"] == "strong") & (obs["line"] == "A")).to_numpy()
    mu[np.ix_(acts, range(CHANGED))] *= 3
    var = pd.DataFrame(index=[f"g{i}" for i in range(N_GENES)])
    return ad.AnnData(sp.csr_matrix(rng.poisson(mu).astype(np.int32)), obs=obs, var=var)


DESIGN = {"condition": "drug", "control": "DMSO_TF", "within": "line", "block": "plate"}


@pytest.fixture(scope="module")
def found(cells) -> ad.AnnData:
    return sa.tl.effects(cells, **DESIGN, replicate="well")


def test_planted_effects_are_called_and_no_others(found):
    assert found.obs_names.to_list() == ["A_null", "A_strong", "B_null", "B_strong"]
    n = found.obs["n_significant"]
    assert n["A_strong"] >= CHANGED - 2
    assert n["A_strong"] <= CHANGED + 2
    assert n[["A_null", "B_null", "B_strong"]].sum() <= 2
    strong = sa.get.effects(found, conditions="strong")
    first = strong[(strong["line"] == "A") & (strong["fdr"] <= 0.05)]
    assert set(first["gene"].head(CHANGED - 2)) <= {f"g{i}" for i in range(CHANGED)}
    np.testing.assert_allclose(first["log2_fold_change"].head(8), np.log2(3), atol=0.5)
    assert len(first) == n["A_strong"]


def test_rows_say_what_they_rest_on(found):
    obs = found.obs.loc["A_null"]
    assert (obs["line"], obs["drug"]) == ("A", "null")
    assert (obs["n_replicates"], obs["n_controls"], obs["n_cells"]) == (2, 6, 60)
    assert obs["df_residual"] == 12 - 4  # 12 wells; three conditions and one plate more
    df = found.varm["df"][:, obs["model"]]
    np.testing.assert_allclose(df[~np.isnan(df)], obs["df_residual"] + obs["df_prior"])
    told = found.uns["effects"]
    assert (told["condition"], told["control"], told["block"]) == ("drug", "DMSO_TF", "plate")
    assert len(told["samples"]) == 24
    assert len(told["left_out"]) == 0


def test_the_result_is_a_file(found, tmp_path):
    found.write_h5ad(tmp_path / "effects.h5ad")
    again = ad.read_h5ad(tmp_path / "effects.h5ad")
    pd.testing.assert_frame_equal(sa.get.effects(again), sa.get.effects(found))


@pytest.mark.parametrize("form", ["dask", "dense", "pseudobulks", "float"])
def test_forms_of_the_counts_give_the_same_bits(form, cells, found):
    if form == "pseudobulks":
        given = sa.get.aggregate(cells, ["line", "drug", "plate", "well"], "sum")
        again = sa.tl.effects(given, **DESIGN)
    else:
        given = cells.copy()
        if form == "dask":
            given.X = da.from_array(cells.X.toarray(), chunks=(100, N_GENES)).map_blocks(
                sp.csr_matrix
            )
        else:
            given.X = cells.X.toarray().astype(np.int32 if form == "dense" else np.float32)
        again = sa.tl.effects(given, **DESIGN, replicate="well")
    np.testing.assert_array_equal(again.X, found.X)
    np.testing.assert_array_equal(again.layers["t"], found.layers["t"])


def test_several_columns_and_numbers_as_names(cells):
    mine = cells.copy()
    mine.obs["dose"] = mine.obs["drug"].map({"DMSO_TF": 0, "strong": 5, "null": 10})
    mine.obs["replicate"] = mine.obs["plate"]  # names of options are names of columns, too
    mine.obs["line"] = mine.obs["line"].where(mine.obs["line"] == "A")  # gaps are left out
    within = ["line", "replicate"]
    again = sa.tl.effects(mine, "dose", 0, within=within, replicate="well", min_cells=1)
    assert again.obs_names.to_list() == ["A_p1_5", "A_p1_10", "A_p2_5", "A_p2_10"]
    assert again.obs.columns[:3].to_list() == ["line", "replicate", "dose"]
    assert (again.obs["n_controls"] == 3).all()


def test_what_is_left_out_has_its_reason(cells):
    mine = cells[(cells.obs["plate"] == "p1") | (cells.obs["drug"] == "null")].copy()
    mine = mine[~((mine.obs["line"] == "B") & (mine.obs["drug"] == "DMSO_TF"))].copy()
    at = np.flatnonzero((mine.obs["well"] == "p1_strong_0") & (mine.obs["line"] == "A"))
    mine = mine[np.setdiff1d(np.arange(mine.n_obs), at[:-5])].copy()
    again = sa.tl.effects(mine, **DESIGN, replicate="well")
    assert again.obs["n_replicates"].to_dict() == {"A_null": 2, "A_strong": 1}
    rows = again.uns["effects"]["left_out"][["line", "condition", "reason"]].to_numpy().tolist()
    assert rows[0] == ["A", "strong", "5 cells"]
    assert rows[1][:2] == ["B", ""]
    assert "in a block with the control 'DMSO_TF'" in rows[1][2]


def without(column: str, value: object):
    def change(adata: ad.AnnData) -> None:
        adata.obs[column] = adata.obs[column].astype(object)
        adata.obs.iloc[3, adata.obs.columns.get_loc(column)] = value

    return change


def negative(adata: ad.AnnData) -> None:
    adata.X = adata.X.astype(float)
    adata.X.data[:] = np.log1p(adata.X.data)


def mixed(adata: ad.AnnData) -> None:
    adata.obs["drug"] = [1, "1", *["DMSO_TF"] * (adata.n_obs - 2)]


def model(adata: ad.AnnData) -> None:
    adata.obs["model"] = adata.obs["line"]


def twice(adata: ad.AnnData) -> None:
    adata.var_names = ["g0", *adata.var_names[:-1]]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (None, {"control": "DMSO"}, r"obs\['drug'\] has no control 'DMSO': try 'DMSO_TF'"),
        (None, {"condition": "dose"}, r"obs has no column 'dose' \(condition\)"),
        (without("drug", None), {}, r"obs\['drug'\] \(condition\) has no value in 1 of 720 rows"),
        (without("plate", ""), {}, r"obs\['plate'\] \(block\) has the label '', which tables read"),
        (without("line", "NA"), {}, r"obs\['line'\] \(within\) has the label 'NA', which"),
        (None, {"method": "deseq"}, "method='deseq' is unknown: use one of voom, trend"),
        (None, {"scaling": "rle"}, "scaling='rle' is unknown: use one of tmm, upper_quartile"),
        (None, {"min_count": -1}, "min_count"),
        (None, {"block": "drug"}, "no value of line has effects of drug; the last: no condition"),
        (None, {"block": "drug", "within": None}, "no condition has a pseudobulk in a block with"),
        (negative, {}, "has values that are no counts: name the layer with the counts"),
        (
            mixed,
            {},
            r"obs\['drug'\] \(condition\) has the label '1', which tables read as a gap or",
        ),
        (model, {"within": "model"}, "the result has a column 'model', too: rename that of obs"),
        (twice, {}, "names of genes occur twice"),
    ],
)
def test_bad_input_is_one_sentence(change, options, message, cells):
    mine = cells.copy()
    if change is not None:
        change(mine)
    with pytest.raises(InputError, match=message) as error:
        sa.tl.effects(mine, **{**DESIGN, "replicate": "well", **options})
    assert "\n" not in str(error.value)


def test_false_discoveries_over_all_conditions(found):
    own, every = sa.get.effects(found), sa.get.effects(found, fdr_over="all")
    assert list(own.columns) == [
        *("line", "drug", "gene", "log2_fold_change", "standard_error", "t", "p_value", "fdr"),
        *("mean_expression", "df"),
    ]
    pd.testing.assert_frame_equal(own.drop(columns="fdr"), every.drop(columns="fdr"))
    p = every["p_value"].to_numpy()
    smallest = np.argmin(p)
    assert every["fdr"].iloc[smallest] == pytest.approx(p[smallest] * p.size)
    assert (own.groupby(["line", "drug"], observed=True)["p_value"].diff().dropna() >= 0).all()
    np.testing.assert_allclose(own["standard_error"] * own["t"], own["log2_fold_change"])
    of_one = sa.get.effects(found, conditions="null", genes=["g5", "g3"])
    assert of_one["gene"].value_counts().to_dict() == {"g3": 2, "g5": 2}
    row = of_one.iloc[0]
    whole = own[(own["line"] == row["line"]) & (own["drug"] == "null")].set_index("gene")
    assert row["fdr"] == whole.loc[row["gene"], "fdr"]


def test_a_part_that_is_not_there_is_refused(found, cells):
    with pytest.raises(InputError, match="adata has no effects: pass what"):
        sa.get.effects(cells)
    with pytest.raises(InputError, match="there is no 'weak'"):
        sa.get.effects(found, conditions="weak")
    with pytest.raises(InputError, match="there is no 'g999'"):
        sa.get.effects(found, genes="g999")
    with pytest.raises(InputError, match="fdr_over='gene' is unknown"):
        sa.get.effects(found, fdr_over="gene")
