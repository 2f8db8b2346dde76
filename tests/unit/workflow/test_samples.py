"""Plates of one file of many samples."""

from __future__ import annotations

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scatlas.datasets import simulate_plate, write_release
from scatlas.errors import ConfigError, InputError
from scatlas.io.products import split_samples
from scatlas.workflow.config.loading import load, plate_names, sample_plates
from scatlas.workflow.provenance import plate_rows


def test_samples_have_the_names_of_folders():
    names = plate_names(["a b/c", "d-1.x", ".e", "-f", "é"], "x.h5ad")
    assert list(names.values()) == ["a_b_c", "d-1.x", "_e", "_f", "_"]
    with pytest.raises(ConfigError, match=r"x: the samples 'a b' and 'a/b' would both be plate"):
        plate_names(["a b", "a/b"], "x")


def test_the_file_is_opened_once_and_by_the_main_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    plates = load({"plates": {"path": "x.h5ad", "by": "s"}})
    obs = pd.DataFrame({"s": ["b", "a 1", "b"]}, index=["x", "y", "z"])
    ad.AnnData(np.ones((3, 2), np.float32), obs=obs).write_h5ad("x.h5ad")
    opened = []
    real = split_samples.list_samples
    monkeypatch.setattr(split_samples, "list_samples", lambda *a: opened.append(a) or real(*a))

    found = [sample_plates(plates, is_main=is_main) for is_main in (True, True, False)]
    assert [(p.plate, p.sample, p.n_cells, p.path) for p in found[0]] == [
        ("b", "b", 2, "x.h5ad"),
        ("a_1", "a 1", 1, "x.h5ad"),
    ]
    assert found[0] == found[1] == found[2]
    assert len(opened) == 1
    os.utime("x.h5ad", ns=(0, 0))
    sample_plates(plates, is_main=False)
    assert len(opened) == 1, "a job opens the file"
    sample_plates(plates, is_main=True)
    assert len(opened) == 2


def test_columns_of_lists_are_refused_before_the_first_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """And asked for again where they have changed; the record of the atlas has them."""
    monkeypatch.chdir(tmp_path)
    write_release(tmp_path / "tahoe", [simulate_plate(1, n_cells=30, n_genes=200)], n_files=1)
    settings = {"plates": {"path": "tahoe", "by": "plate"}}
    (plate,) = sample_plates(load(settings), is_main=True)
    assert plate.is_read_in_place
    asked = {"genes": "genes", "counts": "expressions", "marker": None}
    good = load(settings | {"source": asked})
    rows = plate_rows(good, sample_plates(good, is_main=True))
    assert asked.items() <= rows[0].items()
    with pytest.raises(InputError, match=r"'tokens' \(source.genes\) is no column of lists"):
        sample_plates(load(settings | {"source": asked | {"genes": "tokens"}}), is_main=True)


@pytest.mark.parametrize(
    ("plates", "problem"),
    [
        ({"path": "x.h5ad"}, "needs both keys, path and by"),
        ({"by": "s"}, "needs both keys, path and by"),
        ({"path": "x", "by": "s", "sheet": "y"}, r"a sheet \(y\) or a file of samples \(x\), not"),
        ({"path": "s3://x", "by": "s"}, "'s3://x' is an address: copy the file"),
    ],
)
def test_places_that_cannot_be(plates: dict, problem: str):
    with pytest.raises(ConfigError, match=f"config: plates.*{problem}"):
        load({"plates": plates})
