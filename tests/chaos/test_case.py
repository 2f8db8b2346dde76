"""Which ends chaos accepts as right, as wrong and as a sentence."""

from __future__ import annotations

import pytest

from tests.chaos.case import differences, sentences

RIGHT = {
    "atlas.zarr/zarr.json": "a",
    "atlas.zarr/X/c/0": "b",
    "merged.zarr/zarr.json": "c",
    "merged.zarr/X/c/0": "d",
    "figures/umap/leiden.png": "e",
    "tables/cells.tsv": "f",
    "logs/pca.log": "g",
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"merged.zarr/zarr.json": None, "merged.zarr/X/c/0": None},
        {"merged.zarr/zarr.json": None},  # cannot be opened
        {"plates/dropped/counts.zarr/zarr.json": "x", "integrated.h5ad": "x"},
        {"logs/pca.log": "x"},
    ],
)
def test_right_results(change: dict[str, str | None]):
    assert differences(changed(change), RIGHT) == []


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"atlas.zarr/X/c/0": None}, "atlas.zarr/X/c/0 is lost"),
        ({"atlas.zarr/zarr.json": None}, "atlas.zarr is missing"),
        ({"merged.zarr/X/c/0": None}, "merged.zarr/X/c/0 is lost"),
        ({"merged.zarr/X/c/0": "x"}, "merged.zarr/X/c/0 has other bytes"),
        ({"atlas.zarr/obsm/c/0": "x"}, "atlas.zarr/obsm/c/0 is from elsewhere"),
        ({"figures/umap/drug.png": "x"}, "figures/umap/drug.png is from elsewhere"),
        ({"tables/cells.tsv": None}, "tables/cells.tsv is missing"),
    ],
)
def test_wrong_results(change: dict[str, str | None], wrong: str):
    assert differences(changed(change), RIGHT) == [wrong]


def changed(change: dict[str, str | None]) -> dict[str, str]:
    return {name: digest for name, digest in (RIGHT | change).items() if digest is not None}


def test_sentences():
    said = """Logfile results/logs/qc_filter/p3.log:
====
error: plate p3: obs has no column 'x'
    error: plate p3: obs has no column 'x'
WorkflowError in file "/x/integrity.smk", line 29:
results/atlas.zarr: c/0 is not what its step has written
  File "/x/integrity.smk", line 32, in <module>
WorkflowError:
At least one job did not complete successfully.
"""
    assert sentences(said) == {
        "plate p3: obs has no column 'x'",
        "results/atlas.zarr: c/0 is not what its step has written",
    }
    assert sentences("error: \n") == {""}
