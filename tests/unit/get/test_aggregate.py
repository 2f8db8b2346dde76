"""aggregate: passes, bits, exact sums, labels, masks, medians, memory, errors.

Values are compared in tests/adversarial and tests/parity.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scatlas as sa
from scatlas.compute import memory
from scatlas.errors import InputError, TooLargeError
from scatlas.kernels.moments import group_sums_cpu, medians_cpu
from scatlas.kernels.moments.group_sums_cpu import SumKinds
from scatlas.matrix import group_medians, group_sums

FUNCS = ("sum", "mean", "var", "count_nonzero", "median")
ALL = SumKinds(sums=True, squares=True, nonzero=True)


def reals(rng: np.random.Generator, shape: tuple[int, int], dtype: Any = np.float64) -> np.ndarray:
    """Values of both signs and many magnitudes, a third of them not zero."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)
    return np.where(rng.random(shape) < 0.3, x, 0).astype(dtype)


def bits(layers: Any) -> list[bytes]:
    return [np.ascontiguousarray(layers[name]).tobytes() for name in FUNCS]


# --- every kind of X --------------------------------------------------------------------------


def test_reals_are_added_exactly():
    """Sums are rounded once, where float64 additions give another result."""
    x = np.array([[1e16, 0.1], [1.0, 0.2], [-1e16, 0.3], [1.0, 1e30], [3.0, -1e30]])
    adata = ad.AnnData(
        X=sparse.csr_matrix(x), obs=pd.DataFrame({"g": ["a"] * 5}, index=list("vwxyz"))
    )
    layers = sa.get.aggregate(adata, "g", ["sum", "mean"]).layers
    wanted = [float(sum(map(Fraction, column))) for column in x.T]
    assert layers["sum"].tolist() == [wanted]
    assert wanted != x.sum(axis=0).tolist(), "float64 additions round"
    assert layers["mean"].tolist() == [[total / 5 for total in wanted]]


def test_a_large_mean_with_a_small_spread_keeps_its_variance():
    rng = np.random.default_rng(0)
    x = 1e6 + rng.normal(size=(500, 3))
    x[:, 2] = 12345.678
    obs = pd.DataFrame({"g": ["a"] * 500}, index=[f"{i}" for i in range(500)])
    for made in (x, np.round(x).astype(np.int64)):
        found = sa.get.aggregate(ad.AnnData(X=made, obs=obs), "g", "var").layers["var"][0]
        exact = [np.var([Fraction(v.item()) for v in column], ddof=1) for column in made.T]
        np.testing.assert_allclose(found, np.array(exact, dtype=np.float64), rtol=1e-13)
        assert found[2] == 0


def test_variances_of_groups_of_too_few_cells_are_nan(counts, make_adata):
    adata = make_adata(counts)
    adata.obs["g"] = ["a"] * 58 + ["b", "c"]
    for dof in (0, 1, 60):
        found = sa.get.aggregate(adata, "g", "var", dof=dof).layers["var"]
        known = np.isfinite(found).all(axis=1)
        assert known.tolist() == [dof < 58, dof < 1, dof < 1]
        assert np.isnan(found[~known]).all()


def test_values_that_are_not_finite():
    x = np.array([[np.inf, np.nan, 1.0], [1.0, 2.0, np.inf], [2.0, 1.0, -np.inf]])
    expected = {"sum": [[np.inf, np.nan, np.nan]], "count_nonzero": [[3, 3, 3]]}
    obs = pd.DataFrame({"g": ["a"] * 3}, index=list("xyz"))
    for made in (x, sparse.csr_matrix(x)):
        adata = ad.AnnData(X=made, obs=obs)
        layers = sa.get.aggregate(adata, "g", ["sum", "mean", "count_nonzero", "median"]).layers
        for name, values in expected.items():
            np.testing.assert_array_equal(layers[name], values)
        np.testing.assert_array_equal(layers["median"], [[2.0, np.nan, 1.0]])


def test_wide_integers_are_refused_where_sums_may_not_fit():
    obs = pd.DataFrame({"g": ["a", "a"]}, index=["x", "y"])
    adata = ad.AnnData(X=np.array([[2**61], [2**61 - 1]]), obs=obs)
    assert sa.get.aggregate(adata, "g", "sum").layers["sum"] == 2**62 - 1
    with pytest.raises(InputError, match=r"sums of their squares over 2 values do not fit 64 bits"):
        sa.get.aggregate(adata, "g", "var")
    adata.X = np.array([[2**62], [2**62]])
    with pytest.raises(InputError, match=r"whose sums over 2 values .* convert X to float64"):
        sa.get.aggregate(adata, "g", "mean")


