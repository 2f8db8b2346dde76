"""Outputs that lost, changed or kept their files, told apart at the cost of a listing."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

import fsspec
import numpy as np
import pytest
import scipy.sparse as sp

import scatlas as sa
from scatlas.errors import InputError, prefix_errors
from scatlas.io.files.local_zarr import open_store
from scatlas.io.matrices.csr_writer import CsrWriter
from scatlas.io.matrices.lazy import read_matrix
from scatlas.io.zarr_writer.elements import consolidate
from scatlas.workflow import integrity
from scatlas.workflow.integrity import check_outputs, run_record
from scatlas.workflow.script import recorded_run


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr("scatlas.io.zarr_writer.sharded_array.CHUNK_VALUES", 64)
    monkeypatch.setattr("scatlas.io.zarr_writer.sharded_array.SHARD_VALUES", 256)


@pytest.fixture
def results(tmp_path, small_chunks, monkeypatch) -> Path:
    """Results of one step: a store, a table and a folder of pictures."""
    monkeypatch.setattr("sys.argv", ["made.py"])
    x = sp.random(300, 20, 0.4, format="csr", rng=np.random.default_rng(0))
    x.data = np.ceil(x.data * 9)
    outputs = [tmp_path / "plates/p1/counts.zarr", tmp_path / "plates/p1/table.tsv"]
    manifest = tmp_path / "manifests/made/p1.json"
    args = argparse.Namespace(manifest=manifest, threads=1, attempt=1, block_budget="16MB")
    with recorded_run(args, outputs=outputs, reports=[tmp_path / "figures"]):
        with CsrWriter(outputs[0], n_vars=20) as writer:
            writer.append(x)
        outputs[1].write_text("table")
        (tmp_path / "figures").mkdir()
        (tmp_path / "figures/one.png").write_text("picture")
    return tmp_path


def manifest(results: Path) -> Path:
    return results / "manifests/made/p1.json"


def every_file(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_nobody_touched_is_sound(results: Path):
    found = check_outputs([manifest(results)])
    record = json.loads(run_record(manifest(results)).read_bytes())
    assert found == integrity.Findings(intact={manifest(results): record})


def test_every_single_file_is_missed(results: Path):
    """The one that names a store, or a file, is Snakemake's to miss."""
    for path in every_file(results / "plates"):
        kept = path.read_bytes(), path.stat().st_mtime_ns
        path.unlink()
        found = check_outputs([manifest(results)])
        name = path.relative_to(results / "plates/p1").as_posix()
        if name in ("counts.zarr/zarr.json", "table.tsv"):
            assert found.incomplete == {}
        else:
            (lacks,) = found.incomplete.values()
            assert f"lacks {path.relative_to(results / 'plates/p1/counts.zarr')} (1 of" in lacks
        assert found.to_rerun == {}
        path.write_bytes(kept[0])
        os.utime(path, ns=(kept[1], kept[1]))


def test_a_folder_that_lacks_a_picture_is_made_again(results: Path):
    (results / "figures/one.png").unlink()
    assert list(check_outputs([manifest(results)]).to_rerun) == [manifest(results)]


def test_each_flipped_byte_is_noticed(results: Path):
    rng = np.random.default_rng(0)
    for path in [*every_file(results / "plates"), *every_file(results / "figures")]:
        kept = path.read_bytes()
        for at in {0, len(kept) - 1, *rng.integers(0, len(kept), 3).tolist()}:
            damaged = bytearray(kept)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(InputError, match="is not what its step has written") as error:
                check_outputs([manifest(results)])
            assert f"rm -r {results}" in str(error.value)
        path.write_bytes(kept)
    check_outputs([manifest(results)])


def test_a_shortened_file_is_noticed_whatever_its_time(results: Path):
    for path in every_file(results / "plates"):
        kept, time = path.read_bytes(), path.stat().st_mtime_ns
        path.write_bytes(kept[:-1])
        os.utime(path, ns=(time, time))
        with pytest.raises(InputError, match="is not what its step has written"):
            check_outputs([manifest(results)])
        path.write_bytes(kept)


def test_only_users_results_may_not_be_missing(results: Path):
    store, table = results / "plates/p1/counts.zarr", results / "plates/p1/table.tsv"
    (store / "zarr.json").unlink()
    table.unlink()
    assert check_outputs([manifest(results)]).to_rerun == {}
    for path, name in ((store / "zarr.json", store), (table, table)):
        found = check_outputs([manifest(results)], results={str(path)})
        assert found.to_rerun == {manifest(results): f"{name} is missing"}
        assert found.intact == {}


def test_files_that_were_only_touched_are_read_once(results: Path, monkeypatch):
    for path in every_file(results / "plates"):
        os.utime(path)
    found = check_outputs([manifest(results)])
    assert list(found.intact) == [manifest(results)]
    assert found.to_rerun == found.incomplete == {}
    found.apply()
    monkeypatch.setattr(integrity, "file_digest", lambda *_, **__: pytest.fail("read once more"))
    assert check_outputs([manifest(results)]).touched == {}


