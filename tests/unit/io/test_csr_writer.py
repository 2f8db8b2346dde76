"""The canonical store: what AnnData reads from it, its bytes, its refusals."""

from __future__ import annotations

import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from anndata.experimental import read_lazy
from anndata.io import sparse_dataset
from numcodecs import blosc

import scatlas.io.zarr_writer.sharded_array as shards
from scatlas.errors import InputError
from scatlas.io.files.checksums import VALUES_DIGEST, checksum
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.zarr_writer.elements import (
    DICT,
    create_group,
    open_group_to_write,
    write_elem,
    write_params,
)
from scatlas.io.zarr_writer.sharded_array import (
    COUNTS_CODEC,
    DENSE_CODEC,
    INDICES_CODEC,
    NORMALIZED_CODEC,
    ShardedArray,
)
from tests.helpers.files import files
from tests.helpers.frames import assert_same_frame

# Nearly two chunks of real size.
NOISE = np.random.default_rng(0).poisson(2, 2 * shards.CHUNK_VALUES - 1000)
VALUES = {
    **dict.fromkeys(("u1", "i1", "u2", "u4", "i4", "i8", "f4", "f8"), NOISE),
    "?": NOISE > 2,
    "O": np.array([f"cell {i}" for i in NOISE[:60_000]], dtype=object),
}


# Those of indices and of projected cells are equal to two of these.
@pytest.mark.parametrize("compression", [COUNTS_CODEC, DENSE_CODEC, NORMALIZED_CODEC])
@pytest.mark.parametrize("kind", VALUES)
def test_the_last_chunk_has_the_same_bytes_each_time(tmp_path, monkeypatch, kind, compression):
    """Of real size it is several blocks to Blosc, whose own threads finish them in any order."""
    monkeypatch.setattr(blosc, "use_threads", True)  # whoever has set it: zarr-python unsets it
    digests = set()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            with ShardedArray(tmp_path / "x", kind, pool, compression=compression) as array:
                array.append(VALUES[kind].astype(kind))
            digests.add(checksum(tmp_path / "x"))
    assert len(digests) == 1


