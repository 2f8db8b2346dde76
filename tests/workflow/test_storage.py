"""Plates at addresses with Snakemake's storage: the same atlas, and replaced plates reload."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anndata as ad
import pytest

from scatlas.datasets import write_plate
from scatlas.errors import InputError
from scatlas.workflow.job_environment import set_options
from tests.helpers.s3_server import SECRET, USER, s3_bucket
from tests.workflow.runs import Project, assert_same_outputs

pytestmark = pytest.mark.workflow

NAMES = ("p1", "p2")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Client of an S3 server on this machine, with Snakemake's settings for it."""

    def variables(address: str) -> dict[str, str]:
        settings = {"ENDPOINT_URL": address, "ACCESS_KEY": USER, "SECRET_KEY": SECRET}
        return {f"SNAKEMAKE_STORAGE_S3_{name}": value for name, value in settings.items()}

    with s3_bucket(tmp_path_factory.mktemp("s3"), "plates", variables) as client:
        yield client


def put(client: Any, name: str, file: Path) -> None:
    client.put_object(Bucket="plates", Key=f"raw/{name}.h5ad", Body=file.read_bytes())


def test_plates_on_s3(s3: Any, tmp_path: Path, plates: dict[str, Path], two: Project):
    for name in NAMES:
        put(s3, name, plates[name])
    addresses = {name: f"s3://plates/raw/{name}.h5ad" for name in NAMES}
    check("atlas", addresses, tmp_path, plates, two, lambda name, file: put(s3, name, file))


def test_options_of_a_plate_on_s3(s3: Any, plates: dict[str, Path], tmp_path: Path, monkeypatch):
    """Server and credentials come from the sheet's columns, and the account pays."""
    address = os.environ["SNAKEMAKE_STORAGE_S3_ENDPOINT_URL"]
    for name in ("ENDPOINT_URL", "ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.delenv(f"SNAKEMAKE_STORAGE_S3_{name}")
    keys = f"aws_access_key_id = {USER}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "aws").write_text(f"[profile lab]\nendpoint_url = {address}\n{keys}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    put(s3, "p1", plates["p1"])
    project = Project(tmp_path / "project", {"plates": "plates.tsv"})
    row = "p1\ts3://plates/raw/p1.h5ad\tlab\tyes\n"
    sheet = f"plate\tpath\ts3_profile\ts3_requester_pays\n{row}"
    (project.folder / "plates.tsv").write_text(sheet)
    project.build("results/plates/p1/counts.zarr/zarr.json")

    def stop(request: Any, **_: object) -> None:
        assert request.headers["x-amz-request-payer"] == b"requester"
        raise ConnectionAbortedError

    provider = SimpleNamespace()
    set_options(provider, "lab", requester_pays=True)
    provider.s3c.meta.client.meta.events.register("before-send.s3", stop)
    with pytest.raises(ConnectionAbortedError):
        provider.s3c.Object("plates", "raw/p1.h5ad").load()
    with pytest.raises(InputError, match="s3_profile 'another' is not in"):
        set_options(provider, "another", requester_pays=False)


def test_plates_on_a_web_server(tmp_path: Path, plates: dict[str, Path], two: Project):
    folder = tmp_path / "served"
    folder.mkdir()
    for name in NAMES:
        shutil.copy2(plates[name], folder / f"{name}.h5ad")

    def replace(name: str, file: Path) -> None:
        shutil.copy(file, folder / f"{name}.h5ad")
        # A web server reports whole seconds, and this change follows the load at once.
        later = time.time() + 2
        os.utime(folder / f"{name}.h5ad", (later, later))

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            addresses = {name: f"{address}/{name}.h5ad" for name in NAMES}
            stores = (f"results/plates/{name}/counts.zarr/zarr.json" for name in NAMES)
            check(" ".join(stores), addresses, tmp_path, plates, two, replace)
        finally:
            server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def check(
    targets: str,
    addresses: dict[str, str],
    folder: Path,
    plates: dict[str, Path],
    two: Project,
    replace: Callable[[str, Path], None],
) -> None:
    """Check for the same results as from local files, no remaining copy, and a reloaded plate."""
    remote = Project(folder / "remote", dict(two.config))
    remote.write_plates(addresses)
    remote.build(*targets.split())

    def data(project: Project) -> dict[str, bytes]:
        record = "atlas.zarr/uns/scatlas/"  # contains the addresses
        return {k: v for k, v in project.outputs().items() if not k.startswith(record)}

    found, expected = data(remote), data(two)
    assert "plates/p2/counts.zarr/zarr.json" in found
    assert_same_outputs(found, {name: expected[name] for name in found})
    assert targets != "atlas" or found.keys() == expected.keys()
    assert list((remote.folder / ".snakemake").rglob("*.h5ad")) == [], "copies are for load alone"
    assert "Nothing to be done" in remote.run(*targets.split(), "--dry-run").stdout

    changed = ad.read_h5ad(plates["p2"])
    changed.X.data[0] += 1
    write_plate(folder / "p2.h5ad", changed)
    replace("p2", folder / "p2.h5ad")
    planned = remote.run(*targets.split(), "--dry-run", "--printshellcmds").stdout
    assert "--source .snakemake/storage/results/" in planned, "not of a run with other results"
    assert "loading p2" in planned
    assert "loading p1" not in planned