@pytest.mark.parametrize("which", ["manifest", "record"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1]", b"\xff", b'{"a": 1}'])
def test_a_lost_or_damaged_manifest_makes_its_step_run_again(results: Path, which, content):
    path = manifest(results) if which == "manifest" else run_record(manifest(results))
    path.unlink() if content is None else path.write_bytes(content)
    found = check_outputs([manifest(results)])
    (why,) = found.to_rerun.values()
    assert str(path) in why or str(manifest(results)) in why
    assert found.intact == {}


def test_outputs_that_are_gone_as_a_whole_are_left_to_snakemake(results: Path):
    for path in every_file(results / "plates/p1"):
        path.unlink()
    (results / "figures/one.png").unlink()
    (results / "figures").rmdir()
    found = check_outputs([manifest(results)])
    assert found.to_rerun == found.incomplete == {}


def test_incomplete_stores_are_withdrawn(results: Path):
    (results / "plates/p1/counts.zarr/X/data/c/0").unlink()
    check_outputs([manifest(results)]).apply()
    assert not (results / "plates/p1/counts.zarr/zarr.json").exists()
    assert check_outputs([manifest(results)]).incomplete == {}


def test_results_may_be_moved(results: Path, tmp_path_factory):
    moved = tmp_path_factory.mktemp("other") / "moved"
    results.rename(moved)
    assert list(check_outputs([manifest(moved)]).intact) == [manifest(moved)]
    (moved / "plates/p1/counts.zarr/X/data/c/0").unlink()
    assert len(check_outputs([manifest(moved)]).incomplete) == 1


def next_step(results: Path, attempt: int = 1) -> argparse.Namespace:
    manifest = results / "manifests/next.json"
    return argparse.Namespace(manifest=manifest, threads=1, attempt=attempt, block_budget="16MB")


def test_a_step_that_fails_over_a_damaged_input_names_it_and_the_mend(results: Path):
    """Whatever error its reader met, and again when it is tried again, without its work."""
    path = results / "plates/p1/counts.zarr/X/data/c/0"
    path.write_bytes(path.read_bytes()[:-1])
    for attempt, error in {1: KeyError("whatever"), 2: AssertionError("it ran again")}.items():
        with (
            pytest.raises(InputError, match=r"rm -r .*counts\.zarr"),
            recorded_run(next_step(results, attempt), outputs=[]),
        ):
            raise error


def test_damage_that_shows_in_no_listing_is_found_by_the_reader(results: Path):
    """Bits that rot leave size and time alone."""
    store = results / "plates/p1/counts.zarr"
    path = store / "X/data/c/0"
    damaged, time = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    damaged[20] ^= 1
    path.write_bytes(damaged)
    os.utime(path, ns=(time, time))
    said = re.escape(f"plate p1: {store}: ") + ".*" + re.escape(f"delete it (rm -r {store}) and")
    with (
        pytest.raises(InputError, match=said),
        recorded_run(next_step(results), outputs=[]),
        prefix_errors("plate p1"),
    ):
        read_matrix(store)[0].compute()


def test_a_store_of_ours_at_an_address_that_lost_a_chunk_is_not_opened(results: Path, make_adata):
    adata = make_adata(sp.random(300, 20, 0.4, format="csr", dtype=np.float32, random_state=0))
    store = results / "at-an-address.zarr"
    with CsrWriter(store, n_vars=20, obs=adata.obs, var=adata.var, data_dtype=np.float32) as writer:
        writer.append(adata.X)
    memory = fsspec.filesystem("memory")
    url = "memory://bucket/atlas.zarr"
    memory.put(str(store), url, recursive=True)
    assert (sa.read_lazy(url).X.compute() != adata.X).nnz == 0
    for n, name in enumerate(("X/data/c/1", "X/indptr/c/0", "obs/_index/c/0", "var/mt/c/0")):
        url = f"memory://bucket/{n}.zarr"  # a process looks once
        memory.put(str(store), url, recursive=True)
        memory.rm(f"{url}/{name}")
        with pytest.raises(InputError, match=f"^{url}: .* lacks 1 of .*{name}"):
            sa.read_lazy(url)
    memory.rm("memory://bucket", recursive=True)


def test_a_store_of_zarr_may_leave_out_chunks_of_zeros(tmp_path: Path):
    import zarr

    root = zarr.open_group(tmp_path / "a.zarr", mode="w")
    array = root.create_array("x", shape=(100,), chunks=(10,), shards=(20,), dtype="i4")
    array[:] = 0
    consolidate(tmp_path / "a.zarr")
    assert not list((tmp_path / "a.zarr/x").glob("c/*"))
    np.testing.assert_array_equal(open_store(tmp_path / "a.zarr")["x"][:], 0)


def test_the_manifest_holds_nothing_of_the_record(results: Path):
    assert set(json.loads(manifest(results).read_bytes())) == {"outputs"}
