"""Components of another method: read by the names of the cells, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.errors import ConfigError, InputError
from scatlas.workflow.config.loading import load
from scatlas.workflow.latent import read_latent

CELLS = pd.Index(["a", "b", "c", "d"])
X = np.arange(8, dtype=np.float32).reshape(4, 2)


def file(folder: Path, kind: str, names: Any = CELLS, x: Any = X) -> Path:
    cells = ad.AnnData(obs=pd.DataFrame(index=list(names)), obsm={"X_scVI": x})
    path = folder / f"cells.{kind}"
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=False):
        (cells.write_h5ad if kind == "h5ad" else cells.write_zarr)(path)
    return path


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_cells_in_any_order(tmp_path: Path, kind: str, dtype: Any):
    path = file(tmp_path, kind, x=X.astype(dtype))
    for wanted in (CELLS, CELLS[::-1], CELLS[[2, 0]]):
        found = read_latent(path, "X_scVI", wanted)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, X[CELLS.get_indexer(wanted)])


@pytest.mark.filterwarnings("ignore:Observation names are not unique")
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"names": list("abce")}, "lacks 1 of the atlas's 4 cells, the first of which is 'd'"),
        ({"names": list("abdd")}, "has the cell 'd' twice"),
        ({"x": np.where(X == 5, np.nan, X)}, "is not finite for 1 cells, the first .* is 'c'"),
        ({"x": pd.DataFrame(X, CELLS, ["u", "v"])}, "is no matrix of numbers"),
        ({"x": np.ones((4, 2, 2))}, "is no matrix of numbers"),
    ],
)
def test_bad_components_are_refused(tmp_path: Path, given: dict[str, Any], sentence: str):
    with pytest.raises(InputError, match=sentence):
        read_latent(file(tmp_path, "h5ad", **given), "X_scVI", CELLS)


def test_a_missing_key_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"no obsm.'X_other'.; it has X_scVI: set map.use_rep"):
        read_latent(file(tmp_path, "h5ad"), "X_other", CELLS)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"map": {"use": "x.h5ad"}, "integrate": {"key": ["plate"]}}, "are both given"),
        ({"map": {"use": "x.h5ad", "use_rep": "X_pca"}}, "which scatlas writes itself"),
        ({"map": {"use": "https://example.org/x.h5ad"}}, "is an address"),
    ],
)
def test_config(config: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError, match=sentence):
        load(config)
