"""What the steps of the map hand on, and the file for users in which it ends."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata.io import read_elem

import scatlas.io.zarr_writer.sharded_array as shards
from scatlas.errors import InputError
from scatlas.io import CsrWriter, write_embedding, write_pca
from scatlas.io.files import hdf5_writing
from scatlas.io.files.checksums import checksum
from scatlas.io.files.local_zarr import open_with_zarr_python
from scatlas.io.matrices import subset
from scatlas.io.matrices.subset import take_csr, take_rows
from scatlas.io.products.embeddings import write_parts
from scatlas.workflow.sample import (
    ATLAS_ROW,
    cells_with_graph,
    components_of_sample,
    number_by_size,
    read_map,
    sample_to_place_by,
)

N, ALL = 300, 700
PARAMS = {"metric": "euclidean", "n_neighbors": 15, "n_pcs": 4, "use_rep": "X_pca_harmony"}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays have several chunks and shards."""
    monkeypatch.setattr(shards, "CHUNK_VALUES", 256)
    monkeypatch.setattr(shards, "SHARD_VALUES", 1024)
    monkeypatch.setattr(subset, "SMALL_VALUES", 99)  # values are written in parts
    monkeypatch.setattr(hdf5_writing, "_VALUES", 2000)
    monkeypatch.setattr(hdf5_writing, "_CHUNK_BYTES", 2000)


