"""Harmony on the GPU against the CPU: its kernels, its rounds and the public function."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest

cp = pytest.importorskip("cupy")

import scatlas as sa  # noqa: E402
from scatlas.arrays import cupy_arrays  # noqa: E402
from scatlas.errors import InputError  # noqa: E402
from scatlas.kernels.linalg import harmony_cpu, harmony_gpu  # noqa: E402
from scatlas.matrix import harmony_rounds  # noqa: E402
from scatlas.matrix.harmony import fits_gpu, mix_rows  # noqa: E402

N, K, WIDTH, BLOCKS = 3000, 37, 20, 5
LEVELS = np.array([[i // 3, 4 + i % 3] for i in range(12)])
GRIDS = np.array([harmony_cpu.grid_of(30.0, N)] * (WIDTH + 1))


def arrays(order: str) -> dict[str, Any]:
    """What the kernels take; ``sorted`` cells lie by their combination of batches."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, len(LEVELS), N).astype(np.uint16)
    shares = rng.random((N, K)).astype(np.float32)
    return {
        "codes": np.sort(codes) if order == "sorted" else codes,
        "blocks": rng.integers(0, BLOCKS, N).astype(np.uint16),
        "logits": rng.normal(0, 5, (N, K)).astype(np.float32),
        "penalties": rng.normal(0, 2, (BLOCKS, 7, K)).astype(np.float32),
        "levels": LEVELS,
        "shares": shares / shares.sum(axis=1, keepdims=True),
        "z": rng.normal(0, 5, (N, WIDTH)).astype(np.float32),
        "terms": rng.normal(0, 1, (len(LEVELS), K, WIDTH)).astype(np.float32),
    }


def results(kernels: Any, x: dict[str, Any], xp: Any) -> dict[str, Any]:
    x = {name: xp.asarray(array) for name, array in x.items()}
    batches = x["codes"], x["levels"]
    shares, unit, moved = x["logits"].copy(), x["z"].copy(), x["z"].copy()
    unit[5] = 0
    logs = kernels.soft_clusters(shares, x["penalties"], x["blocks"], *batches)
    kernels.unit_rows(unit)
    sums = xp.zeros((BLOCKS, 7, K))
    kernels.add_shares(x["shares"], *batches, x["blocks"], harmony_cpu.grid_of(1.0, N), sums)
    z = xp.ones((N, WIDTH + 1))
    z[:, :-1] = x["z"]
    products = xp.zeros((len(LEVELS), K, WIDTH + 1))
    kernels.add_products(x["shares"], z, x["codes"], GRIDS, products)
    kernels.subtract_terms(moved, x["shares"], x["codes"], x["terms"])
    found = {"shares": shares, "unit": unit, "products": products, "moved": moved, "sums": sums}
    return {name: cp.asnumpy(array) for name, array in found.items()} | {"logs": np.array(logs)}


@pytest.mark.parametrize("order", ["sorted", "mixed"])
def test_kernels(order: str):
    x = arrays(order)
    cpu, gpu = results(harmony_cpu, x, np), results(harmony_gpu, x, cp)
    np.testing.assert_array_equal(gpu["sums"], cpu["sums"])
    # Rounded to the grid for each run of cells of one combination.
    np.testing.assert_allclose(gpu["products"], cpu["products"], rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(gpu["shares"], cpu["shares"], rtol=5e-6, atol=1e-30)
    for name in ("unit", "moved", "logs"):
        np.testing.assert_allclose(gpu[name], cpu[name], rtol=1e-6, atol=1e-5)


def cells(order: str, n: int = 6000) -> tuple[np.ndarray, pd.DataFrame]:
    """Components of cells of six types in two batches of three donors that are moved."""
    rng = np.random.default_rng(1)
    kind, donor, day = rng.integers(6, size=n), np.arange(n) * 6 // n, rng.integers(2, size=n)
    if order == "mixed":
        donor = rng.permutation(donor)
    x = rng.normal(0, 4, (6, WIDTH))[kind] + rng.normal(0, 1, (6, WIDTH))[donor]
    x += rng.normal(0, 1, (2, WIDTH))[day] + rng.normal(0, 1, (n, WIDTH))
    obs = pd.DataFrame({"donor": donor, "day": day}, index=[f"c{i}" for i in range(n)])
    return x.astype(np.float32), obs.astype(str)


@pytest.mark.parametrize("order", ["sorted", "mixed"])
def test_rounds_are_those_of_the_cpu_to_rounding(order: str, monkeypatch: pytest.MonkeyPatch):
    """In many small tasks, and in a few; the same bits on each run."""
    x, obs = cells(order)
    # Fewer tasks than changes of the batch of mixed cells, which are sorted.
    monkeypatch.setattr(harmony_rounds, "_GPU_SHARES", 100 * 700)

    def mixed(rows: Any) -> Any:
        moved = rows.copy()
        return moved, mix_rows(rows, moved, dict(obs.items()), theta=[2.0, 1.0])

    cpu, of_cpu = mixed(x)
    gpu, of_gpu = mixed(cp.asarray(x))
    # Another order of sums and another exponential on the CPU change them by a tenth of these.
    np.testing.assert_allclose(gpu.get(), cpu, rtol=0, atol=2e-5)
    assert np.abs(cpu - x).mean() > 0.3
    np.testing.assert_allclose(of_gpu.passes, of_cpu.passes, rtol=3e-7)
    for name in ("centroids", "terms", "sums"):
        a, b = getattr(of_gpu, name), getattr(of_cpu, name)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(b).max())
    again, of_again = mixed(cp.asarray(x))
    assert bool((again == gpu).all())
    np.testing.assert_array_equal(of_again.sums, of_gpu.sums)


def test_public_function_and_bad_components():
    x, obs = cells("sorted")
    adata = ad.AnnData(obs=obs, obsm={"X_pca": x})
    sa.pp.harmony_integrate(adata, "donor")
    adata.obsm["X_pca"] = cp.asarray(x)
    sa.pp.harmony_integrate(adata, "donor", adjusted_basis="gpu")
    found = adata.obsm["gpu"]
    assert isinstance(found, cp.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.get(), adata.obsm["X_pca_harmony"], rtol=0, atol=2e-5)
    adata.obsm["X_pca"][4321, 3] = np.nan
    with pytest.raises(InputError, match="of cell 4,321"):
        sa.pp.harmony_integrate(adata, "donor")


def test_cells_that_a_gpu_cannot_hold_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    monkeypatch.setattr(cupy_arrays, "total_memory", lambda: 4_000_000_000)
    assert fits_gpu(1_000_000, 50)
    assert not caplog.text
    assert not fits_gpu(10_000_000, 50)
    assert "Harmony takes 5.8 GB, and the GPU has 4.0: it works on the CPU" in caplog.text
