"""Profiles: found where people type their names, and understood by what reads them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from snakemake.profiles import ProfileConfigFileParser
from snakemake_executor_plugin_slurm.partitions import read_partition_file

ROOT = Path(__file__).resolve().parents[3]
SLURM = ROOT / "profiles/slurm/config.yaml"
GPU_RULES = {"hvg", "select_genes", "pca", "neighbors", "umap", "leiden", "map"}


def options(profile: str) -> dict:
    """What Snakemake makes of a profile."""
    with (ROOT / "profiles" / profile / "config.yaml").open() as file:
        return dict(ProfileConfigFileParser().parse(file))


@pytest.mark.parametrize("profile", ["local-gpu", "slurm"])
def test_a_profile_is_found_by_its_name_in_the_checkout(profile: str):
    assert (ROOT / profile).is_symlink()
    assert (ROOT / profile / "config.yaml").samefile(ROOT / "profiles" / profile / "config.yaml")


def test_the_default_profile_leaves_cores_to_another(monkeypatch):
    monkeypatch.delenv("SNAKEMAKE_PROFILE", raising=False)
    monkeypatch.setattr("sys.argv", ["snakemake", "-n"])
    assert options("default")["cores"] == "all"
    for words in (["--profile", "slurm"], ["--profile=slurm"]):
        monkeypatch.setattr("sys.argv", ["snakemake", *words])
        assert "cores" not in options("default"), "it would win over the other profile's"
        assert options("default")["rerun-incomplete"] == "True"


def test_the_partitions_stand_in_the_profile_itself():
    told = options("slurm")
    assert "partitions" not in told, "no option of Snakemake's"
    assert Path(told["slurm-partition-config"]).samefile(SLURM)
    assert told["slurm-no-requeue"] == "True"
    assert told["executor"] == "slurm"


def partition(gpu: int, partitions: list) -> str:
    asked = {"gpu": gpu, "mem_mb": 5000, "runtime": 60, "nodes": 1}
    job = SimpleNamespace(resources=asked, threads=4)
    scores = {p.name: p.score_job_fit(job) for p in partitions}
    return max((name for name in scores if scores[name] is not None), key=scores.get)


def test_jobs_with_a_gpu_go_to_the_partition_that_has_some():
    partitions = read_partition_file(SLURM)
    assert partition(1, partitions) == "gpu"
    assert partition(0, partitions) == "cpu"


def test_the_examples_of_the_documentation_are_read(tmp_path: Path):
    text = (ROOT / "docs/hpc.md").read_text()
    examples = [yaml.safe_load(part) for part in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert len(examples) == 4
    for number, example in enumerate(examples):
        assert set(example) <= {"partitions", "default-resources", "set-resources", "compute"}
        assert set(example.get("set-resources", GPU_RULES)) == GPU_RULES
        if "partitions" in example:
            file = tmp_path / f"{number}.yaml"
            file.write_text(yaml.safe_dump(example))
            assert partition(0, read_partition_file(file)) in example["partitions"]
