"""Plates whose counts are in a layer or in ``raw``, beside a normalised X."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io import load_plate, split_samples
from scatlas.io.matrices.counts_source import what_elements_hold
from scatlas.io.matrices.source import COUNTS, EXPECTED
from scatlas.io.tables.cell_names import SharedCells
from scatlas.workflow.command_line.check import (
    AskedColumns,
    AskedGenes,
    ComparedSamples,
    _problems_of_plates,
)
from scatlas.workflow.command_line.plate_facts import read_facts
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.config.sections import Config
from tests.helpers.files import files
from tests.helpers.plates import write


def counts(n_genes: int) -> ad.AnnData:
    rng = np.random.default_rng(0)
    x = sp.random(80, n_genes, 0.3, "csr", np.float32, rng, lambda n: rng.integers(1, 9, n))
    obs = pd.DataFrame({"batch": ["a", "b"] * 40}, index=[f"c{i}" for i in range(80)])
    var = pd.DataFrame({"feature_name": [f"MT-{i}" for i in range(n_genes)]})
    return ad.AnnData(x, obs=obs, var=var.set_index(pd.Index([f"ENSG{i}" for i in range(n_genes)])))


@pytest.fixture(params=["h5ad", "zarr"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """As CELLxGENE publishes it: normalised X of some genes, counts of all genes in ``raw``."""
    whole = counts(30)
    adata = whole[:, 5:25].copy()
    adata.layers["umis"] = adata.X.copy()
    adata.X = np.log1p(adata.X)
    adata.raw = whole
    return write(adata, tmp_path / f"source.{request.param}", 3)


@pytest.mark.parametrize("counts_in", ["layers/umis", "raw"])
def test_counts_give_the_plate_that_they_give_as_x(tmp_path: Path, source: Path, counts_in: str):
    plain = counts(30) if counts_in == "raw" else counts(30)[:, 5:25].copy()
    plain.write_h5ad(tmp_path / "plain.h5ad")
    options = {"plate": "p", "gene_names": "feature_name", "reference": tmp_path / "plain.h5ad"}
    wanted = load_plate(tmp_path / "plain.h5ad", tmp_path / "wanted.zarr", **options)
    found = load_plate(source, tmp_path / "found.zarr", counts_in=counts_in, **options)
    assert found == wanted
    assert found["n_mt_genes"] == plain.n_vars
    assert files(tmp_path / "found.zarr") == files(tmp_path / "wanted.zarr")
    # The plate is a reference itself.
    options |= {"reference": source, "reference_counts_in": counts_in}
    load_plate(tmp_path / "plain.h5ad", tmp_path / "again.zarr", **options)

    stores = {name: tmp_path / f"{name}.zarr" for name in "ab"}
    split_samples(source, stores, by="batch", counts_in=counts_in)
    half = load_plate(stores["a"], tmp_path / "a_counts.zarr", plate="a")
    assert half["total_counts"] == int(plain[::2].X.sum())


def test_elements_with_counts_are_listed_where_one_is_missing(tmp_path: Path, source: Path):
    held = {"X": "holds fractional values", "raw": COUNTS, "layers/umis": COUNTS}
    assert list(what_elements_hold(source).items()) == list(held.items())
    lacking = (
        r"layers/no is missing: write 'source: \{counts: X\}' or 'source: \{counts: layers/umis\}'"
    )
    with pytest.raises(InputError, match=lacking):
        load_plate(source, tmp_path / "out.zarr", plate="p", counts_in="layers/no")


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix, sp.csc_matrix])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "holds no value but 0"),
        (-1, "holds negative values"),
        (np.nan, "holds NaN or infinite values"),
        (np.inf, "holds NaN or infinite values"),
        (0.37, "holds fractional values"),
        (3, COUNTS),
    ],
)
def test_what_an_element_holds_is_said_as_it_is(tmp_path: Path, form, value: float, words: str):
    """The value is in the last of 900 cells, the others are empty."""
    path = tmp_path / "p.h5ad"
    x = np.zeros((900, 3), np.float32)
    x[-1, 1] = value
    ad.AnnData(form(x)).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        file["layers/text"] = np.array([b"a", b"b"])  # not needed, so it may be of any kind
    assert what_elements_hold(path)["X"] == words
    if words == COUNTS:
        assert read_facts("p", str(path))[0].counts == "X"
        return
    with pytest.raises(InputError, match=f"X {words}, layers/text cannot be read; give a file"):
        read_facts("p", str(path))


@pytest.mark.parametrize("counts_in", ["X", "raw", "layers/umis"])
@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (None, "there is no X, no raw and no layer; give a file with raw counts"),
        ((0, 3), "obs is empty, the plate has no cells: leave it out"),
        ((3, 0), "var is empty, the plate has no genes: leave it out"),
    ],
)
def test_a_file_without_x_cells_or_genes_is_told_so(tmp_path: Path, shape, said, counts_in):
    path = tmp_path / "p.h5ad"
    without_x = ad.AnnData(obs=counts(2).obs, var=counts(2).var)
    (without_x if shape is None else ad.AnnData(sp.csr_matrix(shape))).write_h5ad(path)
    with pytest.raises(InputError, match=said):
        read_facts("p", str(path))
    plate = Plate(plate="p", path=str(path), counts=counts_in)
    asked = AskedColumns(Config()), AskedGenes(Config()), ComparedSamples(Config())
    (problem,) = _problems_of_plates(Config(), [plate], SharedCells(), *asked)
    is_there = counts_in == "X" and shape is not None
    expected = said if is_there else f"{counts_in} of plate 'p' is missing: give a file"
    assert expected in problem.message
    with pytest.raises(InputError, match=said if is_there else "is missing"):
        load_plate(path, tmp_path / "out.zarr", plate="p", counts_in=counts_in)


def expected_counts(path: Path) -> ad.AnnData:
    """As alevin writes them: most values are whole, some are shared between genes."""
    adata = counts(30)
    adata.X.data[::5] += np.float32(0.5) - np.float32(0.25) * (
        np.arange(adata.X.data[::5].size) % 3
    )
    adata.X.data[3] = 0.2  # becomes 0
    adata.write_h5ad(path)
    return adata


def test_fractional_counts_are_refused_or_rounded(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    adata = expected_counts(tmp_path / "p.h5ad")
    with pytest.raises(InputError, match=r"a fractional value.*'source: \{fractional: round\}' in"):
        load_plate(tmp_path / "p.h5ad", tmp_path / "out.zarr", plate="p")
    assert not (tmp_path / "out.zarr").exists()

    whole = adata.copy()
    whole.X.data = np.rint(whole.X.data)
    whole.write_h5ad(tmp_path / "whole.h5ad")
    wanted = load_plate(tmp_path / "whole.h5ad", tmp_path / "wanted.zarr", plate="p")
    caplog.set_level("INFO", "scatlas")
    options = {"plate": "p", "fractional": "round", "block_budget": "20kB"}
    found = load_plate(tmp_path / "p.h5ad", tmp_path / "found.zarr", **options)
    assert files(tmp_path / "found.zarr") == files(tmp_path / "wanted.zarr")
    changed = whole.X.data != adata.X.data
    n_counts = int(whole.X.data[changed].sum())
    assert found["n_rounded_values"] == changed.sum() > 50
    assert found["n_rounded_counts"] == n_counts
    notice = (
        f"{changed.sum():,} of {adata.X.nnz:,} values of X were fractional: rounded; they hold "
        f"{100 * n_counts / whole.X.sum():.1f}% of the counts"
    )
    assert notice in found["notices"]
    assert f"plate p: {notice}" in caplog.text
    assert found["total_counts"] == wanted["total_counts"]

    # What is no expected count is no count after rounding either.
    for value in (-0.3, np.nan, np.inf):
        adata.X.data[7] = value
        adata.write_h5ad(tmp_path / "bad.h5ad")
        with pytest.raises(InputError, match="X holds"):
            load_plate(tmp_path / "bad.h5ad", tmp_path / "bad.zarr", plate="p", fractional="round")


def test_expected_counts_are_told_from_normalised_values(tmp_path: Path, source: Path):
    expected_counts(tmp_path / "p.h5ad")
    assert what_elements_hold(tmp_path / "p.h5ad") == {"X": EXPECTED}
    assert EXPECTED not in what_elements_hold(source).values()
