"""Marker genes from sums by group of several plates: exact, and the same for any blocks."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.io.files.hdf5_writing import create_hdf5
from scatlas.io.products.group_sums import read_groups, write_group_sums
from scatlas.matrix.markers import COLUMNS, merge_plates, rank_markers, sum_plate
from scatlas.matrix.select_normalize import log_normalize, select_and_log_normalize

N_GENES = 60
CELLS = {"p1": 150, "p2": 90, "p3": 40}


def make_plate(name: str) -> ad.AnnData:
    """Log-normalised values of a plate, with groups that differ in some genes."""
    rng = np.random.default_rng(list(CELLS).index(name))
    n = CELLS[name]
    line = rng.integers(0, 3, n)
    rates = rng.gamma(0.5, 1.0, N_GENES)[None, :] * np.ones((n, 1))
    for group in range(3):
        rates[line == group, 5 * group : 5 * group + 5] += 3
    counts = rng.poisson(rates).astype(np.float64)
    x = np.log1p(1e3 * counts / np.maximum(1, counts.sum(axis=1, keepdims=True)))
    # Group 10 is on the first plate alone; one cell of all is of group 2; some have no label.
    text = np.array(["1", "9", "3"], dtype=object)[line]
    if name == "p1":
        text[:30], text[30] = "10", "2"
    text[-10:] = None
    obs = pd.DataFrame({"line": pd.Categorical(text)}, index=[f"{name}-{i}" for i in range(n)])
    obs["plate"] = pd.Categorical([name] * n)
    var = pd.DataFrame(index=[f"g{i}" for i in range(N_GENES)])
    return ad.AnnData(sparse.csr_matrix(x.astype(np.float32)), obs=obs, var=var)


PLATES = {name: make_plate(name) for name in CELLS}


def write_sums(folder: Path, plates: dict[str, ad.AnnData], rows: int = 37) -> dict[str, Path]:
    folder.mkdir(exist_ok=True)
    paths = {}
    for name, plate in plates.items():
        x = da.from_array(plate.X, chunks=(rows, N_GENES), asarray=False)
        found = sum_plate(x, plate.obs, plate.var_names)
        paths[name] = folder / f"{name}.h5"
        with create_hdf5(paths[name]) as file:
            write_group_sums(file, name, found)
    return paths


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_sums(tmp_path_factory.mktemp("sums"), PLATES)


def test_markers_are_those_of_all_cells_with_a_label(sums: dict[str, Path]):
    found = rank_markers(merge_plates(sums), n_genes=20)
    together = ad.concat(PLATES)
    for by, groups in (("line", ["1", "3", "9", "10"]), ("plate", list(CELLS))):
        cells = together[together.obs[by].notna()].copy()
        # As on the plates: float64 sums of these very float32 values.
        sa.tl.rank_genes_groups(cells, by, groups=groups, method="t-test", pts=True)
        expected = cells.uns["rank_genes_groups"]
        table = found.table[found.table["by"] == by]
        assert list(table["group"].unique()) == groups
        for group, rows in table.groupby("group"):
            assert list(rows["rank"]) == list(range(1, 21))
            for name in ("names", "scores", "logfoldchanges", "pvals", "pvals_adj"):
                np.testing.assert_array_equal(rows[name], expected[name][group][:20], err_msg=name)
            for name, key in (("pct_nz_group", "pts"), ("pct_nz_reference", "pts_rest")):
                of_genes = expected[key].loc[rows["names"], group].astype(np.float32)
                np.testing.assert_array_equal(rows[name], of_genes)
            inside, genes = (cells.obs[by] == group).to_numpy(), list(rows["names"])
            for name, where in (("mean_group", inside), ("mean_reference", ~inside)):
                mean = np.asarray(cells[where, genes].X.astype(np.float64).mean(axis=0)).ravel()
                np.testing.assert_allclose(rows[name], mean, rtol=1e-6)
    assert list(found.table) == list(COLUMNS)


def test_means_and_shares_of_the_table_s_genes(sums: dict[str, Path]):
    found = rank_markers(merge_plates(sums), n_genes=3)
    together = ad.concat(PLATES)
    assert set(found.genes) == set(found.table["names"])
    for row, (by, group, n_cells) in enumerate(found.groups.itertuples(index=False)):
        x = together[together.obs[by] == group, found.genes].X.toarray()
        assert len(x) == n_cells
        np.testing.assert_allclose(found.mean[row], x.astype(np.float64).mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(found.share[row], (x > 0).mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize("threads", [1, 3])
def test_neither_blocks_nor_threads_change_a_byte(
    sums: dict[str, Path], tmp_path: Path, threads: int
):
    with use_threads(threads):
        again = write_sums(tmp_path, PLATES, rows=13)
    for name, path in sums.items():
        assert again[name].read_bytes() == path.read_bytes()


@pytest.mark.parametrize("rows", [19, 200])
@pytest.mark.parametrize("n_groups", [2, 30])
def test_counts_have_the_sums_of_their_values(rows: int, n_groups: int):
    rng = np.random.default_rng(0)
    counts = sparse.csr_matrix(rng.poisson(2, (150, N_GENES)).astype(np.uint16))
    factors = rng.choice([0.3, 1.0, 2.5, np.nan], 150)
    labels = pd.Series(pd.Categorical(rng.integers(0, n_groups, 150).astype(str)))
    lazy = log_normalize(da.from_array(counts, chunks=(rows, -1), asarray=False), factors)
    values = select_and_log_normalize(counts, np.arange(N_GENES), size_factors=factors)
    kept = pd.Series(~np.isnan(factors))
    genes = pd.Index([f"g{i}" for i in range(N_GENES)])
    found = sum_plate(lazy, labels.where(kept).to_frame("by"), genes)
    expected = sum_plate(values, labels[kept].to_frame("by"), genes)
    pd.testing.assert_frame_equal(found.groups, expected.groups)
    for name, array in vars(expected.sums).items():
        np.testing.assert_array_equal(getattr(found.sums, name), array, err_msg=name)


def test_a_plate_without_labels_adds_no_group(sums: dict[str, Path], tmp_path: Path):
    plate = make_plate("p3")
    plate.obs["line"] = pd.Categorical([None] * plate.n_obs)
    plate.obs["plate"] = pd.Categorical([None] * plate.n_obs)
    paths = write_sums(tmp_path, {"p3": plate})
    assert len(read_groups(paths["p3"], "p3", {})[0]) == 0
    two = {name: sums[name] for name in ("p1", "p2")}
    expected, found = (rank_markers(merge_plates(each), 5) for each in (two, two | paths))
    pd.testing.assert_frame_equal(found.table, expected.table)


def test_one_group_has_no_markers(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    plate = PLATES["p2"][:, :].copy()
    del plate.obs["line"]
    found = rank_markers(merge_plates(write_sums(tmp_path, {"p2": plate})), 5)
    assert len(found.table) == 0
    assert found.mean.shape == (1, 0)
    assert "all cells have one value of plate: it has no marker genes" in caplog.text


def test_a_group_of_one_cell_counts_only_as_rest(
    sums: dict[str, Path], caplog: pytest.LogCaptureFixture
):
    found = rank_markers(merge_plates(sums), 5)
    assert "2" in set(found.groups["group"])
    assert "2" not in set(found.table["group"])
    assert "groups of line with one cell have no marker genes: 2" in caplog.text


def test_other_genes_are_refused_or_intersected(sums: dict[str, Path], tmp_path: Path):
    fewer = PLATES["p2"][:, ::-2].copy()
    paths = {"p1": sums["p1"], **write_sums(tmp_path, {"p2": fewer})}
    with pytest.raises(InputError, match="the genes of plate p2 are not those of plate p1: load"):
        merge_plates(paths)
    found = merge_plates(paths, "intersect")
    assert list(found.genes) == [f"g{i}" for i in range(1, N_GENES, 2)]
    whole = merge_plates({name: sums[name] for name in ("p1", "p2")})
    np.testing.assert_array_equal(found.sums.sums, whole.sums.sums[:, 1::2])

    # The union has zeros where p2 has no gene.
    x = PLATES["p2"].X.toarray()
    x[:, ::2] = 0
    zeros = ad.AnnData(sparse.csr_matrix(x), obs=PLATES["p2"].obs, var=PLATES["p2"].var)
    expected = merge_plates({"p1": sums["p1"], **write_sums(tmp_path / "zeros", {"p2": zeros})})
    found = merge_plates(dict(reversed(paths.items())), "union")
    assert list(found.genes) == [*fewer.var_names, *PLATES["p1"].var_names[::2]]
    order = found.genes.get_indexer(expected.genes)
    for name in ("sums", "squares", "nonzero"):
        values = getattr(found.sums, name)[:, order]
        np.testing.assert_array_equal(values, getattr(expected.sums, name))


def test_a_damaged_file_is_named(sums: dict[str, Path], tmp_path: Path):
    path = tmp_path / "p1.h5ad"
    path.write_bytes(sums["p1"].read_bytes()[:2000])
    with pytest.raises(InputError, match=r"p1\.h5ad"):
        merge_plates({"p1": path})


def test_small_differences_that_many_cells_have_are_no_markers(tmp_path: Path):
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 4000)
    x = np.full((8000, 3), 2.0, np.float32)  # a gene that all cells have, a marker, one without
    x[:, 0] += 0.05 * (group == 0) + rng.normal(0, 0.01, 8000)
    x[:, 1] = rng.random(8000) < 0.1 + 0.2 * (group == 0)
    x[:, 2] = 0
    obs = pd.DataFrame({"line": pd.Categorical.from_codes(group, ["a", "b"])})
    found = sum_plate(da.from_array(x, chunks=(999, 3)), obs, pd.Index(["even", "marker", "none"]))
    # Rank and p-value are those of the test of all genes.
    every, chosen = (rank_markers(found, 3, least).table for least in (0, 1.5))
    of_a = every[every["group"] == "a"].set_index("names")
    assert list(of_a.index) == ["even", "marker", "none"]
    assert chosen["group"].tolist() == ["a"]
    assert chosen[["names", "rank"]].values.tolist() == [["marker", 1]]
    for name in ("scores", "pvals", "pvals_adj", "logfoldchanges"):
        assert chosen[name].item() == of_a.loc["marker", name], name
