"""load_plate's counts and QC metrics equal those of anndata and scanpy for the same file."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pytest

from scatlas.io.products.load_plate import load_plate


@pytest.mark.real
@pytest.mark.parametrize("name", ["mix_plate1", "mix_plate5"])
def test_real_plate(tmp_path, plates_dir, name):
    sc = pytest.importorskip("scanpy")
    source = plates_dir / f"{name}.h5ad"
    facts = load_plate(
        source,
        tmp_path / "counts.zarr",
        plate=name,
        reference=plates_dir / "mix_plate2.h5ad",
        block_budget="4MB",
    )
    ours, wanted = ad.read_zarr(tmp_path / "counts.zarr"), ad.read_h5ad(source)
    assert (ours.X != wanted.X).nnz == 0
    assert facts["n_values"] == wanted.X.nnz
    # scanpy's sums are exact for integers, but not for float32.
    wanted.X = wanted.X.astype(np.int64)
    wanted.var["mt"] = wanted.var_names.str.startswith("MT-")
    sc.pp.calculate_qc_metrics(wanted, qc_vars=["mt"], percent_top=None, log1p=False, inplace=True)
    for column in ("total_counts", "n_genes_by_counts", "total_counts_mt", "pct_counts_mt"):
        np.testing.assert_array_equal(ours.obs[column], wanted.obs[column])
    for column in ("mt", "total_counts", "n_cells_by_counts"):
        np.testing.assert_array_equal(ours.var[column], wanted.var[column])
