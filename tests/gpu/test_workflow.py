"""The demo through Snakemake with all GPU steps on the GPU agrees with the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from scatlas.datasets import simulate_plate, write_plate
from tests.gpu.shared import needs
from tests.workflow.runs import Project

pytestmark = needs("snakemake")

CONFIG = {
    "plates": "plates.tsv",
    "qc": {"filter": "pass_filter == 'full'", "min_genes": 250, "max_pct_mt": 25},
    "hvg": {"n_top_genes": 800},
    "pca": {"n_comps": 50},
}


@pytest.fixture(scope="module")
def plates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("plates")
    paths = {f"p{number}": folder / f"p{number}.h5ad" for number in (1, 2, 3, 4)}
    for number, path in enumerate(paths.values(), start=1):
        write_plate(path, simulate_plate(number, n_cells=2000, n_genes=3000))
    return paths


@pytest.fixture(scope="module")
def atlas_by_backend(tmp_path_factory: pytest.TempPathFactory, plates) -> dict[str, Path]:
    folders = {}
    for backend in ("cpu", "gpu"):
        project = Project(
            tmp_path_factory.mktemp(backend), CONFIG | {"backend": backend}, cold=True
        )
        project.write_plates(plates)
        project.build("atlas", cores=8)
        folders[backend] = project.results
    return folders


def test_the_same_genes(atlas_by_backend):
    cpu, gpu = (
        (atlas_by_backend[name] / "consensus_genes.tsv").read_bytes() for name in ("cpu", "gpu")
    )
    assert cpu == gpu


def test_the_same_cells_and_components(atlas_by_backend):
    cpu, gpu = (ad.read_zarr(atlas_by_backend[name] / "atlas.zarr") for name in ("cpu", "gpu"))
    assert cpu.obs.drop(columns="leiden").equals(gpu.obs.drop(columns="leiden"))
    # Neighbours that differ by rounding may move a cell between clusters.
    assert adjusted_rand_score(cpu.obs["leiden"], gpu.obs["leiden"]) > 0.95
    np.testing.assert_allclose(gpu.X.data, cpu.X.data, rtol=2e-7)
    np.testing.assert_array_equal(gpu.X.indices, cpu.X.indices)
    np.testing.assert_allclose(gpu.uns["pca"]["variance"], cpu.uns["pca"]["variance"], rtol=1e-6)
    np.testing.assert_allclose(gpu.obsm["X_pca"], cpu.obsm["X_pca"], atol=1e-4)


def test_run_records_name_the_gpu(atlas_by_backend):
    hvg = atlas_by_backend["gpu"] / "manifests/hvg/runs/p1.json"
    assert "backend" not in json.loads(hvg.read_text()), "load took the moments: no GPU is started"
    for step in ("select_genes/p1", "pca"):
        path = atlas_by_backend["gpu"] / "manifests" / step
        record = json.loads((path.parent / "runs" / f"{path.name}.json").read_text())
        assert record["backend"] == "gpu"
        assert record["gpu"]["peak_memory_bytes"] > 0
