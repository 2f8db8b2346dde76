"""The sample with what steps add to it: joined on disk as in memory."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io.files.hdf5_writing import write_h5ad
from scatlas.workflow.sample import (
    ATLAS_ROW,
    SampledCells,
    add_graph,
    join_files,
    number_by_size,
    read_sample,
    renumber,
    write_part,
)
from tests.helpers.frames import assert_same_frame

N = 300


def test_files_are_joined_as_in_memory(tmp_path: Path):
    rng = np.random.default_rng(0)
    names = pd.Index([f"cell{i}" for i in range(N)], name="barcode")
    whole = ad.AnnData(
        sp.random(N, 400, 0.7, format="csr", dtype=np.float32, rng=rng),
        obs=pd.DataFrame({"plate": ["p", "q"] * (N // 2), "share": rng.random(N)}, index=names),
        obsm={"X_pca": rng.random((N, 5))},
        uns={"pca": {"variance": rng.random(5)}, "umap": "old"},
    )
    neighbors, umap, leiden = (SampledCells(N) for _ in range(3))
    neighbors.obsp["distances"] = sp.random(N, N, 0.1, format="csr", rng=rng)
    neighbors.uns["neighbors"] = {"params": {"metric": "euclidean", "n_neighbors": 15}}
    umap.obsm["X_umap"] = rng.random((N, 2))
    umap.uns["umap"] = {"params": {"a": 0.5}}
    leiden.obs["leiden"] = pd.Categorical(list("ab0") * (N // 3))
    leiden.obs["share"] = np.float32(2)  # takes the place of the column before
    write_h5ad(tmp_path / "subset.h5ad", whole)
    paths = []
    for name, cells in {"neighbors": neighbors, "umap": umap, "leiden": leiden}.items():
        paths.append(tmp_path / f"embedding/{name}.h5ad")
        paths[-1].parent.mkdir(exist_ok=True)
        write_part(paths[-1], cells, tmp_path / "subset.h5ad")
    join_files(tmp_path / "joined.h5ad", tmp_path / "subset.h5ad", paths)
    found, expected = (ad.read_h5ad(tmp_path / f"{name}.h5ad") for name in ("joined", "subset"))
    for path in paths:
        part = ad.read_h5ad(path)
        pd.testing.assert_index_equal(part.obs_names, names)
        expected.obs[list(part.obs)] = part.obs
        for key in ("obsm", "obsp", "uns"):
            getattr(expected, key).update(getattr(part, key))
    assert_same_frame(found.obs, expected.obs)
    assert_same_frame(found.var, expected.var)
    assert (found.X != expected.X).nnz == 0
    assert (found.obsp["distances"] != expected.obsp["distances"]).nnz == 0
    assert set(found.obsm) == set(expected.obsm) == {"X_pca", "X_umap"}
    for key in found.obsm:
        np.testing.assert_array_equal(found.obsm[key], expected.obsm[key])
    assert set(found.uns) == {"pca", "umap", "neighbors"}
    assert found.uns["umap"] == expected.uns["umap"] == {"params": {"a": 0.5}}
    assert found.uns["neighbors"] == expected.uns["neighbors"]
    renumber(tmp_path / "joined.h5ad", [2, 0, 1])
    clusters = ad.read_h5ad(tmp_path / "joined.h5ad").obs["leiden"]
    assert list(clusters.cat.categories) == ["0", "a", "b"]
    assert list(clusters[:3]) == ["0", "a", "b"], "of a, b and 0"


def test_clusters_are_named_by_their_size():
    obs = pd.DataFrame({"leiden": pd.Categorical(list("1022021"), categories=list("012"))})
    number_by_size(obs, "leiden")
    assert list(obs["leiden"]) == list("1200201")
    assert list(obs["leiden"].cat.categories) == list("012")


@pytest.mark.parametrize("key", ["X/data", "obsm/X_pca"])
def test_damage_is_not_copied(tmp_path: Path, key: str):
    rng = np.random.default_rng(0)
    x = sp.random(3000, 400, 0.2, format="csr", dtype=np.float32, rng=rng)
    write_h5ad(tmp_path / "subset.h5ad", ad.AnnData(x, obsm={"X_pca": rng.random((3000, 50))}))
    with h5py.File(tmp_path / "subset.h5ad", "r") as file:
        dataset = file[key]
        at = dataset.id.get_chunk_info(1).byte_offset + 5000
    whole = bytearray((tmp_path / "subset.h5ad").read_bytes())
    whole[at] ^= 1
    (tmp_path / "subset.h5ad").write_bytes(whole)
    with pytest.raises(InputError, match=rf"subset.h5ad: {key} cannot be read"):
        join_files(tmp_path / "joined.h5ad", tmp_path / "subset.h5ad", [])


def test_graph_of_the_sample(tmp_path: Path):
    rng = np.random.default_rng(0)
    obs = pd.DataFrame({ATLAS_ROW: range(N)}, index=[f"cell{i}" for i in range(N)])
    whole = ad.AnnData(np.ones((N, 2), np.float32), obs=obs, obsm={"X_pca": rng.random((N, 5))})
    write_h5ad(tmp_path / "subset.h5ad", whole)
    part = SampledCells(N)
    for name in ("distances", "connectivities"):
        part.obsp[name] = sp.random(N, N, 0.1, format="csr", rng=rng)
    part.uns["neighbors"] = {"params": {"metric": "euclidean", "n_neighbors": 15}}
    write_part(tmp_path / "neighbors.h5ad", part, tmp_path / "subset.h5ad")
    found = read_sample(tmp_path / "subset.h5ad", basis="X_pca")
    add_graph(found, tmp_path / "neighbors.h5ad")
    assert found.n_obs == N
    np.testing.assert_array_equal(found.obsm["X_pca"], whole.obsm["X_pca"])
    assert list(found.obsp) == ["connectivities"]
    assert (found.obsp["connectivities"] != part.obsp["connectivities"]).nnz == 0
    expected = part.uns["neighbors"]["params"] | {"use_rep": "X_pca"}
    assert found.uns["neighbors"] == {"params": expected}
