"""Exports of an atlas, opened by the programs for which they are, or as these read them."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import scatlas.export._nodes as nodes
from scatlas.compute.threads import use_threads
from scatlas.errors import InputError
from scatlas.export import to_annbatch, to_cellxgene, to_h5ad, to_vitessce
from scatlas.io import CsrWriter, checksum, write_cells
from scatlas.io.zarr_writer.elements import (
    ANNDATA,
    consolidate,
    create_group,
    open_group_to_write,
    write_elem,
)
from scatlas.workflow.command_line.main import main
from tests.helpers.frames import assert_same_frame

ROOT = Path(__file__).parents[3]
CELLS, GENES = 700, 30
LINES = ("A549", "HeLa", "µ-line", "empty")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Pieces that are smaller than the arrays, and that cut rows."""
    monkeypatch.setattr(nodes, "_PIECE_VALUES", 500)
    monkeypatch.setattr(nodes, "WEB_CHUNK_VALUES", 100)


def table():
    """A column of each kind that an atlas has."""
    i = np.arange(CELLS)
    return pd.DataFrame(
        {
            "cell_line": pd.Categorical.from_codes(i % 4 - 1, LINES),
            "leiden": pd.Categorical.from_codes(i % 12, [str(k) for k in range(12)]),
            "total_counts": i * 7,
            "huge": i * 10_000_000_000,
            "gap": pd.array([None if k % 5 == 0 else k for k in i], dtype="Int64"),
            "yes": pd.array([None if k % 7 == 0 else k % 2 == 0 for k in i], dtype="boolean"),
            "share": i / CELLS,
            "kept": i % 3 == 0,
            "note": [f"µ{k}" for k in i],
        },
        index=pd.Index([f"cell{k}" for k in i], name="BARCODE"),
    )


def matrix():
    rng = np.random.default_rng(0)
    return sp.random(CELLS, GENES, 0.3, format="csr", rng=rng, dtype=np.float32)


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    """Atlas with everything that the workflow writes, and nothing beside it."""
    path = tmp_path_factory.mktemp("atlas") / "atlas.zarr"
    with CsrWriter(path, n_vars=GENES, data_dtype=np.float32) as store:
        store.append(matrix())
        store.obs = table()
        store.var = pd.DataFrame({"means": np.arange(GENES) / 3}, index=genes())
    rng = np.random.default_rng(1)
    create_group(path, ANNDATA)  # anndata adds nothing to consolidated metadata
    root = open_group_to_write(path)
    umap = rng.normal(size=(CELLS, 2))
    write_elem(root, "obsm", {"X_umap": umap, "X_pca": rng.random((CELLS, 5), np.float32)})
    write_elem(root, "varm", {"PCs": rng.random((GENES, 5))})
    uns = {"pca": {"variance": rng.random(5)}, "scatlas": {"seed": 0, "version": "1", "x": None}}
    write_elem(root, "uns", {**uns, "flags": {"centred": True}, "names": np.array(["a", "µ"])})
    consolidate(path)
    return path


def genes():
    return [f"g{i}" for i in range(GENES)]


def test_h5ad_has_equal_content(atlas, tmp_path):
    to_h5ad(atlas, tmp_path / "atlas.h5ad")
    found, expected = ad.read_h5ad(tmp_path / "atlas.h5ad"), ad.read_zarr(atlas)
    for part in ("indptr", "indices", "data"):
        actual = getattr(found.X, part)
        np.testing.assert_array_equal(actual, getattr(expected.X, part), strict=True)
    assert_same_frame(found.obs, expected.obs)
    assert_same_frame(found.var, expected.var)
    for mapping in ("obsm", "varm"):
        assert getattr(found, mapping).keys() == getattr(expected, mapping).keys()
        for name, values in getattr(expected, mapping).items():
            np.testing.assert_array_equal(getattr(found, mapping)[name], values, strict=True)
    np.testing.assert_equal(found.uns, expected.uns)
    assert found.uns["scatlas"] == {"seed": 0, "version": "1", "x": None}
    lazy = ad.read_h5ad(tmp_path / "atlas.h5ad", backed="r")
    assert (lazy.X[10:20] != matrix()[10:20]).nnz == 0
    lazy.file.close()


def test_h5ad_of_a_store_with_x_obs_and_var_alone(atlas, tmp_path):
    shutil.copytree(atlas, tmp_path / "bare.zarr")
    for name in ("varm", "layers", "obsp", "varp", "uns"):
        shutil.rmtree(tmp_path / "bare.zarr" / name)
    consolidate(tmp_path / "bare.zarr")
    to_h5ad(tmp_path / "bare.zarr", tmp_path / "bare.h5ad")
    assert (matrix() != ad.read_h5ad(tmp_path / "bare.h5ad").X).nnz == 0