@pytest.mark.parametrize("in_runs", [True, False])
def test_the_digest_of_values_does_not_depend_on_their_encoding(tmp_path, monkeypatch, in_runs):
    if not in_runs:
        monkeypatch.setattr(shards, "run_encoder", lambda *_: None)
    values = np.arange(3 * shards.CHUNK_VALUES + 5, dtype=np.uint16)
    digests = []
    for name, codec, more in (
        ("a", COUNTS_CODEC, 0),
        ("b", NORMALIZED_CODEC, 0),
        ("c", DENSE_CODEC, 1),
    ):
        values[-1] += more
        with shards.encoding_pool() as pool:
            array = ShardedArray(tmp_path / name, "u2", pool, compression=codec, digest=True)
            array.append(values, copy=False)
            array.close()
        metadata = json.loads((tmp_path / name / "zarr.json").read_text())
        digests.append(metadata["attributes"][VALUES_DIGEST])
    assert checksum(tmp_path / "a") != checksum(tmp_path / "b")
    assert digests[0] == digests[1] == "8d17754372008b4e" != digests[2]


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 64 and shards of 256 values, so that small matrices have many of them."""
    monkeypatch.setattr(shards, "CHUNK_VALUES", 64)
    monkeypatch.setattr(shards, "SHARD_VALUES", 256)


def count_matrix(n=97, genes=60, *, largest=200, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    dense = rng.poisson(1.0, (n, genes)) * rng.integers(0, 2, (n, genes))
    dense[[n // 9, n - 1]] = 0  # empty cells, also the last
    dense[n // 2, 7] = largest
    return sp.csr_matrix(dense.astype(dtype))


def table(n):
    return pd.DataFrame(
        {
            "n": np.arange(n),
            "share": np.linspace(0, 1, n),
            "kept": np.arange(n) % 2 == 0,
            "line": pd.Categorical.from_codes(np.arange(n) % 3 - 1, ["b", "a"]),
            "name": [f"name {i} µ" for i in range(n)],
        },
        index=pd.Index([f"cell{i}" for i in range(n)], name="BARCODE"),
    )


def write(path, x, step, **kwargs):
    with CsrWriter(path, n_vars=x.shape[1], **kwargs) as store:
        for i in range(0, x.shape[0], step):
            store.append(x[i : i + step])
    return path


def assert_same_csr(actual, expected):
    np.testing.assert_array_equal(actual.indptr, expected.indptr)
    np.testing.assert_array_equal(actual.indices, expected.indices)
    np.testing.assert_array_equal(actual.data, expected.data)
    assert actual.shape == expected.shape


@pytest.mark.parametrize(
    "largest, dtype",
    [(200, np.uint8), (256, np.uint16), (65535, np.uint16), (65536, np.uint32)],
)
def test_anndata_opens_the_store(tmp_path, small_chunks, largest, dtype):
    x = count_matrix(largest=largest)
    obs = table(97)
    path = write(tmp_path / "a.zarr", x, 10, obs=obs, uns={"source": "a", "n": 3})

    adata = ad.read_zarr(path)
    assert_same_csr(adata.X, x)
    assert adata.X.data.dtype == dtype
    assert adata.X.indices.dtype == adata.X.indptr.dtype == np.int32
    assert_same_frame(adata.obs, obs)
    assert list(adata.var_names) == [str(i) for i in range(60)]
    assert adata.uns == {"source": "a", "n": 3}

    group = zarr.open_group(path, mode="r")
    assert group["X/data"].shards == (256,)
    assert group["X/data"].chunks == (64,)
    backed = sparse_dataset(group["X"])
    assert (backed[np.array([1, 3, 60])] != x[[1, 3, 60]]).nnz == 0

    lazy = read_lazy(path)
    assert lazy.X.dtype == dtype
    assert_same_csr(lazy.X.compute(scheduler="synchronous"), x)
    assert_same_frame(lazy.to_memory().obs, obs)


def scanpy_steps(adata):
    import scanpy as sc

    sc.pp.calculate_qc_metrics(adata, inplace=True, percent_top=None)
    sc.pp.filter_genes(adata, min_cells=3)
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    sc.pp.highly_variable_genes(adata, n_top_genes=40)
    sc.pp.pca(adata, n_comps=5)
    return adata


@pytest.mark.parametrize("kind", ["counts", "values", "lazy"])
def test_scanpy_computes_on_the_store(tmp_path, kind):
    """Small dtypes give what float32 and int32 give; index widths are those SciPy works with."""
    housekeeping = sp.csr_matrix(np.ones((300, 1), np.float32))  # no empty cells
    x = sp.hstack([housekeeping, count_matrix(300, 80)], format="csr")
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    path = write(tmp_path / "a.zarr", x, 50, data_dtype=np.float32 if kind == "values" else None)
    stored = read_lazy(path).to_memory() if kind == "lazy" else ad.read_zarr(path)
    assert stored.X.dtype == (np.float32 if kind == "values" else np.uint8)
    assert stored.X.indices.dtype == stored.X.indptr.dtype == np.int32
    assert_same_csr(stored.X.T.tocsr(), x.T.tocsr())
    assert_same_csr(ad.concat([stored, stored], index_unique="-").X, sp.vstack([x, x], "csr"))
    cut = stored[[5, 2, 9], [7, 3, 60]].copy().X
    np.testing.assert_array_equal(cut.toarray(), x[[5, 2, 9]][:, [7, 3, 60]].toarray())
    stored, plain = scanpy_steps(stored), scanpy_steps(ad.AnnData(x))
    assert_same_frame(stored.obs, plain.obs, check_dtype=False)
    assert_same_frame(stored.var, plain.var, check_dtype=False)
    assert_same_csr(stored.X, plain.X)
    np.testing.assert_array_equal(stored.obsm["X_pca"], plain.obsm["X_pca"])


@pytest.mark.parametrize("dtype", [None, np.float32])
@pytest.mark.parametrize("announced", [0, 1, 2])
def test_index_widths_grow_together(tmp_path, small_chunks, monkeypatch, announced, dtype):
    """As from 2^31 values on, with the limit put at 1,000."""
    monkeypatch.setattr("scatlas.io.matrices.csr_writer._INT32_VALUES", 1_000)
    x = count_matrix(200)
    assert x.nnz > 2_000
    few = [write(tmp_path / f"{n}.zarr", x[:30], 9, n_values=n) for n in (0, 2_000)]
    assert x[:30].nnz < 1_000  # fewer than announced
    assert checksum(few[0]) == checksum(few[1])
    kwargs = {"data_dtype": dtype, "n_values": announced * x.nnz}
    adata = ad.read_zarr(write(tmp_path / "a.zarr", x, 9, **kwargs))
    assert adata.X.indices.dtype == adata.X.indptr.dtype == np.int64
    assert_same_csr(adata.X, x)
    write(tmp_path / "b.zarr", x, 200, data_dtype=dtype)
    assert checksum(tmp_path / "a.zarr") == checksum(tmp_path / "b.zarr")


def test_bytes_do_not_depend_on_blocks_or_threads(tmp_path, small_chunks, monkeypatch):
    """The late large value widens uint8 to uint16 after several shards are written."""
    x = count_matrix(300, largest=1)
    x.data[-5] = 999
    kwargs = {"obs": table(300), "var": table(60)}
    reference = checksum(write(tmp_path / "whole.zarr", x, 300, **kwargs))
    for step, threads in [(1, 1), (7, 2), (300, 5)]:
        monkeypatch.setattr(shards, "n_threads", lambda threads=threads: threads)
        path = write(tmp_path / f"{step}.zarr", x, step, **kwargs)
        assert checksum(path) == reference
    assert_same_csr(ad.read_zarr(tmp_path / "1.zarr").X, x)
    assert len(list((tmp_path / "1.zarr/X/data/c").iterdir())) == -(-x.nnz // 256)


def test_widening_equals_the_wide_dtype_from_the_start(tmp_path, small_chunks):
    early, late = count_matrix(300, largest=1), count_matrix(300, largest=1)
    early.data[0] = late.data[-1] = 70_000
    stores = [write(tmp_path / name, m, 9) for name, m in [("e", early), ("l", late)]]
    assert [ad.read_zarr(s).X.dtype for s in stores] == [np.uint32] * 2
    folders = [s / "X/data/c" for s in stores]
    n_shards = len(list(folders[0].iterdir()))
    assert n_shards == len(list(folders[1].iterdir())) > 4
    # Between the first and the last shard the two hold the same values.
    for number in range(1, n_shards - 1):
        one, other = (folder / str(number) for folder in folders)
        assert one.read_bytes() == other.read_bytes()
    assert not (stores[1] / "X/data.before").exists()


@pytest.mark.parametrize("n_genes, dtype", [(65_536, np.uint16), (65_537, np.int32)])
def test_blocks_of_counts_have_narrow_indices(tmp_path, n_genes, dtype):
    """With one chunk, and with many, which are narrowed in one call."""
    for n_cells in (1, 2**19 + 7):
        indices, offsets = np.tile([0, n_genes - 1], n_cells), 2 * np.arange(n_cells + 1)
        x = sp.csr_matrix((np.ones(2 * n_cells), indices, offsets), shape=(n_cells, n_genes))
        path = write(tmp_path / "a.zarr", x, n_cells)
        assert_same_csr(ad.read_zarr(path).X, x)
        lazy = read_matrix(path, compact=True, largest_block=2**30, block_budget="8GB")[0]
        ((read, block),) = dict(lazy.dask).values()
        found = read(block)
        assert (found.indices.dtype, found.indptr.dtype) == (dtype, np.int64)
        assert_same_csr(found, x)
        with pytest.raises(InputError, match=f"hold {n_genes - 1}, but must be 0 to 9"):
            read(replace(block, n_genes=10))


@pytest.mark.parametrize("value", [-1, 0.5, np.nan, np.inf, 2.0**32])
def test_what_is_no_count_is_refused(tmp_path, value):
    x = count_matrix(dtype=np.float64)
    x.data[17] = value
    with pytest.raises(InputError, match=r"a\.zarr: X holds"):
        write(tmp_path / "a.zarr", x, 10)
    assert list(tmp_path.iterdir()) == []


def test_misuse_leaves_nothing(tmp_path):
    x, path = count_matrix(), tmp_path / "a.zarr"
    wrong = x.copy()
    wrong.indices[5] = 60

    def write_rows_and_values_that_differ() -> None:
        with CsrWriter(path, n_vars=3) as store:
            store.append_values(np.ones(2), np.arange(2))
            store.append_rows(np.array([1]))

    for sentence, call in {
        "obs has 96 rows, X has 97": lambda: write(path, x, 10, obs=table(96)),
        "60 columns is due, not csc": lambda: write(path, x.tocsc(), 97),
        "out of range": lambda: write(path, wrong, 97),
        "rows of 1 values in all, but 2": write_rows_and_values_that_differ,
    }.items():
        with pytest.raises(ValueError, match=sentence):
            call()
    assert list(tmp_path.iterdir()) == []


def test_anndata_settings_stay_as_they_are(tmp_path):
    names = ("zarr_write_format", "auto_shard_zarr_v3", "allow_write_nullable_strings")
    before = [getattr(ad.settings, name) for name in names]
    write(tmp_path / "a.zarr", count_matrix(), 10, obs=table(97))
    assert [getattr(ad.settings, name) for name in names] == before


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 255, 256, 257, 1000])
@pytest.mark.parametrize("kind", ["counts", "indices", "offsets", "float", "dense", "text", "bool"])
def test_shards_equal_zarr_pythons(tmp_path, small_chunks, n, kind):
    """The streamed files are those that zarr-python writes in one go."""
    rng = np.random.default_rng(n)
    values, compression = {
        "counts": (rng.poisson(1, n).astype(np.uint8) + 1, COUNTS_CODEC),
        "indices": (rng.integers(1, 60_000, n).astype(np.uint16), INDICES_CODEC),
        "offsets": (np.cumsum(rng.integers(1, 9, n)).astype(np.int64), DENSE_CODEC),
        "float": (rng.random(n).astype(np.float32) + 1, NORMALIZED_CODEC),
        "dense": (rng.random((n, 5)).astype(np.float32) + 1, DENSE_CODEC),
        "text": (np.array([f"µ{i}" * (i % 9 + 1) for i in range(n)], object), DENSE_CODEC),
        "bool": (np.ones(n, bool), DENSE_CODEC),
    }[kind]
    options = {"row_shape": values.shape[1:], "attributes": {"k": 1}}
    with ThreadPoolExecutor(2) as pool:
        array = ShardedArray(tmp_path / "a", values.dtype, pool, compression=compression, **options)
        for lo in range(0, n, 37):
            array.append(values[lo : lo + 37])
        array.close()
    ours = zarr.open_array(tmp_path / "a", mode="r")
    np.testing.assert_array_equal(ours[...], values)
    theirs = zarr.create_array(
        tmp_path / "b",
        shape=values.shape,
        dtype=str if kind == "text" else values.dtype,
        chunks=ours.chunks,
        shards=ours.shards,
        compressors=ours.metadata.codecs[0].codecs[1:],
        attributes={"k": 1},
    )
    if n:
        theirs[...] = values
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_memory_stays_bounded(tmp_path):
    """40M values pass through; what is held at any time is chunks, not the array."""
    import tracemalloc

    block = count_matrix(2_000, 1_000, largest=9)
    block = sp.vstack([block] * 2, format="csr")
    tracemalloc.start()
    with CsrWriter(tmp_path / "a.zarr", n_vars=1_000) as store:
        for _ in range(10):
            store.append(block)
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    n = block.nnz * 10
    assert n > 10_000_000
    assert peak < 16e6 < 3 * n  # bytes; the values and indices take 3 bytes each


def test_metadata_is_what_zarr_python_consolidates(tmp_path):
    line = pd.Categorical(["a", "b", None])
    obs = pd.DataFrame({"line": line, "n": [1, 2, 3]}, index=list("xyz"))
    with CsrWriter(tmp_path / "a.zarr", n_vars=4, obs=obs) as writer:
        writer.append(sp.csr_matrix(np.eye(3, 4)))
    ours = json.loads((tmp_path / "a.zarr/zarr.json").read_text())
    assert ours["attributes"] == {
        "encoding-type": "anndata",
        "encoding-version": "0.1.0",
        "written_by": "scatlas",  # no chunk is left out, which by the format would mean zeros
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
        zarr.consolidate_metadata(tmp_path / "a.zarr")
    assert ours == json.loads((tmp_path / "a.zarr/zarr.json").read_text())


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("width", [(), (3,)])
def test_chunks_encoded_together_have_the_bytes_of_chunks_encoded_alone(
    tmp_path, monkeypatch, dtype, width
):
    monkeypatch.setattr(shards, "CHUNK_VALUES", 2**8)
    monkeypatch.setattr(shards, "SHARD_VALUES", 2**11)
    values = np.random.default_rng(3).integers(0, 9, (2**11 * 3 + 77, *width)).astype(dtype)
    written = {}
    for name, run_bytes in (("alone", 2**21), ("runs", 2**21), ("few", 9)):
        monkeypatch.setattr(shards, "_RUN_BYTES", run_bytes)
        with (
            shards.encoding_pool() as pool,
            ShardedArray(tmp_path / name, dtype, pool, row_shape=width) as array,
        ):
            for piece in np.split(values, [100, 3_000, 3_001, 5_000]):
                array.append(np.ascontiguousarray(piece), copy=name == "alone")
        written[name] = files(tmp_path / name)
    assert written["alone"] == written["runs"] == written["few"]
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "runs", mode="r")[...], values)


def test_parameters_are_written_as_anndata_writes_them(tmp_path):
    params = {"zero_center": True, "use_highly_variable": False, "mask_var": "highly_variable"}
    create_group(tmp_path / "whole", DICT)
    write_elem(open_group_to_write(tmp_path / "whole"), "params", params)
    write_params(tmp_path / "own" / "params", params)
    found = files(tmp_path / "own" / "params")
    assert found == files(tmp_path / "whole" / "params")
    assert len(found) == 6