# --- kernels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["bool", "uint8", "int16", "int64", "float16", "float32"])
def test_index_and_value_types(data):
    indices = {"bool": "uint16", "uint8": "uint16", "int64": "int64"}.get(data, "uint32")
    rng = np.random.default_rng(0)
    dense = (rng.integers(0, 2, (23, 9)) * rng.integers(0, 2, (23, 9))).astype(data)
    block = sparse.csr_matrix(dense.astype(np.float64))
    block.data, block.indices = block.data.astype(data), block.indices.astype(indices)
    block.indptr = block.indptr.astype("int64")
    codes = rng.integers(-1, 4, 23)
    groups, sums = group_sums_cpu.group_sums(block, codes, ALL)
    assert groups.tolist() == [0, 1, 2, 3]
    for group in range(4):
        rows = dense[codes == group].astype(np.float64)
        np.testing.assert_array_equal(sums.sums[group], rows.sum(axis=0))
        np.testing.assert_array_equal(sums.squares[group], (rows**2).sum(axis=0))
        np.testing.assert_array_equal(sums.nonzero[group], (rows != 0).sum(axis=0))
    assert sums.whole == (data[0] != "f")


@pytest.mark.parametrize("n_rows", [0, 1, 5, 6])
def test_medians_of_any_signs(n_rows):
    """Every number of negative and positive values beside zeros, in each order, with NaN or not."""
    columns = np.array(list(product([-2.0, -1.0, 0.0, 1.0, 2.0], repeat=n_rows))).T
    columns[2:3, ::50] = np.nan
    n_genes = columns.shape[1]
    expected = np.median(columns, axis=0) if n_rows else np.full(n_genes, np.nan)
    stored_zeros = sparse.csr_matrix(columns)
    stored_zeros.data[stored_zeros.data == 1] = 0
    zeroed = stored_zeros.toarray()
    of_zeroed = np.median(zeroed, axis=0) if n_rows else expected
    for x, wanted in ((columns, expected), (zeroed, of_zeroed), (stored_zeros, of_zeroed)):
        np.testing.assert_array_equal(medians_cpu.medians([x], n_genes), wanted)
        parts = [x[:1], x[1:1], x[1:]]
        np.testing.assert_array_equal(medians_cpu.medians(parts, n_genes), wanted)
    for dtype in (np.int16, np.uint8, bool):
        x = np.nan_to_num(np.abs(columns)).astype(dtype)
        expected = np.median(x.astype(float), axis=0) if n_rows else expected
        np.testing.assert_array_equal(medians_cpu.medians([x], n_genes), expected)


# --- labels -----------------------------------------------------------------------------------


def frame(**columns: Any) -> ad.AnnData:
    n = len(next(iter(columns.values())))
    obs = pd.DataFrame(columns, index=[f"c{i}" for i in range(n)])
    return ad.AnnData(X=np.arange(n, dtype=np.float32)[:, None], obs=obs)


def test_groups_come_in_the_order_of_the_categories():
    adata = frame(
        a=pd.Categorical(list("yxyxz"), categories=list("zyxw")),
        b=[2, 10, 10, 2, 2],
    )
    found = sa.get.aggregate(adata, ["a", "b"], "sum")
    assert found.obs_names.tolist() == ["z_2", "y_2", "y_10", "x_2", "x_10"]
    assert found.obs["a"].cat.categories.tolist() == ["z", "y", "x"]  # w has no cells
    assert found.obs["b"].tolist() == [2, 2, 10, 2, 10]
    assert found.layers["sum"].ravel().tolist() == [4, 0, 2, 3, 1]
    assert found.obs.columns.tolist() == ["a", "b", "n_obs_aggregated"]


def test_cells_without_a_value_are_left_out():
    adata = frame(a=["x", None, "y", "x", np.nan], b=pd.Categorical(["p", "p", None, "q", None]))
    one = sa.get.aggregate(adata, "a", "sum")
    assert one.obs_names.tolist() == ["x", "y"]
    assert one.layers["sum"].ravel().tolist() == [3, 2]
    both = sa.get.aggregate(adata, ["b", "a"], ["sum", "median"])
    assert both.obs_names.tolist() == ["p_x", "q_x"]
    assert both.obs["n_obs_aggregated"].tolist() == [1, 1]
    assert both.layers["sum"].ravel().tolist() == both.layers["median"].ravel().tolist() == [0, 3]
    none = frame(a=[None, None])
    assert sa.get.aggregate(none, "a", FUNCS).shape == (0, 1)


def test_duplicate_names_of_groups_are_numbered():
    adata = frame(a=["x_y", "x"], b=["z", "y_z"])
    assert sa.get.aggregate(adata, ["a", "b"], "sum").obs_names.tolist() == ["x_y_z", "x_y_z-1"]


