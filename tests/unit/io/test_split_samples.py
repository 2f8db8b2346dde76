"""One file of many samples: each gives the same plate as a file of this sample alone."""

from __future__ import annotations

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scatlas.errors import InputError
from scatlas.io import list_samples, load_plate, split_samples
from scatlas.io.zarr_writer import shard_files
from tests.helpers.files import files
from tests.helpers.plates import write

SAMPLES = ["donor 2/left", "b", "Z", "10"]


def atlas(order: str, n_cells: int = 400, n_genes: int = 30) -> ad.AnnData:
    """Cells of four samples, one after another or interleaved, with columns of many kinds."""
    rng = np.random.default_rng(3)
    x = sp.random(n_cells, n_genes, 0.2, "csr", np.float32, rng, lambda n: rng.integers(1, 9, n))
    x.indices = x.indices.astype(np.int64)
    x.indptr = x.indptr.astype(np.int64)
    for row in range(0, n_cells, 7):  # not sorted
        own = slice(x.indptr[row], x.indptr[row + 1])
        x.indices[own], x.data[own] = x.indices[own][::-1].copy(), x.data[own][::-1].copy()
    codes = np.sort(rng.integers(0, 3, n_cells))
    codes[-1] = 3  # a sample of one cell
    codes = rng.permutation(codes) if order == "interleaved" else codes
    obs = pd.DataFrame(
        {
            "sample": pd.Categorical.from_codes(codes, SAMPLES),
            "type": pd.Categorical(np.where(codes == 1, "t-cell", "b-cell")),
            "text": np.where(codes == 2, "x", "y").astype(object),
            "n": rng.integers(0, 5, n_cells),
            "nullable": pd.array([None if c == 1 else c for c in codes], dtype="Int64"),
            "score": rng.random(n_cells),
        },
        # The same barcodes in each sample, and twice in one.
        index=pd.Index([f"cell{i % 90}" for i in range(n_cells)], name="barcode"),
    )
    var = pd.DataFrame({"length": np.arange(n_genes)}, index=[f"g{i}" for i in range(n_genes)])
    with pytest.warns(UserWarning, match="not unique"):
        return ad.AnnData(x, obs=obs, var=var)


@pytest.mark.filterwarnings("ignore:.*not unique")
@pytest.mark.parametrize(
    ("layout", "order"),
    [
        ("h5ad", "contiguous"),
        *((layout, "interleaved") for layout in ("h5ad", "zarr", "dense", "csc")),
    ],
)
def test_a_sample_is_the_same_plate_as_from_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, order: str
):
    monkeypatch.setattr(shard_files, "_FILE_VALUES", 100)
    whole = atlas(order)
    source = tmp_path / f"atlas.{'zarr' if layout == 'zarr' else 'h5ad'}"
    convert = {"dense": lambda x: x.toarray(), "csc": sp.csc_matrix}.get(layout, lambda x: x)
    stored = whole.copy()
    stored.X = convert(whole.X)
    write(stored, source, 3)

    sizes = list_samples(source, "sample")
    in_order = list(dict.fromkeys(whole.obs["sample"]))
    assert sizes == {name: int((whole.obs["sample"] == name).sum()) for name in in_order}
    assert list(sizes) == in_order
    stores = {name: tmp_path / f"{i}.zarr" for i, name in enumerate(sizes)}
    facts = split_samples(source, stores, by="sample", block_budget=60_000)
    n_values = stored.X.nnz if sp.issparse(stored.X) else np.count_nonzero(stored.X)
    assert facts == {"n_samples": 4, "n_cells": 400, "n_values": n_values}
    for name, store in stores.items():
        alone = tmp_path / "alone.h5ad"
        own = stored[stored.obs["sample"] == name].copy()
        own.X = sp.csr_matrix(own.X) if layout in ("dense", "csc") else own.X
        own.write_h5ad(alone)
        wanted = load_plate(alone, tmp_path / "wanted.zarr", plate="p")
        found = load_plate(store, tmp_path / "found.zarr", plate="p")
        assert found == wanted
        assert files(tmp_path / "found.zarr") == files(tmp_path / "wanted.zarr")


@pytest.mark.filterwarnings("ignore:.*not unique")
def test_samples_that_cannot_be_told(tmp_path: Path):
    whole, source = atlas("contiguous"), tmp_path / "atlas.h5ad"
    whole.obs["gaps"] = whole.obs["sample"].where(whole.obs["n"] > 0)
    whole.write_h5ad(source)
    with pytest.raises(InputError, match=r"no column 'batch' \(plates.by\); it has sample, type"):
        list_samples(source, "batch")
    n = int((whole.obs["n"] == 0).sum())
    with pytest.raises(InputError, match=rf"obs\['gaps'\] has no value for {n} cells, the first"):
        list_samples(source, "gaps")
    stores = {"b": tmp_path / "b.zarr"}
    with pytest.raises(InputError, match="has other samples now, '10' the first"):
        split_samples(source, stores, by="sample")
    assert not stores["b"].exists()