def test_h5ad_opens_without_anndata(atlas, tmp_path):
    """Attributes have the types that anndata writes, on which readers in R and C rely."""
    to_h5ad(atlas, tmp_path / "ours.h5ad")
    ad.read_zarr(atlas).write_h5ad(tmp_path / "theirs.h5ad")

    def described(path):
        found = {}
        with h5py.File(path) as file:
            file.visititems(
                lambda name, node: found.update(
                    {
                        name: (
                            {key: str(np.asarray(v).dtype.kind) for key, v in node.attrs.items()},
                            str(getattr(node, "dtype", "")),
                        )
                    }
                )
            )
        return found

    assert described(tmp_path / "ours.h5ad") == described(tmp_path / "theirs.h5ad")


def test_cellxgene(atlas, tmp_path):
    """As CZ CELLxGENE Annotate asks: X as CSC, numbers of 32 bits, colours of each category."""
    out = tmp_path / "cellxgene.h5ad"
    to_cellxgene(atlas, out)
    adata = ad.read_h5ad(out)
    check_for_browsers(adata)
    assert set(adata.uns) == {"cell_line_colors", "leiden_colors"}
    for name in ("cell_line", "leiden"):
        colors = list(adata.uns[f"{name}_colors"])
        assert len(set(colors)) == len(adata.obs[name].cat.categories)
        assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cellxgene.h5ad"]


def check_for_browsers(adata):
    assert isinstance(adata.X, sp.csc_matrix)
    assert (matrix().tocsc() != adata.X).nnz == 0
    dtypes = {name: str(dtype) for name, dtype in adata.obs.dtypes.items()}
    assert dtypes["total_counts"] == "int32"
    assert dtypes["huge"] == dtypes["gap"] == dtypes["yes"] == dtypes["share"] == "float32"
    assert dtypes["kept"] == "bool"
    expected = table()
    for name in ("cell_line", "leiden", "note", "total_counts", "kept"):
        assert list(adata.obs[name].astype(str)) == list(expected[name].astype(str)), name
    gaps = expected["gap"].to_numpy(np.float32, na_value=np.nan)
    np.testing.assert_array_equal(adata.obs["gap"], gaps)
    np.testing.assert_allclose(adata.obs["huge"], expected["huge"], rtol=1e-6)
    assert adata.obsm["X_umap"].dtype == np.float32
    assert list(adata.obs_names) == list(expected.index)
    assert list(adata.var_names) == genes()
    assert not adata.layers
    assert not adata.obsp


def test_vitessce(atlas, tmp_path):
    out = tmp_path / "vitessce"
    to_vitessce(atlas, out)
    check_for_browsers(ad.read_zarr(out / "atlas.zarr"))
    root = zarr.open_group(out / "atlas.zarr", mode="r")
    assert root.metadata.zarr_format == 2
    assert root["X"].attrs["encoding-type"] == "csc_matrix"
    assert root["X/data"].chunks == (100,)
    assert root["X/data"].shards is None

    config = json.loads((out / "view.json").read_text("utf-8"))
    (dataset,) = config["datasets"]
    (file,) = dataset["files"]
    assert (out / file["url"]).is_dir()
    options = file["options"]
    paths = [options["obsFeatureMatrix"]["path"], options["obsEmbedding"][0]["path"]]
    paths += [part["path"] for part in options["obsSets"]]
    assert [path for path in paths if path not in root] == []
    assert [part["name"] for part in options["obsSets"]] == ["leiden", "cell_line"]
    colors = config["coordinationSpace"]["obsSetColor"]["A"]
    named = {tuple(entry["path"]) for entry in colors}
    assert named == {("leiden", str(k)) for k in range(12)} | {("cell_line", k) for k in LINES}
    scopes = config["coordinationSpace"]
    for view in config["layout"]:
        assert all(name in scopes for name in view["coordinationScopes"])


def read_annbatch(folder):
    """Cells in the order of the export."""
    root = zarr.open_group(folder, mode="r")
    assert dict(root.attrs)["encoding-type"] == "annbatch-preshuffled"
    assert dict(root.attrs)["encoding-version"] == "0.1.0"
    datasets = sorted(root, key=lambda name: int(name.partition("_")[2]))
    assert datasets == [f"dataset_{i}" for i in range(len(datasets))]
    assert {root[name]["X"].attrs["encoding-type"] for name in datasets} == {"csr_matrix"}
    return [ad.read_zarr(folder / name) for name in datasets]


