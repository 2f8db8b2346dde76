"""An atlas records how it was made, and this record is enough to build it again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import yaml
import zarr
from anndata.io import write_elem

import scatlas
from scatlas.datasets import write_plate
from scatlas.errors import InputError
from scatlas.io.files.checksums import checksum, values_digest
from scatlas.workflow import reproduce, script
from scatlas.workflow.provenance import ATLAS_KEYS, MAP_KEYS, read_record
from tests.workflow.conftest import PLATES
from tests.workflow.runs import Project, errors, run_python

pytestmark = pytest.mark.workflow


def make_again(atlas: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "scatlas.workflow.reproduce", atlas, "--directory", folder, *options)


@pytest.fixture(scope="module")
def again(two: Project, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Results of the reproduced atlas in a new folder, and the output of the command."""
    folder = tmp_path_factory.mktemp("again") / "new"
    done = make_again(two.results / "atlas.zarr", folder, "--", "--nocolor")
    assert done.returncode == 0, done.stdout[-6000:]
    return folder / "results", done.stdout


def test_an_atlas_says_how_it_was_made(built: Project, plates: dict[str, Path]):
    found = read_record(built.results / "atlas.zarr")
    assert (found["version"], found["seed"], found["backend"]) == (scatlas.__version__, 0, "cpu")
    assert found["versions"] == script.versions()
    assert tuple(found["config"]) == tuple(sorted((*ATLAS_KEYS, *MAP_KEYS)))
    assert found["config"]["hvg"] == {"flavor": "seurat", "n_top_genes": 150}
    assert [plate["plate"] for plate in found["plates"]] == list(PLATES)
    for plate in found["plates"]:
        assert plate["path"] == str(plates[plate["plate"]])
        assert plate["labels"] == {"donor": f"donor of {plate['plate']}"}
        store = built.results / f"plates/{plate['plate']}/counts.zarr"
        assert plate["values_digest"] == values_digest(store)
        assert plate["total_counts"] == ad.read_h5ad(plate["path"]).X.sum()
    # Any reader of AnnData shows the record; the sample, which may be older, does not have it.
    assert ad.read_zarr(built.results / "atlas.zarr").uns["scatlas"]["version"] == found["version"]
    assert "scatlas" not in ad.read_h5ad(built.results / "umap.h5ad").uns


def test_an_atlas_is_made_again_from_its_record(two: Project, again: tuple[Path, str]):
    results, said = again
    assert "made again, every array is the same" in said
    assert checksum(results / "atlas.zarr") == checksum(two.results / "atlas.zarr")
    record, first = (read_record(folder / "atlas.zarr") for folder in (results, two.results))
    assert record == first


def test_what_differs_is_named(two: Project, tmp_path: Path):
    other = tmp_path / "atlas.zarr"
    shutil.copytree(two.results / "atlas.zarr", other)
    (other / "zarr.json").write_bytes(without_consolidated((other / "zarr.json").read_bytes()))
    root = zarr.open_group(other, mode="r+")
    values = root["X/data"][:]
    root["X/data"][:2] = values[:2] + np.float32(0.25)
    del root["varm/PCs"]
    write_elem(root["uns/pca"], "extra", 3)
    names = root["var/gene_id"][:]
    names[0] = "another"
    root["var/gene_id"][:] = names

    found = list(reproduce.differences(two.results / "atlas.zarr", other))

    assert [sentence.split(":")[0].split(" is in ")[0] for sentence in found] == [
        *("X/data", "uns/pca/extra", "var/gene_id", "varm/PCs")
    ]
    assert f"2 of {len(values):,} values differ, by at most 0.25" in found[0]
    assert f"1 of {len(names):,} values differ" in found[2]


def without_consolidated(metadata: bytes) -> bytes:
    whole = json.loads(metadata)
    del whole["consolidated_metadata"]
    return json.dumps(whole).encode()


def test_a_plate_that_has_changed_is_named_before_anything_is_built(
    two: Project, plates: dict[str, Path], tmp_path: Path
):
    """Relative paths of the sheet start from a folder with other plates."""
    copy = tmp_path / "atlas.zarr"
    shutil.copytree(two.results / "atlas.zarr", copy)
    root = zarr.open_group(copy, mode="r+", use_consolidated=False)
    rows = json.loads(root["uns/scatlas/plates"][()])
    for row in rows:
        row["path"] = f"{row['plate']}.h5ad"
        shutil.copyfile(plates[row["plate"]], tmp_path / row["path"])
    root["uns/scatlas/plates"][...] = json.dumps(rows)
    changed = ad.read_h5ad(tmp_path / "p2.h5ad")
    total = int(changed.X.sum())
    changed.X.data[0] += 5
    write_plate(tmp_path / "p2.h5ad", changed)

    done = make_again(copy, tmp_path / "new", "--plates-from", str(tmp_path), "--", "--nocolor")

    assert done.returncode == 1
    (sentence,) = errors(done.stdout)
    assert "plate 'p2' (p2.h5ad) has changed: " in sentence
    assert f"total_counts {total:,} then, {total + 5:,} now" in sentence
    assert "Traceback" not in done.stdout
    assert not (tmp_path / "new/results/manifests/consensus.json").exists()


def test_a_record_that_cannot_be_followed_is_refused(built: Project, tmp_path: Path):
    record = read_record(built.results / "atlas.zarr")
    record["plates"][1]["path"] = "nowhere/p2.h5ad"
    with pytest.raises(InputError, match=r"nowhere/p2.h5ad of plate 'p2' does not exist"):
        reproduce.write_project(record, tmp_path, plates_from=tmp_path)
    with pytest.raises(InputError, match=r"has no record of its origin"):
        read_record(built.results / "merged.zarr")
    with pytest.raises(InputError, match=r"there is no atlas\.zarr here"):
        read_record(tmp_path)


def test_files_of_the_config_are_found_beside_the_plates(built: Project, tmp_path: Path):
    record = read_record(built.results / "atlas.zarr")
    for plate in record["plates"]:
        (tmp_path / f"{plate['plate']}.h5ad").touch()
        plate["path"] = f"{plate['plate']}.h5ad"
    record["config"] |= {"labels": ["names.tsv"], "annotate": {"label": ["type"], "model": None}}
    record["config"]["map"] |= {"use": "latent.h5ad"}
    (tmp_path / "names.tsv").touch()
    with pytest.raises(InputError, match=r"latent\.h5ad of map\.use does not exist"):
        reproduce.write_project(record, tmp_path / "new", plates_from=tmp_path)
    assert not (tmp_path / "new").exists()
    (tmp_path / "latent.h5ad").touch()
    reproduce.write_project(record, tmp_path / "new", plates_from=tmp_path)
    config = yaml.safe_load((tmp_path / "new/config.yaml").read_text())
    assert config["labels"] == [str(tmp_path / "names.tsv")]
    assert config["map"]["use"] == str(tmp_path / "latent.h5ad")
    assert config["map"]["cells"] == "all"
    assert config["annotate"] == {"label": ["type"], "model": None}


def test_other_versions_are_told():
    now = script.versions()
    then = {"version": "0.0.1", "versions": {**now, "numpy": "1.0", "cupy": "13"}}
    assert sorted(reproduce.version_warnings(then)) == [
        f"numpy is {now['numpy']}, the atlas was made with 1.0: results may differ",
        f"scatlas is {now['scatlas']}, the atlas was made with 0.0.1: results may differ",
    ]
