"""The multi-GPU preset, batch correction and doublets on GPUs agree with the CPU."""

from __future__ import annotations

import json

import anndata as ad
import numpy as np
import pytest
import yaml

import scatlas as sa
from scatlas.datasets import simulate_plate, write_plate
from tests.gpu.shared import needs
from tests.workflow.runs import ROOT, Project


@needs("snakemake")
@needs("dask_cuda")
def test_the_preset_of_many_gpus_is_that_of_the_cpu(tmp_path_factory: pytest.TempPathFactory):
    import cupy

    n_gpus = cupy.cuda.runtime.getDeviceCount()
    preset = yaml.safe_load((ROOT / "config/cell-atlas-11m.yaml").read_text())
    preset |= {"plates": "plates.tsv", "outdir": "results"}
    preset["hvg"] |= {"n_top_genes": 600}
    assert preset["compute"]["cluster"]["devices"] == 8
    folder = tmp_path_factory.mktemp("preset")
    write_plate(folder / "p.h5ad", simulate_plate(1, n_cells=3000, n_genes=4000))
    atlases = []
    for backend in ("gpu", "cpu"):
        # Some machines hang with managed memory; other tests cover it.
        cluster = {"kind": "local-gpu", "devices": n_gpus} if backend == "gpu" else None
        config = preset | {"backend": backend, "compute": {"cluster": cluster}}
        project = Project(folder / backend, config, cold=True)
        project.write_plates({"cell_atlas": folder / "p.h5ad"})
        project.build("atlas", cores=8)
        atlases.append(ad.read_zarr(project.results / "atlas.zarr"))
        for step in ("hvg/cell_atlas", "select_genes/cell_atlas", "pca"):
            path = project.results / "manifests" / step
            record = json.loads((path.parent / "runs" / f"{path.name}.json").read_text())
            assert record["backend"] == backend
    gpu, cpu = atlases
    assert list(gpu.var_names) == list(cpu.var_names)
    assert list(gpu.obs_names) == list(cpu.obs_names)
    np.testing.assert_allclose(gpu.uns["pca"]["variance"], cpu.uns["pca"]["variance"], rtol=1e-6)
    np.testing.assert_allclose(np.abs(gpu.obsm["X_pca"]), np.abs(cpu.obsm["X_pca"]), atol=1e-3)


@needs("snakemake")
def test_mixed_cells_have_the_cpus_neighbours(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("mixed")
    plates = {f"p{number}": folder / f"p{number}.h5ad" for number in (1, 2, 3)}
    for number, path in enumerate(plates.values(), start=1):
        write_plate(path, simulate_plate(number, n_cells=800, n_genes=1500))
    config = {
        "plates": "plates.tsv",
        "backend": "cpu",
        "qc": {"filter": "pass_filter == 'full'"},
        "hvg": {"n_top_genes": 400},
        "consensus": {"min_plates": 2},
        "pca": {"n_comps": 30},
        "integrate": {"key": ["plate"]},
    }
    project = Project(folder / "project", config, cold=True)
    project.write_plates(plates)
    project.build("results/integrated.h5ad", cores=8)
    cpu = ad.read_h5ad(project.results / "integrated.h5ad")
    project.config["backend"] = "gpu"
    project.write_config()
    assert project.build("--forcerun", "integrate", "--", "results/integrated.h5ad", cores=8) == {
        "integrate"
    }
    gpu = ad.read_h5ad(project.results / "integrated.h5ad")
    np.testing.assert_array_equal(gpu.obsm["X_pca_harmony"], cpu.obsm["X_pca_harmony"])
    a, b = (x.obsp["uncorrected_distances"].astype(bool) for x in (gpu, cpu))
    assert a.multiply(b).sum() >= 0.9999 * b.sum()
    scores = gpu.uns["integrate"]["scores"].loc["plate"]
    assert scores["score after"] > scores["score before"]
    assert gpu.obsm["X_umap_uncorrected"].shape == (gpu.n_obs, 2)


def test_doublets_of_counts_on_the_gpu():
    adata = simulate_plate(1, n_cells=600, n_genes=800)
    cpu = sa.pp.scrublet(adata, threshold=0.2, copy=True)
    sa.get.anndata_to_GPU(adata)
    sa.pp.scrublet(adata, threshold=0.2)
    ours, theirs = (x.obs["doublet_score"].to_numpy() for x in (adata, cpu))
    # Moments of the genes differ by rounding, which may move a gene across a cutoff.
    assert np.isclose(ours, theirs, rtol=1e-9, equal_nan=True).mean() > 0.99