def test_annbatch_has_each_cell_once_in_random_order(atlas, tmp_path):
    out = tmp_path / "train.zarr"
    to_annbatch(atlas, out, dataset_cells=200)
    parts = read_annbatch(out)
    assert len(parts) == 4
    order = np.concatenate([part.obs_names.str.slice(4).astype(int) for part in parts])
    assert sorted(order) == list(range(CELLS))
    for part in parts:
        rows = part.obs_names.str.slice(4).astype(int)
        assert (matrix()[rows] != part.X).nnz == 0
        assert_same_frame(part.obs, table().iloc[rows])  # with all categories
        assert list(part.var_names) == genes()
    # Neither neighbours stay together, nor do cells stay at their place.
    assert abs(np.corrcoef(order, np.arange(CELLS))[0, 1]) < 0.15
    assert (np.abs(np.diff(order)) == 1).mean() < 0.02


def test_annbatch_depends_on_the_seed_alone(atlas, tmp_path):
    digests = {}
    for seed, budget, threads in ((1, "256MB", 1), (1, 20_000, 4), (1, 20_000, 2), (2, "256MB", 2)):
        out = tmp_path / f"{seed}-{budget}-{threads}.zarr"
        with use_threads(threads):
            to_annbatch(atlas, out, seed=seed, dataset_cells=200, block_budget=budget)
        digests.setdefault(seed, set()).add(checksum(out))
    assert len(digests[1]) == 1
    assert digests[1] != digests[2]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="annbatch needs Python 3.12")
@pytest.mark.filterwarnings("default")
def test_annbatch_reads_it(atlas, tmp_path):
    import annbatch  # the lock has it: without it the test fails

    out = tmp_path / "train.zarr"
    to_annbatch(atlas, out, dataset_cells=200)
    collection = annbatch.DatasetCollection(out, mode="r")
    assert not collection.is_empty
    loader = annbatch.Loader(
        batch_size=32, chunk_size=16, preload_nchunks=4, preload_to_gpu=False, drop_last=False
    )
    loader.use_collection(collection)
    read = []
    for batch in loader:
        rows = batch["obs"].index.str.slice(4).astype(int)
        assert (sp.csr_matrix(batch["X"]) != matrix()[rows]).nnz == 0
        read += list(rows)
    assert sorted(read) == list(range(CELLS))


FORMS = {
    "h5ad": to_h5ad,
    "cellxgene": to_cellxgene,
    "vitessce": to_vitessce,
    "annbatch": to_annbatch,
}