def test_groups_may_have_the_name_of_the_sizes(counts, make_adata, caplog):
    adata = make_adata(counts)
    adata.obs["n_obs_aggregated"] = pd.Categorical(np.arange(adata.n_obs) % 3)
    found = sa.get.aggregate(adata, "n_obs_aggregated", "sum")
    assert found.obs["n_obs_aggregated"].tolist() == [0, 1, 2]
    assert "no sizes of the groups" in caplog.text


def test_many_columns_of_many_categories():
    """2**72 combinations, more than an int64 can number."""
    n = 512
    adata = frame(**{f"c{i}": np.roll(np.arange(n), i) for i in range(8)})
    found = sa.get.aggregate(adata, list(adata.obs.columns), "sum")
    assert found.n_obs == n
    assert found.layers["sum"].ravel().tolist() == list(range(n))


# --- masks, genes, obsm, varm -----------------------------------------------------------------


def test_masked_cells_are_not_there(counts, make_adata):
    mask = np.arange(60) % 4 > 0
    mask[np.arange(60) % 3 == 2] = False  # no cell of the third batch is left
    adata = make_adata(counts)
    adata.obs["mask"] = mask
    found = sa.get.aggregate(adata, "batch", FUNCS, mask=mask)
    assert bits(sa.get.aggregate(adata, "batch", FUNCS, mask="mask").layers) == bits(found.layers)
    expected = sa.get.aggregate(adata[mask].copy(), "batch", FUNCS)
    sizes = expected.obs["n_obs_aggregated"].tolist()
    assert found.obs["n_obs_aggregated"].tolist() == [*sizes, 0]
    for name, value in {"sum": 0, "count_nonzero": 0, "mean": np.nan, "median": np.nan}.items():
        np.testing.assert_array_equal(found.layers[name][:2], expected.layers[name])
        np.testing.assert_array_equal(found.layers[name][2], np.full(50, value))


def test_genes_by_group(dask_type, counts, make_adata, block_loads):
    adata = make_adata(dask_type(counts))
    adata.var["set"] = pd.Categorical.from_codes(np.arange(50) % 4 - 1, list("pqr"))
    mask = np.arange(50) % 7 > 0
    found = sa.get.aggregate(adata, "set", FUNCS, axis=1, mask=mask)
    assert block_loads.passes() == 1  # with the median
    assert found.var_names.tolist() == list("pqr")
    pd.testing.assert_frame_equal(found.obs, adata.obs)
    masked = make_adata(counts)[:, mask].copy()
    masked.var["set"] = adata.var["set"][mask]
    expected = sa.get.aggregate(masked, "set", FUNCS, axis=1)
    pd.testing.assert_frame_equal(found.var, expected.var)
    assert bits(found.layers) == bits(expected.layers)


def test_obsm_varm_and_layers(counts, make_adata, block_loads):
    adata = make_adata(counts)
    rng = np.random.default_rng(0)
    values = reals(rng, (60, 4))
    adata.obsm["table"] = pd.DataFrame(values, index=adata.obs_names, columns=list("wxyz"))
    adata.obsm["array"] = values
    adata.obsm["lazy"] = block_loads.dask(values)
    adata.layers["twice"] = counts * 2
    adata.varm["loadings"] = reals(rng, (50, 2))
    adata.var["set"] = ["p", "q"] * 25
    table, array, lazy = (
        sa.get.aggregate(adata, "batch", FUNCS, obsm=key) for key in ("table", "array", "lazy")
    )
    assert table.var_names.tolist() == list("wxyz")
    assert array.var_names.tolist() == list("0123")
    assert bits(table.layers) == bits(array.layers) == bits(lazy.layers)
    np.testing.assert_allclose(table.layers["sum"][1], values[1::3].sum(axis=0), rtol=1e-12)
    layer = sa.get.aggregate(adata, "batch", "sum", layer="twice").layers["sum"]
    once = sa.get.aggregate(adata, "batch", "sum").layers["sum"]
    np.testing.assert_array_equal(layer, 2 * once)
    loadings = sa.get.aggregate(adata, "set", "mean", varm="loadings")
    assert loadings.shape == (2, 2)
    assert loadings.var_names.tolist() == ["p", "q"]
    expected = adata.varm["loadings"][1::2].mean(axis=0)
    np.testing.assert_allclose(loadings.layers["mean"][:, 1], expected, rtol=1e-12)


# --- medians and memory -----------------------------------------------------------------------


def test_medians_in_several_passes(dask_type, counts, make_adata, block_loads, monkeypatch):
    adata = make_adata(dask_type(counts))
    expected = sa.get.aggregate(adata, "batch", "median").layers["median"]
    assert block_loads.passes() == 1
    block_loads.reset()
    row = counts.nnz / 60 * 8 + 8 if "csr" in dask_type.name else 50 * 4
    monkeypatch.setattr(
        group_medians, "available_memory", lambda: int(33 * row / group_medians._MEMORY_SHARE)
    )
    found = sa.get.aggregate(adata, "batch", "median").layers["median"]
    np.testing.assert_array_equal(found, expected)
    assert block_loads.passes() == 3
    monkeypatch.setattr(
        group_medians, "available_memory", lambda: int(10 * row / group_medians._MEMORY_SHARE)
    )
    with pytest.raises(TooLargeError, match=r"all cells of a group at once, and the 20 of one"):
        sa.get.aggregate(adata, "batch", "median")