@pytest.fixture
def stores(tmp_path: Path, request: pytest.FixtureRequest) -> SimpleNamespace:
    """All cells, of which every second or third one is sampled, and what the steps find."""
    n, rng = getattr(request, "param", N), np.random.default_rng(0)
    steps = ("merged", "pca", "harmony", "subset", "neighbors", "umap", "leiden", "labels")
    made = SimpleNamespace(**{name: tmp_path / f"{name}.zarr" for name in steps})
    names = [f"gene{i}" for i in range(40)]
    made.rows = np.sort(rng.choice(ALL, n, replace=False))
    made.x = sp.random(ALL, 40, 0.4, format="csr", dtype=np.float32, rng=rng)
    made.table = pd.DataFrame(
        {"plate": pd.Categorical(["p", "q"] * (ALL // 2)), "share": rng.random(ALL)},
        index=pd.Index([f"cell{i}" for i in range(ALL)], name="barcode"),
    )
    made.facts = pd.DataFrame({"means": rng.random(40)}, index=names)
    with CsrWriter(made.merged, n_vars=40, data_dtype=np.float32) as store:
        store.append(made.x)
        store.obs, store.var = made.table, pd.DataFrame({"mt": False}, index=names)
    made.x_pca = rng.random((ALL, 5)).astype(np.float32)
    variance = rng.random(5)
    components = SimpleNamespace(
        mean=rng.random(40), PCs=rng.random((40, 5)), variance=variance, variance_ratio=variance
    )
    write_pca(
        made.pca,
        x_pca=[made.x_pca],
        n_cells=ALL,
        components=components,
        genes=names,
        params={"zero_center": True},
    )
    made.mixed = made.x_pca * 2
    write_embedding(made.harmony, "X_pca_harmony", made.mixed, tables={"sums": variance})
    own = {"X_pca_harmony": made.mixed[made.rows]}
    write_parts(made.subset, obs={ATLAS_ROW: made.rows}, obsm=own)
    graph = {name: sp.random(n, n, 0.1, format="csr", rng=rng) for name in ("distances", "weights")}
    made.graph = {"distances": graph["distances"], "connectivities": graph["weights"]}
    write_parts(made.neighbors, obsp=made.graph, uns={"neighbors": {"params": PARAMS}})
    made.coordinates = rng.random((n, 2)).astype(np.float32)
    umap = {"params": {"a": 0.5, "b": 1.5}}
    write_parts(made.umap, obsm={"X_umap": made.coordinates}, uns={"umap": umap})
    made.clusters = pd.Categorical.from_codes(np.arange(n) % 3, ["0", "1", "2"])
    leiden = {"params": {"resolution": 1.0}}
    write_parts(made.leiden, obs={"leiden": made.clusters}, uns={"leiden": leiden})
    made.types = pd.Categorical.from_codes(np.arange(ALL) % 4 - 1, ["T", "B", "NK"])
    made.scores = rng.random(ALL)
    write_parts(made.labels, obs={"score": made.scores, "type": made.types})
    return made


def test_steps_read_what_was_written(stores: SimpleNamespace) -> None:
    for key, matrix in stores.graph.items():
        found = take_csr(stores.neighbors, f"obsp/{key}")
        for part in ("data", "indices", "indptr"):
            actual, expected = getattr(found, part), getattr(matrix, part)
            np.testing.assert_array_equal(actual, expected)
            assert actual.dtype == expected.dtype
    cells = cells_with_graph(stores.neighbors)
    assert (cells.n_obs, list(cells.obsp)) == (N, ["connectivities"])
    assert cells.uns == {"neighbors": {"params": PARAMS | {"use_rep": "X_pca"}}}
    own = components_of_sample(stores.subset, stores.harmony, "X_pca_harmony")
    np.testing.assert_array_equal(own, stores.mixed[stores.rows])
    # Any reader of AnnData reads them, too.
    parts = read_elem(open_with_zarr_python(stores.neighbors))
    assert (parts["obsp"]["distances"] != stores.graph["distances"]).nnz == 0


def test_components_of_all_cells_are_those_of_the_atlas(
    stores: SimpleNamespace, tmp_path: Path
) -> None:
    write_parts(tmp_path / "all.zarr", obs={ATLAS_ROW: np.arange(ALL)}, obsm={})
    found = components_of_sample(tmp_path / "all.zarr", stores.pca, "X_pca")
    np.testing.assert_array_equal(found, stores.x_pca)


def test_other_cells_are_placed_by_the_sample(stores: SimpleNamespace) -> None:
    found = read_map(stores.subset, stores.neighbors, stores.umap, stores.leiden)
    assert (found.basis, found.n_pcs, found.n_neighbors) == ("X_pca_harmony", 4, 15)
    assert set(found.uns) == {"umap", "leiden"}
    sample = sample_to_place_by(found, stores.neighbors)
    np.testing.assert_array_equal(sample.rows, stores.rows)
    np.testing.assert_array_equal(sample.coordinates, stores.coordinates)
    np.testing.assert_array_equal(sample.codes, stores.clusters.codes)
    usual = np.asarray(stores.graph["distances"].sum(axis=1)).ravel() / 14
    np.testing.assert_allclose(sample.usual, usual, rtol=1e-12, atol=1e-12)
    assert sample.curve == (0.5, 1.5)


def join(stores: SimpleNamespace, folder: Path, *more: str) -> ad.AnnData:
    main = runpy.run_path(str(Path(__file__).parents[3] / "scripts/embedding.py"))["main"]
    genes = folder / "consensus.parquet"
    stores.facts.to_parquet(genes)
    parts = ("merged", "pca", "subset", "neighbors", "umap", "leiden", "labels")
    out, manifest = folder / "umap.h5ad", folder / "embedding.json"
    options = [f"--{name}={getattr(stores, name)}" for name in parts]
    options.append(f"--obsm=X_pca_harmony={stores.harmony}")
    main([*options, f"--genes={genes}", f"--embedding={out}", f"--manifest={manifest}", *more])
    facts = json.loads(manifest.read_text())
    assert {name: facts[name] for name in ("n_cells", "n_clusters")} == {
        "n_cells": len(stores.rows),
        "n_clusters": 3,
    }
    return ad.read_h5ad(out)


@pytest.mark.parametrize("stores", [N, ALL], indirect=True)
def test_the_file_for_users_has_all_parts(stores: SimpleNamespace, tmp_path: Path) -> None:
    numbers = tmp_path / "map.json"
    numbers.write_text(json.dumps({"cluster_numbers": [2, 0, 1]}))
    found = join(stores, tmp_path, f"--map={numbers}")
    assert (stores.x[stores.rows] != found.X).nnz == 0
    own = stores.table.iloc[stores.rows]
    pd.testing.assert_frame_equal(found.obs[["plate", "share"]], own)
    assert list(found.obs) == ["plate", "share", ATLAS_ROW, "leiden", "score", "type"]
    assert list(found.obs[ATLAS_ROW]) == list(stores.rows)
    assert list(found.obs["leiden"][:4]) == ["2", "0", "1", "2"], "numbers by size in the atlas"
    assert list(found.obs["leiden"].cat.categories) == ["0", "1", "2"]
    pd.testing.assert_extension_array_equal(found.obs["type"].array, stores.types[stores.rows])
    np.testing.assert_array_equal(found.obs["score"], stores.scores[stores.rows])
    np.testing.assert_array_equal(found.var["means"], stores.facts["means"])
    assert list(found.var) == ["mt", "means"]
    assert set(found.varm) == {"PCs"}
    expected = {
        "X_pca": stores.x_pca[stores.rows],
        "X_pca_harmony": stores.mixed[stores.rows],
        "X_umap": stores.coordinates,
    }
    assert set(found.obsm) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found.obsm[name], values)
    for name, matrix in stores.graph.items():
        assert (found.obsp[name] != matrix).nnz == 0
    assert set(found.uns) == {"X_pca_harmony", "pca", "neighbors", "umap", "leiden"}
    assert found.uns["neighbors"] == {"params": PARAMS}


def test_threads_change_no_byte(stores: SimpleNamespace, tmp_path: Path) -> None:
    for threads in ("1", "4"):
        (tmp_path / threads).mkdir()
        join(stores, tmp_path / threads, f"--threads={threads}")
    one, four = (checksum(tmp_path / threads / "umap.h5ad") for threads in ("1", "4"))
    assert one == four
    assert not list(tmp_path.glob("*/.*")), "nothing is left of the work"


@pytest.mark.parametrize(
    "key", ["neighbors.zarr/obsp/distances/data", "umap.zarr/obsm/X_umap", "merged.zarr/X/data"]
)
def test_damage_is_not_copied(stores: SimpleNamespace, tmp_path: Path, key: str) -> None:
    file = next(path for path in sorted((tmp_path / key / "c").rglob("*")) if path.is_file())
    whole = bytearray(file.read_bytes())
    whole[100] ^= 1
    file.write_bytes(whole)
    store, _, element = key.partition("/")
    with pytest.raises(InputError, match=f"{store}: {element}, rows .* cannot be read"):
        join(stores, tmp_path)


def test_clusters_are_named_by_their_size():
    obs = pd.DataFrame({"leiden": pd.Categorical(list("1022021"), categories=list("012"))})
    number_by_size(obs, "leiden")
    assert list(obs["leiden"]) == list("1200201")
    assert list(obs["leiden"].cat.categories) == list("012")


def test_rows_are_read_in_any_pieces(stores: SimpleNamespace) -> None:
    for rows in (None, np.arange(0), np.array([0, 5, ALL - 1])):
        found = take_rows(stores.pca, "X_pca", rows, piece=7)
        np.testing.assert_array_equal(found, stores.x_pca[slice(None) if rows is None else rows])
