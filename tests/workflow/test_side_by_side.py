"""Which jobs run side by side on a machine of 16 cores and one GPU.

Snakemake schedules the real rules with the real profiles. The scripts are stand-ins that sleep, so
that two cores are enough for the test.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.workflow import warm
from tests.workflow.runs import ROOT

pytestmark = pytest.mark.workflow

CORES = 16
PLATES = [f"p{number}" for number in range(1, 7)]
# As long as its name says, then writes the outputs of the step and one line about itself.
STAND_IN = """
import sys
import time
from pathlib import Path

SECONDS = {"load": 0.8, "qc_filter": 0.1, "normalize": 0.1, "hvg": 0.8}
WRITES = {"load": ["store"], "qc_filter": ["table", "summary"]}
rule = Path(sys.argv[0]).stem
options = dict(zip(sys.argv[1:], sys.argv[2:]))
start = time.monotonic()
time.sleep(SECONDS[rule])
for name in WRITES.get(rule, ["table"]):
    path = Path(options["--" + name])
    path = path / "zarr.json" if name == "store" else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(rule)
Path(options["--manifest"]).write_text("{}")
words = [rule, options["--plate"], options["--threads"], options.get("--gpu-share", "-")]
with open("jobs.txt", "a") as file:
    file.write(" ".join([*words, str(start), str(time.monotonic())]) + "\\n")
"""


@dataclass(frozen=True)
class Job:
    rule: str
    plate: str
    threads: int
    gpu_share: str
    start: float
    end: float


def jobs_of_run(folder: Path, backend: str, *options: str) -> list[Job]:
    """Jobs of a run up to `hvg` of all plates, each of a million cells, by their start."""
    checkout = folder / "checkout"
    shutil.copytree(ROOT / "workflow", checkout / "workflow")
    shutil.copy(ROOT / "Snakefile", checkout)
    for name in ("src", "config", "envs"):
        (checkout / name).symlink_to(ROOT / name)
    (checkout / "scripts").mkdir()
    for script in (ROOT / "scripts").glob("*.py"):
        (checkout / "scripts" / script.name).write_text(STAND_IN)
    rows = ["plate\tpath\tn_cells", *(f"{plate}\t{plate}.h5ad\t1000000" for plate in PLATES)]
    (folder / "plates.tsv").write_text("\n".join([*rows, ""]))
    for plate in PLATES:
        (folder / f"{plate}.h5ad").write_text(plate)
    config = {"plates": "plates.tsv", "consensus": {"min_plates": 2}, "backend": backend}
    (folder / "my.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [
            *(warm.python(), "-m", "snakemake", "--snakefile", str(checkout / "Snakefile")),
            *("--directory", str(folder), "--configfile", str(folder / "my.yaml")),
            *("--cores", str(CORES), "--nocolor", *options),
            *(f"results/plates/{plate}/hvg.parquet" for plate in PLATES),
        ],
        cwd=ROOT, env=warm.environment(), text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]
    lines = [line.split() for line in (folder / "jobs.txt").read_text().splitlines()]
    jobs = [
        Job(rule, plate, int(threads), share, float(start), float(end))
        for rule, plate, threads, share, start, end in lines
    ]
    assert len(jobs) == 4 * len(PLATES)
    return sorted(jobs, key=lambda job: job.start)


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    folder = tmp_path_factory.mktemp("gpu")
    return jobs_of_run(folder, "gpu", "--profile", str(ROOT / "profiles/local-gpu"))


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> list[Job]:
    return jobs_of_run(tmp_path_factory.mktemp("cpu"), "cpu")


def moments(jobs: list[Job]) -> Iterator[list[Job]]:
    """The jobs that run at the start of each job."""
    for job in jobs:
        yield [other for other in jobs if other.start <= job.start < other.end]


def n_running(running: list[Job], rule: str) -> int:
    return sum(job.rule == rule for job in running)


def test_two_gpu_jobs_run_beside_two_jobs_that_load(on_gpu: list[Job]):
    at_once = [(n_running(now, "load"), n_running(now, "hvg")) for now in moments(on_gpu)]
    assert (2, 2) in at_once
    assert max(n_gpu for _, n_gpu in at_once) == 2, "the GPU has two parts"
    assert {job.gpu_share for job in on_gpu if job.rule == "hvg"} == {"1/2"}


def test_two_jobs_that_load_fill_the_cores(on_cpu: list[Job]):
    assert {job.threads for job in on_cpu if job.rule in ("load", "hvg")} == {8}
    assert max(n_running(now, "load") for now in moments(on_cpu)) == 2


@pytest.mark.parametrize("device", ["on_gpu", "on_cpu"])
def test_jobs_use_all_cores_and_no_more(device: str, request: pytest.FixtureRequest):
    used = [sum(job.threads for job in now) for now in moments(request.getfixturevalue(device))]
    assert max(used) == CORES


def test_a_plate_goes_on_before_the_next_is_loaded(on_cpu: list[Job]):
    """A load may start while the steps on the last plates cannot fill the cores, but no more."""
    loads = [job for job in on_cpu if job.rule == "load"]
    for n_before, load in enumerate(loads):
        started = sum(job.rule == "hvg" and job.start < load.start for job in on_cpu)
        assert started >= n_before - 3, f"plates are loaded and wait when {load.plate} is loaded"