def test_a_result_that_does_not_fit_is_refused_before_a_pass(
    dask_type, counts, make_adata, block_loads, monkeypatch
):
    adata = make_adata(dask_type(counts))
    monkeypatch.setattr(group_sums, "available_memory", lambda: 3 * 50 * 8 * 2 - 1)
    sa.get.aggregate(adata, "batch", "sum")
    block_loads.reset()
    match = r"result of sum and count_nonzero is 3 x 50 values in 2 arrays of 8 bytes"
    with pytest.raises(TooLargeError, match=match):
        sa.get.aggregate(adata, "batch", ["sum", "count_nonzero"])
    with pytest.raises(TooLargeError, match=r"60 x 2 values in 3 arrays"):
        sa.get.aggregate(adata, "mt", ["sum", "mean", "var"], axis=1)
    assert block_loads.passes() == 0


@pytest.fixture
def machine(tmp_path):
    """System files with 4,000 kB available, and a function that writes more of them."""

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    write("proc/self/cgroup", "0::/job/step\n")
    return tmp_path, write


def test_available_memory(machine):
    root, write = machine
    assert memory.available_memory(root) == 4_096_000
    write("sys/fs/cgroup/job/memory.max", "3000000\n")
    write("sys/fs/cgroup/job/memory.current", "1000000\n")
    write("sys/fs/cgroup/job/memory.stat", "anon 3\ninactive_file 200000\n")
    assert memory.available_memory(root) == 2_200_000
    for name, text in (("max", "max\n"), ("current", "5\n"), ("stat", "")):
        write(f"sys/fs/cgroup/job/step/memory.{name}", text)
    assert memory.available_memory(root) == 2_200_000
    write("sys/fs/cgroup/job/memory.current", "4000000\n")
    assert memory.available_memory(root) == 0
    assert memory.available_memory(root / "nowhere") is None
    assert memory.available_memory() > 2**20


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "options", "sentence"),
    [
        ("nosuch", {}, "obs has no column 'nosuch' (by); it has batch"),
        ([], {}, "by names no column"),
        ("batch", {"func": "total"}, "func 'total' is unknown: use sum, mean, var, count_nonzero"),
        ("batch", {"func": []}, "func names no function"),
        ("batch", {"axis": 2}, "axis must be 'obs', 'var', 0 or 1, not 2"),
        ("mt", {"axis": 1, "obsm": "X_pca"}, "obsm can only be aggregated over cells"),
        ("batch", {"axis": 0, "varm": "PCs"}, "varm can only be aggregated over genes"),
        ("batch", {"layer": "a", "obsm": "b"}, "give one of layer, obsm and varm"),
        ("batch", {"layer": "a"}, "adata.layers has no 'a'"),
        ("batch", {"obsm": "a"}, "adata.obsm has no 'a'; it has []"),
        ("batch", {"mask": "a"}, "obs has no column 'a' (mask)"),
        ("batch", {"mask": np.ones(59, bool)}, "but is bool of shape (59,)"),
        ("batch", {"mask": np.ones(60)}, "but is float64 of shape (60,)"),
        ("batch", {"mask": "batch"}, "must be True or False for each of the 60 cells"),
    ],
)
def test_errors_are_one_sentence(counts, make_adata, by, options, sentence):
    with pytest.raises(InputError) as error:
        sa.get.aggregate(make_adata(counts), by, **({"func": "sum"} | options))
    assert sentence in str(error.value)


def test_values_that_are_not_real_numbers(make_adata):
    adata = make_adata(np.zeros((3, 2), dtype=np.complex128))
    with pytest.raises(InputError, match=r"values of type complex128"):
        sa.get.aggregate(adata, "batch", "sum")
    with pytest.raises(InputError, match=r"adata.X is empty"):
        sa.get.aggregate(ad.AnnData(obs=adata.obs), "batch", "sum")


def test_blocks_of_another_type_than_declared(make_adata, counts):
    import dask.array as da

    x = da.from_array(counts.toarray(), chunks=(10, 50))
    meta = np.empty((0, 0), np.int32)
    floats = x.map_blocks(lambda block: block + 0.5, dtype=np.int32, meta=meta)
    with pytest.raises(InputError, match=r"X is declared as int32, but a block of it is float64"):
        sa.get.aggregate(make_adata(floats), "batch", "sum")
