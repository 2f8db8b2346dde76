"""read_lazy gives what anndata's own readers give, whatever the layout on disk."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path

import anndata as ad
import dask
import dask.array as da
import h5py
import hdf5plugin
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import scatlas as sa
from scatlas._util.numbers import parse_bytes
from scatlas.compute.memory import csr_blocks, dense_blocks
from scatlas.errors import ConfigError, InputError, MissingPackageError
from scatlas.io.files import anndata_file as store_module
from scatlas.io.files.anndata_file import Store
from scatlas.io.products.load_plate import load_plate
from tests.helpers import plates
from tests.helpers.frames import assert_same_frame

FILTERS = {"none": None, "gzip": "gzip", "zstd": hdf5plugin.FILTERS["zstd"]}


def write(adata: ad.AnnData, folder: Path, layout: str) -> Path:
    """Store ``adata`` in an h5ad file with one of the filters, or in Zarr of a version."""
    if layout in FILTERS:
        return plates.write(adata, folder / f"{layout}.h5ad", compression=FILTERS[layout])
    return plates.write(adata, folder / f"{layout}.zarr", int(layout[4]))


def reference(path: Path) -> ad.AnnData:
    return ad.read_h5ad(path) if path.suffix == ".h5ad" else ad.read_zarr(path)


def example(n_cells: int, n_genes: int, *, seed: int = 0, dtype: type = np.float32) -> ad.AnnData:
    """Counts with empty rows."""
    rng = np.random.default_rng(seed)
    x = sp.random(n_cells, n_genes, 0.4, format="csr", rng=rng, dtype=np.float64)
    x.data = np.ceil(x.data * 9)
    keep = np.repeat(rng.random(n_cells) < 0.7, np.diff(x.indptr))
    x.data[~keep] = 0
    x.eliminate_zeros()
    obs = pd.DataFrame(
        {"line": pd.Categorical(rng.choice(["a", "b"], n_cells)), "n": rng.random(n_cells)},
        index=[f"c{i}" for i in range(n_cells)],
    )
    var = pd.DataFrame({"id": [f"E{i}" for i in range(n_genes)]}, [f"g{i}" for i in range(n_genes)])
    return ad.AnnData(x.astype(dtype), obs=obs, var=var)


def assert_same(lazy: ad.AnnData, eager: ad.AnnData) -> None:
    x, wanted = lazy.X.compute(scheduler="threads"), eager.X
    assert x.dtype == wanted.dtype == lazy.X.dtype
    assert x.format == "csr"
    assert (x != wanted).nnz == 0
    pd.testing.assert_frame_equal(lazy.obs, eager.obs)
    pd.testing.assert_frame_equal(lazy.var, eager.var)


def test_csc_is_converted_within_the_budget_only(tmp_path, caplog):
    adata = example(20, 6)
    adata.X = adata.X.tocsc()
    path = write(adata, tmp_path, "none")
    with caplog.at_level("INFO"):
        sa.read_lazy(path, block_budget="1MB")
    assert "converted to CSR" in caplog.text
    with pytest.raises(InputError, match="more than the block budget"):
        sa.read_lazy(path, block_budget=100)


@pytest.mark.parametrize("has_x", [True, False])
def test_layers_mappings_and_uns(tmp_path, has_x):
    adata = example(20, 6)
    adata.layers["raw"] = adata.X.copy()
    adata.layers["dense"] = adata.X.toarray()
    adata.obsm["small"] = np.arange(20.0).reshape(20, 1)
    adata.obsm["large"] = np.random.default_rng(0).random((20, 30))
    adata.obsp["graph"] = sp.eye_array(20, format="csr")
    adata.uns["about"] = {"a": 1, "b": np.arange(3)}
    if not has_x:
        adata.X = None
    lazy = sa.read_lazy(write(adata, tmp_path, "none"), block_budget=1000)
    assert (lazy.X is not None) == has_x
    assert (lazy.layers["raw"].compute() != adata.layers["raw"]).nnz == 0
    assert isinstance(lazy.layers["dense"].blocks[0].compute(), np.ndarray)
    assert isinstance(lazy.obsm["small"], np.ndarray)
    assert lazy.obsm["large"].numblocks[0] > 1
    for found, wanted in ((lazy.layers, adata.layers), (lazy.obsm, adata.obsm)):
        for name in {"dense", "small", "large"} & {*found}:
            np.testing.assert_array_equal(np.asarray(found[name]), wanted[name])
    assert (lazy.obsp["graph"] != adata.obsp["graph"]).nnz == 0
    assert lazy.uns["about"]["a"] == 1


def example_with_raw(kind: type) -> ad.AnnData:
    whole = example(60, 12)
    whole.X = kind(whole.X)
    whole.varm["loadings"] = np.arange(24.0).reshape(12, 2)
    adata = whole[:, 3:8].copy()
    adata.raw = whole
    return adata


@pytest.mark.parametrize("layout", ["none", "zarr2", "zarr3"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csc_matrix, sp.csr_matrix.toarray])
def test_raw_stays_on_disk(tmp_path, layout, kind):
    adata = example_with_raw(kind)
    lazy = sa.read_lazy(write(adata, tmp_path, layout), block_budget="10kB")
    assert isinstance(lazy.raw.X, da.Array)
    assert lazy.raw.X.numblocks[0] > 1
    filtered, wanted = lazy.copy(), adata.copy()
    sa.pp.filter_cells(filtered, min_genes=1)
    sa.pp.filter_cells(wanted, min_genes=1)
    assert wanted.n_obs < adata.n_obs
    assert isinstance(filtered.raw.X, da.Array)
    (tmp_path / "again").mkdir()
    again = reference(write(lazy, tmp_path / "again", layout))
    for found, raw in [
        *((lazy.to_memory().raw, adata.raw), (again.raw, adata.raw)),
        (filtered.to_memory().raw, wanted.raw),
    ]:
        assert abs(found.X - sp.csr_matrix(raw.X)).sum() == 0
        pd.testing.assert_frame_equal(found.var, raw.var)
        np.testing.assert_array_equal(found.varm["loadings"], raw.varm["loadings"])


def test_raw_of_old_files_and_raw_that_is_empty(tmp_path):
    adata = example_with_raw(sp.csr_matrix)
    path = write(adata, tmp_path, "none")
    with h5py.File(path, "r+") as file:
        for name in ("X", "var", "varm"):
            file.move(f"raw/{name}", f"raw.{name}")
        del file["raw"]
    assert (sa.read_lazy(path).raw.X.compute() != adata.raw.X).nnz == 0
    path = write(example(9, 4), tmp_path, "gzip")
    with h5py.File(path, "r+") as file:
        file["raw"] = h5py.Empty("f4")
        file["raw"].attrs["encoding-type"] = "null"
        file["raw"].attrs["encoding-version"] = "0.1.0"
    assert sa.read_lazy(path).raw is None


@pytest.mark.parametrize("base", [None, 2.0])
def test_functions_take_the_same_raw_as_in_memory(tmp_path, base):
    """Also where the base of the logarithm is the natural one, which h5ad leaves out."""
    adata = example_with_raw(sp.csr_matrix)
    adata.uns["log1p"] = {"base": base}
    lazy = sa.read_lazy(write(adata, tmp_path, "none"), block_budget="1kB")
    for each in (adata, lazy):
        sa.tl.rank_genes_groups(each, "line")
        sa.tl.score_genes(each, ["g0", "g11"], n_bins=3, ctrl_size=2)
    ranked, wanted = (each.uns["rank_genes_groups"] for each in (lazy, adata))
    assert ranked["params"]["use_raw"]
    for name in ("names", "logfoldchanges"):
        np.testing.assert_array_equal(ranked[name], wanted[name])
    np.testing.assert_array_equal(lazy.obs["score"], adata.obs["score"])


def test_file_without_root_encoding(tmp_path):
    """Files of anndata 0.7 have encodings on their elements, but none at the root."""
    path = write(example(9, 4), tmp_path, "none")
    with h5py.File(path, "r+") as file:
        del file.attrs["encoding-type"], file.attrs["encoding-version"]
    assert_same(sa.read_lazy(path), reference(path))


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes())


def shorten(path: Path) -> None:
    stat = path.stat()
    path.write_bytes(path.read_bytes()[:-1])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_one_thread_at_a_time_looks_for_changes(tmp_path, monkeypatch):
    """The others read on: a list of all files per block and thread takes longer than the block."""
    path = write(example(9, 4), tmp_path, "zarr3")
    store, looks = Store.find(path), []

    def look(*args: object) -> str:
        looks.append(args)
        store.check_unchanged()  # as another thread does meanwhile
        return store.stamp

    monkeypatch.setattr("scatlas.io.files.anndata_file._local_stamp", look)
    store.check_unchanged()
    assert len(looks) == 1


def rename(path: Path) -> None:
    path.rename(path.with_name("other"))


@pytest.mark.parametrize("layout", ["zarr2", "zarr3"])
@pytest.mark.parametrize("change", [rewrite, shorten, rename, Path.unlink])
def test_a_store_changed_in_place_is_another(tmp_path, layout, change):
    """Whichever file it is: root metadata say nothing of the chunks."""
    path = write(example(9, 4), tmp_path, layout)
    names = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
    kinds = {name.parts[0]: name for name in names}  # the last of X, obs, var, layers ...
    assert len(kinds) > 5
    for name in kinds.values():
        copy = Path(shutil.copytree(path, tmp_path / "copy"))
        stores = [Store.find(copy), Store.find(copy)]
        stores[0].check_unchanged()
        change(copy / name)
        for store in stores:
            with pytest.raises(InputError, match="has changed since it was opened"):
                store.check_unchanged(at_end=True)
        shutil.rmtree(copy)


def test_looks_at_all_files_of_a_large_store_take_little_of_the_time(tmp_path, monkeypatch):
    """A reader asks before each block."""
    path = write(example(9, 4), tmp_path, "zarr3")
    looks = []
    slow = lambda folder: looks.append(folder) or time.sleep(0.05) or "same"  # noqa: E731
    monkeypatch.setattr(store_module, "folder_stamp", slow)
    store = Store.find(path)
    for _ in range(100):
        store.check_unchanged()
    assert len(looks) == 2, "one at the beginning, and one since"
    store.check_unchanged(at_end=True)
    assert len(looks) == 3


@pytest.mark.parametrize("layout", ["gzip", "zarr3"])
def test_names_are_deterministic(tmp_path, layout):
    path = write(example(30, 4), tmp_path, layout)
    one, two = (sa.read_lazy(path, block_budget=800) for _ in range(2))
    assert one.X.name == two.X.name
    assert sa.read_lazy(path, block_budget=4000).X.name != one.X.name
    target = path if path.is_file() else path / "zarr.json"
    stat = target.stat()
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert sa.read_lazy(path, block_budget=800).X.name != one.X.name


@pytest.mark.parametrize("workers", [1, 4])
def test_same_blocks_for_any_number_of_threads(tmp_path, workers):
    path = write(example(30, 4), tmp_path, "gzip")
    wanted = csr_blocks(reference(path).X.indptr.astype(np.int64), 800)
    with dask.config.set(num_workers=workers):
        assert sa.read_lazy(path, block_budget=800).X.chunks[0] == tuple(b - a for a, b in wanted)


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
@pytest.mark.parametrize("layout", ["none", "zarr3"])
def test_index_out_of_range_does_not_reach_compiled_code(tmp_path, layout, bad):
    path = write(example(30, 4), tmp_path, layout)
    with h5py.File(path, "r+") if layout == "none" else nullcontext(zarr.open(path)) as root:
        root["X/indices"][3] = bad
    with pytest.raises(
        InputError, match=rf"X/indices of cells \d+ to \d+ hold {bad}, but must be 0"
    ):
        sa.read_lazy(path, block_budget=800).X.compute()


def test_url(tmp_path):
    for layout in ("gzip", "zarr3", "zarr2"):
        path = write(example(9, 4), tmp_path, layout)
        assert_same(sa.read_lazy(path.as_uri()), reference(path))


def test_url_in_memory():
    """A file system without local files behind it."""
    import fsspec

    memory = fsspec.filesystem("memory")
    with memory.open("/plates/a.h5ad", "wb") as file, h5py.File(file, "w") as root:
        ad.io.write_elem(root, "/", example(9, 4))
    lazy = sa.read_lazy("memory://plates/a.h5ad", block_budget=300)
    assert lazy.X.numblocks[0] > 1
    assert (lazy.X.compute() != example(9, 4).X).nnz == 0
    with pytest.raises(InputError, match="no such file"):
        sa.read_lazy("memory://plates/b.h5ad")
    memory.rm("/plates", recursive=True)


def test_url_of_a_web_server(tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec reads http addresses through aiohttp")
    import functools
    import http.server
    import threading

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    paths = [write(example(9, 4), tmp_path, layout) for layout in ("gzip", "zarr3")]
    serve = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path in paths:
            url = f"http://127.0.0.1:{server.server_port}/{path.name}"
            assert_same(sa.read_lazy(url), reference(path))
        server.shutdown()


def test_url_without_its_package():
    import fsspec

    fsspec.register_implementation(
        "absent", "no_such_package.FileSystem", errtxt="Install no_such_package"
    )
    message = r"needs a package that does not load \(Install no_such_package\): install it"
    with pytest.raises(MissingPackageError, match=message):
        sa.read_lazy("absent://bucket/a.h5ad")
    with pytest.raises(InputError, match="no package reads 'nosuch' addresses"):
        sa.read_lazy("nosuch://bucket/a.h5ad")


def test_blocks_fit_their_share():
    rng = np.random.default_rng(0)
    indptr = np.r_[0, np.cumsum(rng.integers(0, 50, 1000))]
    blocks = csr_blocks(indptr, 8 * 1000)
    assert blocks[0][0] == 0
    assert blocks[-1][1] == 1000
    for (first, stop), (following, _) in zip(blocks, [*blocks[1:], (1000, 0)], strict=True):
        assert stop == following
        size = 8 * (indptr[stop] - indptr[first]) + 8 * (stop - first)
        assert size <= 1000
        if stop < 1000:  # and one row more would not fit
            assert 8 * (indptr[stop + 1] - indptr[first]) + 8 * (stop + 1 - first) > 1000
    assert csr_blocks(indptr, 1) == [(i, i + 1) for i in range(1000)]
    assert csr_blocks(indptr, 10**9, 1000) == blocks
    assert csr_blocks(np.zeros(1, np.int64), 100) == [(0, 0)]
    assert dense_blocks(5, 10, 8 * 25) == [(0, 2), (2, 4), (4, 5)]
    assert dense_blocks(0, 10, 80) == [(0, 0)]


@pytest.mark.parametrize(
    "text, wanted",
    [
        *[("256MB", 256 * 10**6), ("1.5 GiB", 3 * 2**29), ("100", 100), (77, 77)],
        *[("2kb", 2000), (".5 k", 500), ("3T", 3 * 10**12), ("8B", 8)],
    ],
)
def test_parse_bytes(text, wanted):
    assert parse_bytes(text) == wanted


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "-5MB", "0", "1e9", "nan", "1ib"])
def test_parse_bytes_refuses(text):
    with pytest.raises(ConfigError, match="such as 256MB"):
        parse_bytes(text)


def write_as_r(path: Path) -> None:
    """Make attributes arrays of one, and text of a fixed length, as R writes them."""

    def of_r(_: str, element: h5py.Group | h5py.Dataset) -> None:
        for name, value in dict(element.attrs).items():
            if isinstance(value, str):
                element.attrs[name] = np.array([value.encode()])
            elif name == "ordered":
                element.attrs[name] = np.array([int(value)])
            elif name == "column-order" and len(value):
                element.attrs[name] = np.array(value, "S")

    with h5py.File(path, "r+") as file:
        of_r("", file)
        file.visititems(of_r)
        names = ("obs/_index", "obs/line/categories")
        texts = {name: file[name].asstr()[:].astype("S") for name in names}
    plates.spoiled(path, *(plates.array(name, values) for name, values in texts.items()))


def test_attributes_that_are_arrays_of_one_as_r_writes_them(tmp_path):
    wanted = example(40, 12)
    wanted.obs["line"] = pd.Categorical.from_codes(np.arange(40) % 2, ["b", "a"], ordered=False)
    wanted.obs["dose"] = pd.Categorical.from_codes(np.arange(40) % 3, ["1", "2", "9"], ordered=True)
    wanted.obs["seen"] = pd.array([True, None] * 20, dtype="boolean")
    wanted.uns["pca"] = {"params": {"zero_center": True, "mask_var": "hvg"}, "variance": np.ones(3)}
    wanted.uns["table"] = wanted.obs[["dose"]].copy()
    wanted.obsm["frame"] = wanted.obs[["seen"]].copy()
    wanted.raw = wanted
    path = write(wanted, tmp_path, "none")
    write_as_r(path)
    found = sa.read_lazy(path)
    for place in ("obs", "var", "raw.var", "obsm", "uns"):
        own, right = (attrgetter(place)(adata) for adata in (found, wanted))
        key = {"obsm": "frame", "uns": "table"}.get(place)
        assert_same_frame(own[key] if key else own, right[key] if key else right)
    assert found.uns["pca"]["params"] == {"zero_center": True, "mask_var": "hvg"}
    assert (found.X.compute() != wanted.X).nnz == 0
    load_plate(path, tmp_path / "counts.zarr", plate="p", mt_prefix=None)
    loaded = ad.read_zarr(tmp_path / "counts.zarr").obs
    assert_same_frame(loaded[list(wanted.obs)], wanted.obs)