@pytest.mark.parametrize("form", FORMS)
def test_the_command(atlas, tmp_path, capsys, form):
    out = tmp_path / "out"
    assert main(["export", str(atlas), f"--{form}", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}\n"
    FORMS[form](atlas, tmp_path / "other")
    # HDF5 files hold no time, but the order of their parts is HDF5's.
    assert checksum(out) == checksum(tmp_path / "other")
    before = checksum(out)
    assert main(["export", str(atlas), f"--{form}", str(out)]) == 1
    message = f"error: {out}: it exists already: move it away, or give another name\n"
    assert capsys.readouterr().err.endswith(message)
    assert checksum(out) == before


def test_the_lines_of_the_page(atlas, tmp_path, monkeypatch):
    """docs/results.md: its commands and its Python, in a folder with results."""
    text = (ROOT / "docs/results.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(atlas, tmp_path / "results/atlas.zarr")
    lines = re.findall(r"^scatlas (export .*)$", text, re.MULTILINE)
    assert len(lines) == len(FORMS)
    for line in lines:
        assert main(line.split()) == 0
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    local = [block.replace("GENE", "g5") for block in blocks if "s3://" not in block]
    local = [block.partition("counts =")[0] for block in local]  # of the plates' folders
    names = {}
    for block in local:
        exec("import scatlas as sa\n" + block, names)
    np.testing.assert_array_equal(names["values"], matrix().toarray()[:, 5])


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_atlas_leaves_nothing(atlas, tmp_path, capsys, form):
    copy = tmp_path / "atlas.zarr"
    shutil.copytree(atlas, copy)
    shard = copy / "X/data/c/0"
    content = bytearray(shard.read_bytes())
    content[20:60] = bytes(40)
    shard.write_bytes(content)
    assert main(["export", str(copy), f"--{form}", str(tmp_path / "out")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert str(copy) in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["atlas.zarr"]


@pytest.fixture
def with_plate(atlas, tmp_path):
    """The atlas in the folder of its results, of one plate that measures 20 genes more."""
    path = tmp_path / "results/atlas.zarr"
    shutil.copytree(atlas, path)
    rng = np.random.default_rng(2)
    counts = sp.csr_matrix(rng.poisson(0.3, (CELLS + 1, GENES + 20)).astype(np.uint16))
    kept = np.flatnonzero(np.arange(CELLS + 1) != 7)
    factors = np.linspace(0.5, 2, CELLS)
    plate = path.parent / "plates/p1"
    names = [*genes(), *(f"more{i}" for i in range(20))]
    var = pd.DataFrame({"symbol": [name.upper() for name in names]}, index=names)
    with CsrWriter(plate / "counts.zarr", n_vars=len(names), var=var) as store:
        store.append(counts)
    cells = pd.DataFrame({"row": kept, "size_factor": factors})
    write_cells(plate / "size_factors.parquet", cells, [np.array(table().index, object)])
    create_group(path, ANNDATA)  # as above
    config = {"genes": "same", "qc": {"gene_names": None}}
    record = {"config": json.dumps(config), "plates": json.dumps([{"plate": "p1"}])}
    write_elem(open_group_to_write(path / "uns"), "scatlas", record)
    write_elem(open_group_to_write(path), "obs", table().assign(size_factor=factors))
    consolidate(path)
    return path, counts[kept], factors


@pytest.mark.parametrize("form", ["h5ad", "cellxgene"])
def test_measured_genes_and_counts(with_plate, tmp_path, form):
    atlas, counts, factors = with_plate
    FORMS[form](atlas, tmp_path / "all.h5ad", genes="all", counts=True, block_budget="16MB")
    found = ad.read_h5ad(tmp_path / "all.h5ad")
    raw = found.layers["counts"] if form == "h5ad" else found.raw.X
    assert (raw != counts).nnz == 0
    assert found.X.dtype == raw.dtype == np.float32
    expected = np.log1p(counts.toarray() / factors[:, None])
    np.testing.assert_allclose(found.X.toarray(), expected, rtol=2e-7)
    assert list(found.var_names[-2:]) == ["more18", "more19"]
    assert np.isnan(found.var["means"].iloc[-20:]).all()
    assert found.var["means"].notna().sum() == GENES
    assert not found.varm["PCs"][-20:].any()
    np.testing.assert_allclose(found.varm["PCs"][:-20], ad.read_zarr(atlas).varm["PCs"], rtol=1e-6)
    FORMS[form](atlas, tmp_path / "few.h5ad", genes=["MORE3", "g2"])
    few = ad.read_h5ad(tmp_path / "few.h5ad")
    assert list(few.var_names) == ["more3", "g2"]
    assert (few.X != found[:, ["more3", "g2"]].X).nnz == 0
    assert not few.layers
    assert few.raw is None
    assert {path.name for path in tmp_path.iterdir()} == {"results", "all.h5ad", "few.h5ad"}


def test_the_plates_have_to_be_beside_the_atlas(atlas, with_plate, tmp_path, capsys):
    def refuse(path, *genes):
        line = ["export", str(path), "--h5ad", str(tmp_path / "out"), "--genes", *genes]
        assert main(line) == 1
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    assert "does not say which plates it has" in refuse(atlas, "all")
    path, *_ = with_plate
    assert "--genes: no plate measures a gene 'g_1'" in refuse(path, "g_1")
    (tmp_path / "names.txt").write_text("more1\nmoore2\tB\n")
    assert "'moore2' (there are 50 genes): close names are 'more2'" in refuse(
        path, str(tmp_path / "names.txt")
    )
    factors = path.parent / "plates/p1/size_factors.parquet"
    cells = pd.read_parquet(factors)
    cells.assign(size_factor=1.0).to_parquet(factors)
    assert "other cells or size factors than it: run scatlas run first" in refuse(path, "all")
    factors.unlink()
    assert f"({factors} is missing): give the atlas in the folder" in refuse(path, "all")


@pytest.mark.parametrize("form", ["cellxgene", "vitessce"])
def test_an_atlas_without_a_map_says_so(tmp_path, form):
    with CsrWriter(tmp_path / "atlas.zarr", n_vars=GENES, data_dtype=np.float32) as store:
        store.append(matrix())
    with pytest.raises(InputError, match=r"there is no obsm\['X_umap'\] to show"):
        FORMS[form](tmp_path / "atlas.zarr", tmp_path / "out")


def test_an_h5ad_file_is_no_atlas(tmp_path):
    ad.AnnData(matrix()).write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(InputError, match="only a Zarr store can be exported"):
        to_h5ad(tmp_path / "a.h5ad", tmp_path / "b.h5ad")


def test_one_form_at_a_time(capsys):
    with pytest.raises(SystemExit):
        main(["export", "atlas.zarr", "--h5ad", "a", "--vitessce", "b"])
    assert "not allowed with argument" in capsys.readouterr().err
