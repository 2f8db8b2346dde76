"""Merging plates on disk equals anndata.concat, in bounded memory."""

from __future__ import annotations

import logging

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import scatlas.io.products.concat_plates as concat
import scatlas.io.tables.column as columns
import scatlas.io.zarr_writer.sharded_array as shards
from scatlas.errors import InputError
from scatlas.io.chunks.encoded_text import EncodedText
from scatlas.io.files.checksums import checksum
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.products.concat_plates import concat_on_disk
from scatlas.io.tables.cell_names import UniqueNames
from scatlas.io.zarr_writer.elements import create_group, open_group_to_write, write_elem
from tests.helpers.frames import assert_same_frame

GENES = [f"g{i}" for i in range(40)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Everything in pieces that are smaller than a plate, and that cut rows."""
    monkeypatch.setattr(shards, "CHUNK_VALUES", 32)
    monkeypatch.setattr(shards, "SHARD_VALUES", 128)
    monkeypatch.setattr(concat, "CHUNK_VALUES", 32)
    monkeypatch.setattr(columns, "ROWS", 10)


def plate(n, seed, *, obs=None, genes=GENES, dtype=np.float32, names=None):
    rng = np.random.default_rng(seed)
    x = sp.random(n, len(genes), 0.3, format="csr", rng=rng, dtype=np.float32)
    x.data = np.log1p(np.ceil(x.data * 9)) if np.dtype(dtype).kind == "f" else np.ceil(x.data * 9)
    frame = pd.DataFrame(
        {
            "n": np.arange(n) + seed,
            "share": rng.random(n),
            "line": pd.Categorical(rng.choice([f"line{seed}", "shared"], n)),
            "barcode": [f"bc{seed}{i}" for i in range(n)],
        },
        index=names or [f"p{seed}c{i}" for i in range(n)],
    )
    var = pd.DataFrame(
        {"mt": np.arange(len(genes)) % 7 == 0, "total": rng.random(len(genes))}, index=genes
    )
    return ad.AnnData(x.astype(dtype), obs=frame.assign(**(obs or {})), var=var)


def stored(tmp_path, plates, *, dtype=np.float32):
    stores = {}
    for name, adata in plates.items():
        stores[name] = tmp_path / f"{name}.zarr"
        with CsrWriter(
            stores[name], n_vars=adata.n_vars, data_dtype=dtype, obs=adata.obs, var=adata.var
        ) as writer:
            writer.append(adata.X)
    return stores


def merged(tmp_path, plates, **kwargs):
    facts = concat_on_disk(
        stored(tmp_path, plates), tmp_path / "merged.zarr", block_budget="1kB", **kwargs
    )
    return ad.read_zarr(tmp_path / "merged.zarr"), facts


def test_equals_anndata_concat(tmp_path):
    plates = {"b": plate(45, 0), "a": plate(31, 1), "c": plate(1, 2)}
    actual, facts = merged(tmp_path, plates)
    expected = ad.concat(plates, label="plate", merge="same")
    for part in ("indptr", "indices", "data"):
        np.testing.assert_array_equal(getattr(actual.X, part), getattr(expected.X, part))
    assert actual.X.dtype == np.float32
    assert_same_frame(actual.obs, expected.obs, check_categorical=False)
    assert_same_frame(actual.var, expected.var)
    assert list(actual.var.columns) == ["mt"]
    assert list(actual.obs["plate"].cat.categories) == ["b", "a", "c"]
    # in order of first appearance
    assert list(actual.obs["line"].cat.categories) == ["line0", "shared", "line1", "line2"]
    assert facts == {
        "n_cells": 77,
        "n_genes": 40,
        "n_values": expected.X.nnz,
        "plates": {k: {"n_cells": v.n_obs, "n_values": v.X.nnz} for k, v in plates.items()},
        "obs_columns": ["n", "share", "line", "barcode", "plate"],
        "dropped_columns": [],
        "renamed_cells": 0,
        "notices": [],
    }


def test_bytes_do_not_depend_on_the_budget(tmp_path):
    stores = stored(tmp_path, {"a": plate(45, 0), "b": plate(31, 1)})
    for budget in ("1kB", "64kB", "256MB"):
        concat_on_disk(stores, tmp_path / budget, block_budget=budget)
    assert checksum(tmp_path / "1kB") == checksum(tmp_path / "64kB") == checksum(tmp_path / "256MB")


def test_counts_keep_integer_dtypes(tmp_path):
    few, many = plate(20, 0, dtype=np.int64), plate(20, 1, dtype=np.int64)
    many.X.data[5] = 300
    stores = stored(tmp_path, {"a": few, "b": many}, dtype=None)
    assert ad.read_zarr(stores["a"]).X.dtype == np.uint8
    concat_on_disk(stores, tmp_path / "merged.zarr")
    actual = ad.read_zarr(tmp_path / "merged.zarr").X
    assert actual.dtype == np.uint16
    np.testing.assert_array_equal(actual.toarray(), sp.vstack([few.X, many.X]).toarray())


def test_whole_chunks_are_copied_as_they_are_encoded(tmp_path, monkeypatch):
    """Where chunks of a plate and of the result begin together, as on the first plate."""
    plates = {"a": plate(45, 0), "b": plate(31, 1), "c": plate(40, 2)}
    encoded = []
    encode = shards.ShardedArray._encode
    monkeypatch.setattr(
        shards.ShardedArray,
        "_encode",
        lambda self, chunk: encoded.append(self.path.name) or encode(self, chunk),
    )
    stores = stored(tmp_path, plates)
    encoded.clear()
    concat_on_disk(stores, tmp_path / "merged.zarr", block_budget="1kB")
    n_values = sum(adata.X.nnz for adata in plates.values())
    copied = plates["a"].X.nnz // 32
    assert copied > 5
    assert encoded.count("data") == encoded.count("indices") == -(-n_values // 32) - copied
    # The same bytes as if everything had been encoded again.
    monkeypatch.setattr(shards.ShardedArray, "can_append_chunks_of", lambda *_: False)
    concat_on_disk(stores, tmp_path / "again.zarr", block_budget="1kB")
    assert checksum(tmp_path / "merged.zarr") == checksum(tmp_path / "again.zarr")


def test_a_damaged_chunk_is_not_copied_on(tmp_path):
    stores = stored(tmp_path, {"a": plate(45, 0), "b": plate(31, 1)})
    file = stores["a"] / "X/data/c/0"
    raw = bytearray(file.read_bytes())
    raw[20] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(InputError, match=r"a\.zarr: .*checksum"):
        concat_on_disk(stores, tmp_path / "merged.zarr", block_budget="1kB")
    assert not (tmp_path / "merged.zarr").exists()


def test_offsets_beyond_int32(tmp_path, monkeypatch):
    """As from 2^31 values on, with the limit put at 100."""
    monkeypatch.setattr("scatlas.io.matrices.csr_writer._INT32_VALUES", 100)
    plates = {"a": plate(45, 0), "b": plate(31, 1)}
    actual, _ = merged(tmp_path, plates)
    assert actual.X.indptr.dtype == actual.X.indices.dtype == np.int64
    np.testing.assert_array_equal(actual.X.toarray(), ad.concat(plates).X.toarray())


def test_columns_that_are_not_everywhere(tmp_path, caplog):
    plates = {"a": plate(12, 0, obs={"only_a": 1}), "b": plate(9, 1, obs={"only_b": "x"})}
    with caplog.at_level(logging.WARNING, "scatlas"):
        actual, facts = merged(tmp_path, plates)
    assert facts["dropped_columns"] == ["only_a", "only_b"]
    assert "not on all plates are left out: 'only_a', 'only_b'" in caplog.text
    assert list(actual.obs.columns) == ["n", "share", "line", "barcode", "plate"]


cat, numbers, nullable = pd.Categorical, np.array, pd.array
NAN, LONG = np.nan, 2**53 + 1
GAPS, FLAGS = numbers([NAN, NAN]), numbers([True, False])
LEVELS = {"categories": ["lo", "hi"], "ordered": True}
# Columns of two plates, the values that they become, and the type.
CASES = {
    "ints": ([1, 2], numbers([300, 4], "i2"), [1, 2, 300, 4], "int64"),
    "int_float": (numbers([1, 2]), numbers([0.5, NAN]), [1, 2, 0.5, None], "float64"),
    "bool_int": (FLAGS, numbers([2, 3]), [1, 0, 2, 3], "int64"),
    "same_bool": (FLAGS, numbers([True, True]), [1, 0, 1, 1], "bool"),
    "nullable": (nullable([1, None], "Int32"), numbers([5, 6]), [1, None, 5, 6], "Int64"),
    "nullable_bool": (
        *(nullable([True, None], "boolean"), nullable([False, True], "boolean")),
        *([True, None, False, True], "boolean"),
    ),
    "nullable_float": (
        *(nullable([1, None], "Int32"), numbers([0.5, 2.0])),
        *([1, None, 0.5, 2.0], "float64"),
    ),
    "text_category": (["x", "y"], cat(["z", "x"]), ["x", "y", "z", "x"], "object"),
    "text_category_gap": (["x", ""], cat(["z", None]), ["x", "", "z", None], "category"),
    "text_missing": (["x", "y"], GAPS, ["x", "y", None, None], "category"),
    "category_missing": (GAPS, cat(["z", "x"]), [None, None, "z", "x"], "category"),
    "text_number": (["x", "y"], numbers([1, 2]), ["x", "y", "1", "2"], "object"),
    "text_number_gap": (["x", "y"], numbers([0.5, NAN]), ["x", "y", "0.5", None], "category"),
    "long_int_float": (
        *(numbers([LONG, -1]), numbers([0.5, 2], "f4")),
        *([str(LONG), "-1", "0.5", "2.0"], "object"),
    ),
    "negative_long_int_float": (
        *(numbers([-LONG, 1]), numbers([0.5, NAN])),
        *([str(-LONG), "1", "0.5", None], "category"),
    ),
    "long_uint_int": (
        *(numbers([2**64 - 1, 1], "u8"), numbers([-1, 2])),
        *([str(2**64 - 1), "1", "-1", "2"], "object"),
    ),
    "long_nullable_float": (
        *(nullable([2**62 + 1, None], "Int64"), numbers([0.5, 2])),
        *([str(2**62 + 1), None, "0.5", "2.0"], "category"),
    ),
    "long_int_float_that_fit": (
        *(numbers([2**53, -(2**53)]), numbers([0.5, 2])),
        *([2**53, -(2**53), 0.5, 2], "float64"),
    ),
    "long_ints": (numbers([2**62 + 1]), numbers([3], "i1"), [2**62 + 1, 3], "int64"),
    "categories": (
        *(cat(["b", None]), cat(["a", "b"], ["a", "b", "unused"])),
        *(["b", None, "a", "b"], "category"),
    ),
    "number_categories": (cat([3, 1]), cat([2, 3]), [3, 1, 2, 3], "category"),
    "mixed_categories": (cat([3, 1]), cat(["2", "3"]), ["3", "1", "2", "3"], "category"),
    "bool_int_categories": (cat(FLAGS), cat([1, 2]), ["True", "False", "1", "2"], "category"),
    "int_float_categories": (cat([1, 2]), cat([2.0, 0.5]), [1, 2, 2, 0.5], "category"),
    "long_int_float_categories": (
        *(cat([LONG, 2**53]), cat([0.5, None])),
        *([str(LONG), str(2**53), "0.5", None], "category"),
    ),
    "bool_categories_missing": (cat(GAPS), cat(FLAGS), [None, None, True, False], "category"),
    "no_categories": (cat(GAPS), cat(numbers([None, None], object)), [None] * 4, "category"),
    "ordered": (
        *(cat(["lo", "hi"], **LEVELS), cat(["hi", "hi"], **LEVELS)),
        *(["lo", "hi", "hi", "hi"], pd.CategoricalDtype(**LEVELS)),
    ),
    "ordered_differently": (
        *(cat(["lo", "hi"], **LEVELS), cat(["hi", "lo"], ["hi", "lo"], ordered=True)),
        *(["lo", "hi", "hi", "lo"], pd.CategoricalDtype(["lo", "hi"], ordered=False)),
    ),
}
QUIET = {"same_bool", "categories", "number_categories", "ordered", "nullable_bool"}
QUIET |= {"int_float_categories", "bool_categories_missing", "no_categories"}


def without_gaps(values):
    return [None if pd.isna(value) else value for value in values]


@pytest.mark.parametrize("case", CASES)
def test_columns_of_differing_types(tmp_path, case):
    first, second, expected, dtype = CASES[case]
    plates = {"a": plate(len(first), 0, obs={"k": first})}
    plates["b"] = plate(len(second), 1, obs={"k": second})
    actual, facts = merged(tmp_path, plates)
    column = actual.obs["k"]
    text = dtype == "object" and pd.api.types.is_string_dtype(column.dtype)
    assert column.dtype == dtype or text
    assert without_gaps(column) == expected
    assert len(facts["notices"]) == (case not in QUIET)
    assert all("obs['k']: " in notice for notice in facts["notices"])


def test_columns_read_in_pieces(tmp_path):
    """Gaps and categories keep their rows across pieces of 10 rows."""
    n = 57
    obs = {
        "gap": pd.array([None if i % 3 else i for i in range(n)], dtype="Int64"),
        "cat": pd.Categorical([None if i % 4 == 0 else f"k{i % 5}" for i in range(n)]),
        "µ": [f"µ{i}" for i in range(n)],
    }
    plates = {"a": plate(n, 0, obs=obs), "b": plate(n, 1, obs=obs)}
    actual, _ = merged(tmp_path, plates)
    expected = ad.concat(plates, label="plate")
    assert_same_frame(actual.obs[["gap", "µ"]], expected.obs[["gap", "µ"]], check_dtype=True)
    assert without_gaps(actual.obs["cat"]) == without_gaps(expected.obs["cat"])


def test_many_categories_take_wider_codes(tmp_path):
    labels = [f"k{i}" for i in range(300)]
    plates = {"a": plate(100, 0, obs={"k": cat(labels[:100])})}
    plates["b"] = plate(200, 1, obs={"k": cat(labels[100:])})
    actual, _ = merged(tmp_path, plates)
    assert list(actual.obs["k"]) == labels
    assert actual.obs["k"].cat.codes.dtype == np.int16


def test_a_plate_whose_cells_are_on_another_one_is_named(tmp_path):
    names = [f"c{i}" for i in range(30)]
    whole = plate(30, 0, names=names, obs={"n_genes_by_counts": np.arange(30) + 10})
    other = plate(30, 1, names=names, obs={"n_genes_by_counts": np.arange(30)[::-1] + 10})
    said = merged(tmp_path, {"a": whole[5:25].copy(), "b": whole, "c": other})[1]["notices"]
    assert len(said) == 2
    assert said[1].startswith("plate a: nearly all of its cells are on plate b, too")


def test_labels_become_categories(tmp_path):
    plates = {"b": plate(12, 0), "a": plate(11, 1), "c": plate(0, 2), "d": plate(2, 3)}
    labels = {
        "d": {"day": "", "donor": "x y", "batch": ""},
        "a": {"donor": "7", "day": "2", "batch": ""},
        "b": {"donor": "8", "day": "", "batch": ""},
        "c": {"donor": "9", "day": "1", "batch": ""},
    }
    notices = merged(tmp_path, plates)[1]["notices"]
    actual, facts = merged(tmp_path, plates, labels=labels)
    assert list(actual.obs.columns)[4:] == ["plate", "donor", "day", "batch"]
    assert facts["obs_columns"] == list(actual.obs.columns)
    assert facts["notices"] == notices
    wanted = {
        "donor": (["8", "7", "9", "x y"], ["8"] * 12 + ["7"] * 11 + ["x y"] * 2),
        "day": (["2", "1"], [None] * 12 + ["2"] * 11 + [None] * 2),
        "batch": ([], [None] * 25),
    }
    for name, (categories, values) in wanted.items():
        column = actual.obs[name]
        assert list(column.cat.categories) == categories
        assert not column.cat.ordered
        assert without_gaps(column) == values
    assert list(ad.read_zarr(tmp_path / "merged.zarr").obs["plate"].cat.categories) == [*plates]


def test_labels_replace_columns_of_their_names(tmp_path):
    plates = {
        "a": plate(3, 0, obs={"donor": ["x", "y", "x"], "day": [1, 1, 1], "plate": "a"}),
        "b": plate(3, 1, obs={"donor": cat(["z"] * 3), "plate": cat(["old"] * 3)}),
    }
    labels = {"a": {"donor": "x", "day": "1"}, "b": {"donor": "z", "day": "2"}}
    actual, facts = merged(tmp_path, plates, labels=labels)
    assert list(actual.obs.columns)[4:] == ["donor", "plate", "day"]
    for name, values in (("donor", "xz"), ("plate", "ab"), ("day", "12")):
        assert list(actual.obs[name]) == [values[0]] * 3 + [values[1]] * 3
    assert facts["dropped_columns"] == []
    assert facts["notices"] == [
        "obs['plate'] of plate b held other values: replaced by 'b'",
        "obs['donor'] of plate a held other values: replaced by 'x'",
    ]


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (["x", "y", "x"], ["x", "y", "x"]),
        (pd.Categorical(["x", None, "y"], categories=["y", "x"]), ["x", None, "y"]),
        ([3, 1, 2], ["3", "1", "2"]),
        ([0.5, np.nan, 2.0], ["0.5", None, "2.0"]),
        (pd.array([1, None, 3], "Int64"), ["1", None, "3"]),
        ([True, False, True], ["True", "False", "True"]),
    ],
    ids=["text", "categories", "whole numbers", "numbers with gaps", "nullable", "bool"],
)
def test_a_plate_without_a_label_keeps_its_own_column(tmp_path, own, kept):
    plates = {
        "a": plate(2, 0, obs={"donor": ["p", "q"]}),
        "b": plate(3, 1, obs={"donor": own}),
        "c": plate(2, 2),
    }
    labels = {"a": {"donor": "x"}, "b": {"donor": ""}, "c": {"donor": ""}}
    actual, facts = merged(tmp_path, plates, labels=labels)
    found = without_gaps(actual.obs["donor"])
    assert found == ["x", "x", *kept, None, None]
    assert "obs['donor'] of plate a held other values: replaced by 'x'" in facts["notices"]
    assert "obs['donor'] of plate b has no label: kept" in facts["notices"]


def test_a_label_that_no_plate_has_changes_no_column(tmp_path):
    plates = {name: plate(3, i, obs={"dose": [0.5, 1.0, i]}) for i, name in enumerate("ab")}
    labels = {name: {"dose": ""} for name in plates}
    actual, _ = merged(tmp_path, plates, labels=labels)
    assert actual.obs["dose"].dtype == np.float64
    assert list(actual.obs["dose"]) == [0.5, 1.0, 0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    "labels", [{"a": {"x": "1"}}, {"b": {"x": "1"}}, {"a": {}, "b": {"x": ""}}]
)
def test_labels_that_a_plate_lacks(tmp_path, labels):
    with pytest.raises(ValueError, match="plates a and b have different labels"):
        merged(tmp_path, {"a": plate(3, 0), "b": plate(3, 1)}, labels=labels)


@pytest.mark.parametrize("name", ["dose/ml", "plate", "_index", "zarr.json", "..", "x" * 256])
def test_label_that_obs_cannot_have(tmp_path, name):
    with pytest.raises(InputError, match="rename that column of the plate sheet") as caught:
        merged(tmp_path, {"a": plate(3, 0)}, labels={"a": {name: "1"}})
    assert repr(name) in str(caught.value)
    assert not (tmp_path / "merged.zarr").exists()


def test_notices_come_before_the_copying(tmp_path, monkeypatch, caplog):
    """Unlike X, tables are read in minutes."""
    plates = {
        "a": plate(3, 0, obs={"k": 1}, names=["x", "y", "z"]),
        "b": plate(3, 1, obs={"k": 0.5, "plate": "old"}, names=["x", "v", "w"]),
    }
    stores = stored(tmp_path, plates)
    monkeypatch.setattr(concat, "CsrWriter", None)
    with caplog.at_level(logging.WARNING, "scatlas"), pytest.raises(TypeError, match="NoneType"):
        concat_on_disk(stores, tmp_path / "merged.zarr")
    for notice in (
        "obs['k']: float64 and int64 become float64",
        "2 cells have a name that occurs on more than one plate",
        "obs['plate'] of plate b held other values: replaced by 'b'",
    ):
        assert notice in caplog.text


@pytest.mark.parametrize(
    "names, expected, numbered",
    [
        # As `load` names cells, of a plate called 1, of which two were called "a".
        ({"1": ["a", "a-1"], "2": ["a"]}, ["a-1-1", "a-1", "a-2"], 1),
        ({"p1": ["a", "a-p1"], "p2": ["a"]}, ["a-p1-1", "a-p1", "a-p2"], 1),
        ({"p1": ["a", "a-p2"], "p2": ["a"]}, ["a-p1", "a-p2", "a-p2-1"], 1),
        # Numbers that are taken are skipped.
        (
            {"1": ["a", "a-1", "a-1-1"], "2": ["a-1-2", "a", "b"], "3": ["b"]},
            ["a-1-3", "a-1", "a-1-1", "a-1-2", "a-2", "b-2", "b-3"],
            1,
        ),
        # Two renamed cells meet: the first keeps the name, also where a number is given.
        ({"b-c": ["a"], "c": ["a", "a-b"], "d": ["a-b"]}, ["a-b-c", "a-c", "a-b-c-1", "a-b-d"], 1),
        (
            {"b-c": ["a", "a-b-c"], "c": ["a", "a-b"], "d": ["a-b"]},
            ["a-b-c-1", "a-b-c", "a-c", "a-b-c-2", "a-b-d"],
            2,
        ),
        # A plate's suffix on a name that has it.
        ({"1": ["a-1"], "2": ["a-1"]}, ["a-1-1", "a-1-2"], 0),
    ],
)
def test_suffixed_names_stay_unique(tmp_path, names, expected, numbered):
    plates = {name: plate(len(own), 0, names=own) for name, own in names.items()}
    actual, facts = merged(tmp_path, plates)
    assert list(actual.obs_names) == expected
    own = [name for plate_names in names.values() for name in plate_names]
    changed = [name for name, new in zip(own, expected, strict=True) if name != new]
    assert all(own.count(name) > 1 for name in changed)
    assert facts["renamed_cells"] == len(changed)
    (notice,) = facts["notices"]
    ends = f", and a number to {numbered} whose new name was taken"
    assert notice.endswith(ends if numbered else "the plate's name was appended to it")


def test_many_names_stay_unique(tmp_path, monkeypatch):
    """Names and plates of few characters meet in every way; whatever the pieces, the same."""
    rng = np.random.default_rng(3)
    names = {}
    for name in ("1", "2", "1-1", "2-1"):
        drawn = {"-".join(rng.choice(["1", "2"], rng.integers(1, 5))) for _ in range(25)}
        names[name] = sorted(drawn)
    plates = {name: plate(len(own), 0, names=own) for name, own in names.items()}
    actual, facts = merged(tmp_path, plates)
    assert actual.obs_names.is_unique
    own = [name for plate_names in names.values() for name in plate_names]
    for old, new in zip(own, actual.obs_names, strict=True):
        assert (old == new) == (own.count(old) == 1)
        assert new.startswith(old)
    assert "a number to" in facts["notices"][0]
    monkeypatch.setattr(columns, "ROWS", 1000)
    again, _ = merged(tmp_path, plates)
    assert list(again.obs_names) == list(actual.obs_names)


def give_one_hash(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    true_hashes = EncodedText.hashes

    def hashes(self: EncodedText) -> np.ndarray:
        return np.where(np.isin(self.decode(), names), np.uint64(7), true_hashes(self))

    monkeypatch.setattr(EncodedText, "hashes", hashes)


def test_shared_hash_gives_both_a_suffix(tmp_path, monkeypatch):
    give_one_hash(monkeypatch, "aa", "bb")
    plates = {"p1": plate(1, 0, names=["aa"]), "p2": plate(2, 1, names=["bb", "cc"])}
    actual, _ = merged(tmp_path, plates)
    assert list(actual.obs_names) == ["aa-p1", "bb-p2", "cc"]


def test_shared_hash_on_one_plate_is_not_refused(tmp_path, monkeypatch):
    give_one_hash(monkeypatch, "aa", "bb")
    actual, _ = merged(tmp_path, {"p1": plate(3, 0, names=["aa", "cc", "bb"])})
    assert list(actual.obs_names) == ["aa-p1", "cc", "bb-p1"]


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
def test_name_twice_on_one_plate_is_refused(tmp_path, monkeypatch):
    plates = {"a": plate(3, 0), "b": plate(3, 1, names=["x", "y", "x"])}
    # Before the hours of copying.
    monkeypatch.setattr(concat, "CsrWriter", None)
    with pytest.raises(InputError, match="plate b: the cell name 'x' occurs more than once"):
        merged(tmp_path, plates)
    assert not (tmp_path / "merged.zarr").exists()


@pytest.mark.parametrize("same", [True, False])
def test_index_name_is_kept_where_it_is_common(tmp_path, same):
    plates = {"a": plate(3, 0), "b": plate(3, 1)}
    plates["a"].obs.index.name = "BARCODE"
    plates["b"].obs.index.name = "BARCODE" if same else "cell"
    actual, _ = merged(tmp_path, plates)
    assert actual.obs.index.name == ("BARCODE" if same else None)
    assert list(actual.obs_names) == [*plates["a"].obs_names, *plates["b"].obs_names]


@pytest.mark.parametrize(
    "genes, found",
    [
        ([*GENES[:5], "other", *GENES[6:]], "gene 6 of plate b is 'other', of plate a 'g5'"),
        (GENES[:39], "gene 40 of plate b is missing, of plate a 'g39'"),
        ([*GENES, "more"], "gene 41 of plate b is 'more', of plate a missing"),
    ],
)
def test_differing_genes_are_refused(tmp_path, genes, found):
    with pytest.raises(InputError, match=found):
        merged(tmp_path, {"a": plate(3, 0), "b": plate(3, 1, genes=genes)})
    assert not (tmp_path / "merged.zarr").exists()


def test_dense_x_is_refused(tmp_path):
    create_group(tmp_path / "b.zarr", {"encoding-type": "anndata"})
    group = open_group_to_write(tmp_path / "b.zarr")
    write_elem(group, "X", plate(3, 0).X.toarray())
    with pytest.raises(InputError, match="X of plate b is stored as 'array', not as CSR"):
        concat_on_disk({"b": tmp_path / "b.zarr"}, tmp_path / "m.zarr")


def test_column_that_cannot_be_merged_is_refused_early(tmp_path):
    stores = stored(tmp_path, {"a": plate(3, 0)})
    attributes = stores["a"] / "obs" / "n" / "zarr.json"
    attributes.write_text(attributes.read_text().replace('"array"', '"awkward-array"', 1))
    (stores["a"] / "zarr.json").write_text(
        '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
    )
    with pytest.raises(InputError, match="obs column 'n' is stored as"):
        concat_on_disk(stores, tmp_path / "m.zarr")


def test_no_plates():
    with pytest.raises(ValueError, match="no plates"):
        concat_on_disk({}, "merged.zarr")


def test_unique_names_hold_no_strings():
    """What is kept a cell are bytes, not Python objects."""

    class Names:
        n_rows = 1_000

        def spans(self):
            return [(0, 1_000)]

        def encoded_text(self, lo, hi):
            return EncodedText.encode(np.array([f"c{i}" for i in range(lo, hi)], object))

    names = UniqueNames({"a": Names(), "b": Names()})
    assert names.n_changed == 2_000
    assert all(
        value.dtype != object for value in vars(names).values() if isinstance(value, np.ndarray)
    )


def test_an_outer_join_fills_gaps_by_kind(tmp_path):
    """As anndata does, but whole numbers and flags stay what they are; one plate keeps names."""
    own = {
        "real": np.linspace(0, 1, 45, dtype=np.float32),
        "whole": np.arange(45),
        "flag": np.arange(45) % 2 == 0,
        "kind": pd.Categorical(["x", "y", "z"] * 15),
        "note": [f"n{i}" for i in range(45)],
    }
    names = [f"p1c{i}" for i in range(45)]
    plates = {"a": plate(45, 0, obs=own, names=names), "b": plate(31, 1)}
    joined, facts = merged(tmp_path, plates, label=None, join="outer", keep_names="a")
    assert facts["dropped_columns"] == []
    assert "plate" not in joined.obs
    first, second = joined.obs[:45], joined.obs[45:]
    assert first.index.tolist() == names
    assert second.index.tolist() == [f"p1c{i}-b" for i in range(31)]
    for name, values in own.items():
        assert list(first[name]) == list(values), name
        assert second[name].isna().all(), name
    dtypes = ["float32", "Int64", "boolean", "category", "category"]
    assert [str(joined.obs[name].dtype) for name in own] == dtypes
    assert list(joined.obs["share"]) == [*plates["a"].obs["share"], *plates["b"].obs["share"]]
