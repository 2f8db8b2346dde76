"""Results that their owner has edited are read and named, and damaged ones are an error."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from anndata.io import read_elem, write_elem

import scatlas as sa
from scatlas.errors import InputError
from scatlas.io.files.local_zarr import current_nodes, open_store
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.workflow import edits, integrity
from scatlas.workflow.integrity import check_outputs, edited_results
from scatlas.workflow.script import recorded_run


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_adata: Callable) -> Path:
    """Results of a step: an atlas, a file of cells, a table, pictures and a page."""
    monkeypatch.setattr("sys.argv", ["made.py"])
    adata = make_adata(sp.random(300, 20, 0.4, format="csr", dtype=np.float32, random_state=0))
    adata.obs["leiden"] = pd.Categorical(["0", "1", "2"] * 100)
    manifest = tmp_path / "manifests/made.json"
    args = argparse.Namespace(manifest=manifest, threads=1, attempt=1, block_budget="16MB")
    names = ("atlas.zarr", "umap.h5ad", "tables/a.tsv", "figures/a.png", "report.html")
    outputs = [tmp_path / name for name in names]
    with recorded_run(args, outputs=outputs):
        with CsrWriter(
            outputs[0], n_vars=20, obs=adata.obs, var=adata.var, data_dtype=np.float32
        ) as writer:
            writer.append(adata.X)
        with h5py.File(outputs[1], "w") as file:
            file.create_dataset("x", data=np.arange(9000), chunks=(100,), fletcher32=True)
        for path, data in zip(
            outputs[2:], (b"a\tb\n", b"1IEND\xaeB`\x82", b"<p></html>\n"), strict=True
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    return tmp_path


def root_of(results: Path) -> zarr.Group:
    return zarr.open_group(results / "atlas.zarr", mode="r+", use_consolidated=False)


def write(group: zarr.Group, name: str, elem: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sharding
        write_elem(group, name, elem)


def add_to_table(results: Path) -> None:
    obs = read_elem(root_of(results)["obs"])
    write(root_of(results), "obs", obs.assign(mine=pd.Categorical(["m"] * len(obs))))


def add_column(results: Path) -> None:
    obs = zarr.open_group(results / "atlas.zarr/obs", mode="r+")
    write(obs, "mine", pd.Categorical(["m"] * 300))
    obs.attrs["column-order"] = [*obs.attrs["column-order"], "mine"]


def remove_column(results: Path) -> None:
    obs = root_of(results)["obs"]
    del obs["leiden"]
    obs.attrs["column-order"] = [n for n in obs.attrs["column-order"] if n != "leiden"]


def change_values(results: Path) -> None:
    root_of(results)["obs/leiden/codes"][5] = 1


EDITS = {
    add_to_table: "obs/mine added; obs changed",
    add_column: "obs/mine added",
    remove_column: "obs/leiden removed",
    change_values: "obs/leiden changed",
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_store_is_read_as_it_is_and_named(
    results: Path, edit: Callable, monkeypatch: pytest.MonkeyPatch
):
    edit(results)
    store = results / "atlas.zarr"
    (said,), what = edited_results(results), EDITS[edit]
    assert said.startswith(f"{store} was edited ({what}) and stays as it is;")
    assert "(rm -r" in said
    obs = open_store(store)["obs"]
    assert ("mine" in obs, "leiden" in obs) == ("mine" in what, "removed" not in what)
    lazy = sa.read_lazy(store).obs
    assert ("mine" in lazy) == ("mine" in what)
    if "removed" not in what:
        assert lazy["leiden"].iloc[5] == ("1" if edit is change_values else "2")

    found = check_outputs([results / "manifests/made.json"])
    found.apply()
    document = zarr.open_group(store, mode="r").attrs
    assert document["encoding-type"] == "anndata"
    nodes = current_nodes(store, integrity.json.loads((store / "zarr.json").read_bytes()))
    assert nodes is not None
    assert ("obs/mine" in nodes) == ("mine" in what)
    check_outputs([results / "manifests/made.json"]).apply()
    monkeypatch.setattr(edits, "_is_complete", lambda *_: pytest.fail("read once more"))
    assert len(edited_results(results)) == 1
    for outputs in ([str(store / "zarr.json")], [str(results / "x"), str(store)]):
        with pytest.raises(InputError, match="this run would write it again: move it away"):
            found.refuse_to_write(outputs)
    found.refuse_to_write([str(results / "umap.h5ad")])


def test_other_results_are_their_owners_too(results: Path):
    with h5py.File(results / "umap.h5ad", "a") as file:
        file["y"] = 1
    for name, data in {
        "tables/a.tsv": b"other\n",
        "figures/a.png": b"2IEND\xaeB`\x82",
        "report.html": b"<p>Mine</p></html>",
    }.items():
        (results / name).write_bytes(data)
    said = edited_results(results)
    assert len(said) == 4
    assert all("was edited (its content)" in sentence for sentence in said)


@pytest.mark.parametrize("name", ["umap.h5ad", "tables/a.tsv", "figures/a.png", "report.html"])
def test_a_cut_result_is_damaged(results: Path, name: str):
    path = results / name
    path.write_bytes(path.read_bytes()[:-9] if name == "umap.h5ad" else b"")
    with pytest.raises(InputError, match="is not what its step has written") as error:
        edited_results(results)
    assert f"rm -r {path}" in str(error.value)


@pytest.mark.parametrize("name", ["X/data/c/0", "obs/leiden/codes/c/0", "obs/zarr.json"])
def test_damaged_and_lost_bytes_of_an_edited_store_are_no_edit(results: Path, name: str):
    add_column(results)
    path = results / "atlas.zarr" / name
    kept = path.read_bytes()
    for data in (kept[: len(kept) // 2], bytes([*kept[:9], kept[9] ^ 1, *kept[10:]])):
        if name.endswith(".json") and data != kept[: len(kept) // 2]:
            continue  # another letter in a text is an edit
        path.write_bytes(data)
        with pytest.raises(InputError, match=f"{name} is not what its step has written"):
            edited_results(results)
    path.unlink()
    if name != "obs/zarr.json":
        with pytest.raises(InputError, match=f"{name} is not what its step has written"):
            edited_results(results)


def test_a_lost_file_alone_is_no_edit(results: Path):
    (results / "atlas.zarr/X/data/c/0").unlink()
    found = check_outputs([results / "manifests/made.json"])
    assert not found.edited
    assert list(found.incomplete) == [results / "atlas.zarr"]
    with pytest.raises(InputError, match=r"X/data lacks 1 of 1 files"):
        open_store(results / "atlas.zarr")


def test_a_chunk_lost_from_an_edited_store_is_never_read_as_zeros(results: Path):
    add_column(results)
    (results / "atlas.zarr/X/data/c/0").unlink()
    with pytest.raises(InputError, match=r"X/data lacks 1 of 1 files"):
        open_store(results / "atlas.zarr")
