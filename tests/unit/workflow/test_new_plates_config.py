"""Config of new plates: the settings of the atlas's record, and what is refused before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.errors import ConfigError, InputError
from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.new_plates import FinishedAtlas, check_new_plates, load_new_plates
from scatlas.workflow.provenance import ATLAS_KEYS

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated:UserWarning")
RECORDED = {"qc": {"min_genes": 250}, "normalize": {"target_sum": 10000}, "pca": {"n_comps": 2}}


def write_atlas(path: Path, *, without: str = "", **changes: Any) -> Path:
    """A store with the elements that new plates need, but for one."""
    config = load(RECORDED).model_dump(mode="json", include=set(ATLAS_KEYS))
    record = {"version": "0.1.0", "config": json.dumps(config), "plates": '[{"plate": "p1"}]'}
    adata = ad.AnnData(
        np.ones((3, 4), np.float32),
        obs=pd.DataFrame(
            {"leiden": pd.Categorical(["0", "1", "0"]), "depth": [1, 2, 3]}, index=list("abc")
        ),
        obsm={"X_pca": np.ones((3, 2)), "X_umap": np.ones((3, 2))},
        varm={"PCs": np.ones((4, 2))},
        uns={
            "scatlas": record | changes,
            "umap": {"params": {"a": 1.0, "b": 1.0}},
            "pca": {"params": {"zero_center": True}},
        },
    )
    kind, _, name = without.partition("/")
    if without:
        del getattr(adata, kind)[name]
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        adata.write_zarr(path)
    return path


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> FinishedAtlas:
    return FinishedAtlas.open(write_atlas(tmp_path_factory.mktemp("atlas") / "atlas.zarr"))


def test_settings_come_from_the_record(atlas: FinishedAtlas):
    own = {"plates": "new.tsv", "outdir": "out", "atlas": "atlas.zarr", "backend": "cpu"}
    found = load_new_plates(own | {"new_plates": {"obs": ["leiden"]}}, atlas)
    assert (found.qc.min_genes, found.normalize.target_sum) == (250, 10000)
    assert (found.outdir, found.atlas, found.backend) == ("out", "atlas.zarr", "cpu")
    assert found.new_plates.obs == ["leiden"]
    assert found.genes == "intersect", "plates are compared with the atlas, not with each other"


def test_a_key_may_repeat_the_record(atlas: FinishedAtlas):
    same = {"qc": {"min_genes": 250}, "normalize": None, "seed": 0, "leiden": {"resolution": 1.0}}
    assert load_new_plates(same, atlas) == load_new_plates({}, atlas)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"normalize": {"target_sum": None}},
            "normalize.target_sum is null in the config, but 10000.0 in the record of",
        ),
        ({"qc": {"max_pct_mt": 5}}, "qc.max_pct_mt is 5.0 in the config, but null in the record"),
        ({"scale": {"max_value": 10}}, r"scale is {.*} in the config, but null in the record"),
        ({"seed": 3}, "seed is 3 in the config, but 0 in the record"),
        ({"pseudobulk": {}}, "pseudobulk is {.*} in the config, but null in the record"),
        ({"plates": {"on_error": "skip"}}, "plates.on_error is skip"),
    ],
)
def test_a_key_that_contradicts_the_atlas_is_refused(
    atlas: FinishedAtlas, given: dict[str, Any], message: str
):
    with pytest.raises(ConfigError, match=message):
        load_new_plates(given, atlas)


@pytest.mark.parametrize(
    ("without", "message"),
    [
        ("varm/PCs", r"has no components \(it lacks varm/PCs\): build it again"),
        ("obsm/X_pca", r"has no components \(it lacks obsm/X_pca\)"),
        ("uns/pca", r"has no components \(it lacks uns/pca/params/zero_center\)"),
        ("obsm/X_umap", r"has no map of all cells \(it lacks obsm/X_umap\): build it with map.c"),
        ("uns/umap", r"has no map of all cells \(it lacks uns/umap/params/a\)"),
        ("obs/leiden", r"has no map of all cells \(it lacks obs/leiden\)"),
    ],
)
def test_an_atlas_without_a_part_is_refused(tmp_path: Path, without: str, message: str):
    found = FinishedAtlas.open(write_atlas(tmp_path / "atlas.zarr", without=without))
    with pytest.raises(InputError, match=message):
        found.check([])


def test_labels_that_the_atlas_lacks_are_refused(atlas: FinishedAtlas):
    atlas.check(["leiden"])
    with pytest.raises(InputError, match="has no obs column 'tissue'; it has leiden, depth"):
        atlas.check(["leiden", "tissue"])
    with pytest.raises(InputError, match=r"obs\['depth'\] of .* holds numbers"):
        atlas.check(["depth"])


def test_what_is_no_atlas_is_refused(tmp_path: Path):
    for path in (tmp_path, tmp_path / "missing.zarr"):
        with pytest.raises(InputError, match=r"is no atlas\.zarr of scatlas: correct the path"):
            FinishedAtlas.open(path)
    plain = write_atlas(tmp_path / "plain.zarr", without="uns/scatlas")
    with pytest.raises(InputError, match="has no record of its settings"):
        FinishedAtlas.open(plain)
    newer = write_atlas(tmp_path / "newer.zarr", version="1.0.0")
    with pytest.raises(InputError, match=r"was made with scatlas 1\.0\.0, .* update scatlas"):
        FinishedAtlas.open(newer)
    damaged = write_atlas(tmp_path / "damaged.zarr")
    (damaged / "uns/scatlas/config/c").write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot be read .* the data are damaged"):
        FinishedAtlas.open(damaged)


def test_plates_of_the_atlas_and_its_folder_are_refused(atlas: FinishedAtlas):
    config = load_new_plates({"outdir": "out"}, atlas)
    check_new_plates(config, [Plate(plate="p2", path="p2.h5ad")], atlas)
    with pytest.raises(ConfigError, match="plate 'p1' is the name of a plate of"):
        check_new_plates(config, [Plate(plate="p1", path="p2.h5ad")], atlas)
    labelled = Plate(plate="p2", path="p2.h5ad", labels={"cell_type_share": "1"})
    voting = load_new_plates({"new_plates": {"obs": ["cell_type"]}}, atlas)
    with pytest.raises(ConfigError, match="writes a column 'cell_type_share' for each cell: ren"):
        check_new_plates(voting, [labelled], atlas)
    same = load_new_plates({"outdir": str(atlas.path.parent)}, atlas)
    with pytest.raises(ConfigError, match=r"holds the atlas .* name another folder"):
        check_new_plates(same, [], atlas)
