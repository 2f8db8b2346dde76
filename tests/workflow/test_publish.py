"""Results at an S3 address: a run, a kill in mid-write, a second run, a change, and readers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pytest

import scatlas as sa
from scatlas.errors import DiskError
from scatlas.io import checksum, publish
from scatlas.workflow.command_line.main import main
from tests.helpers.s3_server import environment, s3_bucket
from tests.workflow.conftest import CONFIG
from tests.workflow.runs import ROOT, Project

pytestmark = pytest.mark.workflow

BUCKET = "results"
ADDRESS = f"s3://{BUCKET}/team/atlas"
STORES = ("atlas.zarr", "by_gene.zarr")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Client of an S3 server on this machine, with the settings of a user for it."""
    with s3_bucket(tmp_path_factory.mktemp("s3"), BUCKET, environment) as client:
        yield client


def objects(client: Any, prefix: str) -> dict[str, Any]:
    """Objects below a prefix: their tags and times."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
    found = [entry for page in pages for entry in page.get("Contents", [])]
    return {entry["Key"].removeprefix(f"{prefix}/"): entry for entry in found}


def content(client: Any, prefix: str) -> dict[str, bytes]:
    return {
        name: client.get_object(Bucket=BUCKET, Key=f"{prefix}/{name}")["Body"].read()
        for name in objects(client, prefix)
    }


def local(folder: Path, names: set[str]) -> dict[str, bytes]:
    files = [path for name in names for path in [folder / name, *(folder / name).rglob("*")]]
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in files
        if path.is_file() and path.name != ".snakemake_timestamp"
    }


def assert_complete(client: Any, folder: Path, prefix: str, names: set[str]) -> None:
    """Check for the bytes of the local results, and a list of them."""
    there = content(client, prefix)
    listed = json.loads(there.pop("published.json"))["files"]
    here = local(folder, names)
    assert there.keys() == here.keys() == listed.keys()
    assert [name for name in here if here[name] != there[name]] == []


def test_outdir_on_s3(s3: Any, tmp_path: Path, plates: dict[str, Path], monkeypatch):
    config = CONFIG | {"outdir": ADDRESS, "consensus": {"min_plates": 1}, "markers": {"by": []}}
    project = Project(tmp_path / "project", config)
    project.write_plates({"p1": plates["p1"]})
    done = project.run()
    assert done.returncode == 0, done.stdout[-6000:]
    folder = project.folder / "results" / BUCKET / "team/atlas"
    names = {"atlas.zarr", "by_gene.zarr", "umap.h5ad", "report.html", "figures", "tables"}
    names.add("consensus_genes.tsv")
    assert_complete(s3, folder, "team/atlas", names)

    # Readers.
    monkeypatch.chdir(project.folder)
    atlas, copy = f"{ADDRESS}/atlas.zarr", folder / "atlas.zarr"
    remote, here = sa.read_lazy(atlas), sa.read_lazy(copy)
    assert remote.obs.equals(here.obs)
    assert (remote.X.compute() != here.X.compute()).nnz == 0
    gene = here.var_names[5]
    np.testing.assert_array_equal(sa.get.gene(atlas, gene), sa.get.gene(copy, gene))
    gene = next(name for name in ad.read_h5ad(plates["p1"]).var_names if name not in here.var_names)
    np.testing.assert_array_equal(sa.get.gene(atlas, gene), sa.get.gene(copy, gene))
    for form in ("cellxgene", "annbatch"):
        for source, out in ((atlas, f"{form}-remote"), (str(copy), f"{form}-local")):
            assert main(["export", source, f"--{form}", out]) == 0
        assert checksum(f"{form}-remote") == checksum(f"{form}-local")
    assert main(["status", "--config", "my.yaml"]) == 0

    # The second run does nothing; one after losses at the address makes them good.
    before = objects(s3, "team/atlas")
    assert "Nothing to be done" in project.run().stdout
    assert objects(s3, "team/atlas") == before
    s3.delete_object(Bucket=BUCKET, Key="team/atlas/atlas.zarr/zarr.json")
    assert project.run("--forcerun", "publish").returncode == 0
    assert_complete(s3, folder, "team/atlas", names)
    after = objects(s3, "team/atlas")
    changed = {name for name in after if after[name] != before[name]}
    assert changed <= {"atlas.zarr/zarr.json", "published.json"}


@pytest.fixture
def results(tmp_path: Path, built: Project) -> Path:
    """Results of a run, which a test may change, with a file that takes a while."""
    folder = built.copied(tmp_path / "copy").results
    rng = np.random.default_rng(0)
    (folder / "large.bin").write_bytes(rng.bytes(60_000_000))
    return folder


def test_a_kill_in_mid_write_is_no_finished_store(s3: Any, results: Path):
    names = {*STORES, "large.bin", "tables"}
    prefix = "killed/atlas"
    command = [
        *(sys.executable, str(ROOT / "scripts/publish.py"), "--folder", str(results)),
        *("--names", *sorted(names), "--address", f"s3://{BUCKET}/{prefix}"),
        *("--manifest", str(results / "manifests/publish.json")),
    ]
    # With a kill after the first files, and one later.
    for n_files in (5, 60):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(objects(s3, prefix)) < n_files:
            assert process.poll() is None, "a premise: the kill comes before the end"
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        there = objects(s3, prefix)
        assert "published.json" not in there
        here = local(results, names)
        for store in STORES:
            due = {name for name in here if name.startswith(f"{store}/")}
            assert f"{store}/zarr.json" not in there or due <= there.keys()
    assert not (results / "manifests/publish.json").exists()

    before = objects(s3, prefix)
    subprocess.run(command, check=True, capture_output=True)
    assert_complete(s3, results, prefix, names)
    after = objects(s3, prefix)
    kept = [name for name in before if after[name] == before[name]]
    assert len(kept) >= len(before) - 16, "what was there is not uploaded again"


def test_a_changed_store_is_replaced_before_it_looks_finished(s3: Any, results: Path, monkeypatch):
    names, prefix, journal = {*STORES, "tables"}, "changed/atlas", results / "journal"
    address = f"s3://{BUCKET}/{prefix}"
    publish(results, names, address, journal=journal)
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}/notes.txt", Body=b"mine")
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}/atlas.zarr/X/data/c/1", Body=b"of an older atlas")
    shard = results / "atlas.zarr/obsm/X_umap/c/0/0"
    changed = bytearray(shard.read_bytes())
    shard.unlink()  # a hard link of another store
    shard.write_bytes(changed + b"0")

    from scatlas.io.products.publish import _Target

    upload = _Target._upload
    seen = []

    def watched(self: Any, folder: Path, paths: list[str], records: Any) -> None:
        seen.append((list(paths), set(objects(s3, prefix))))
        upload(self, folder, paths, records)

    monkeypatch.setattr(_Target, "_upload", watched)
    publish(results, names, address, journal=journal)
    uploads = [(paths, there) for paths, there in seen if paths]
    assert [paths for paths, _ in uploads] == [
        ["atlas.zarr/obsm/X_umap/c/0/0"],
        ["atlas.zarr/zarr.json"],
    ]
    for _, there in uploads:
        assert not {"atlas.zarr/zarr.json", "published.json"} & there
    s3.delete_object(Bucket=BUCKET, Key=f"{prefix}/notes.txt")
    assert_complete(s3, results, prefix, names)
    before = objects(s3, prefix)
    publish(results, names, address, journal=journal)
    assert objects(s3, prefix) == before
    assert not journal.exists()


def test_an_address_that_cannot_be_written_is_one_sentence(s3: Any, results: Path):
    sentence = r"the results cannot be copied there .* continues$"
    with pytest.raises(DiskError, match=sentence) as found:
        publish(results, ["tables"], "s3://no-such-bucket/atlas", journal=results / "journal")
    assert re.match("s3://no-such-bucket/atlas: ", str(found.value))
    assert os.linesep not in str(found.value)
