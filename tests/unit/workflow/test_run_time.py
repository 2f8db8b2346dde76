"""Simulation of the jobs of a run, and the expected run time against measured runs."""

from __future__ import annotations

import random

import pytest

from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.costs import COSTS, JOB_START_S, SNAKEMAKE_START_S
from scatlas.workflow.resources import Estimates
from scatlas.workflow.run_time import TimedJob, run_seconds, sentence, simulate

FIRST = SNAKEMAKE_START_S


def job(seconds: float, cores: int = 1, needs: tuple[int, ...] = (), **more: int) -> TimedJob:
    priority = more.pop("priority", 0)
    return TimedJob(seconds, {"cores": cores, **more}, needs, priority)


def test_jobs_without_room_wait():
    times = simulate([job(10), job(20), job(5)], {"cores": 2})
    assert times[0] == (FIRST, FIRST + 10)
    assert times[1][0] == pytest.approx(FIRST + JOB_START_S)
    assert times[2] == (FIRST + 10, FIRST + 15)
    assert run_seconds([], {"cores": 1}) == 0


def test_a_job_of_higher_priority_starts_first():
    jobs = [job(10), job(10), job(10), job(10, needs=(0,), priority=1)]
    starts = [start for start, _ in simulate(jobs, {"cores": 1})]
    assert sorted(range(4), key=starts.__getitem__) == [0, 3, 1, 2]


def test_a_small_job_passes_a_large_one_that_does_not_fit():
    jobs = [job(10, 3), job(10, 4), job(2, 1)]
    starts = [start for start, _ in simulate(jobs, {"cores": 4})]
    assert starts[2] < FIRST + 1 < FIRST + 10 <= starts[1]


def test_each_resource_limits_and_requests_above_a_limit_are_cut():
    jobs = [job(10, 4, gpu=1), job(10, 4, gpu=1), job(10, 99, gpu=5)]
    starts = [start for start, _ in simulate(jobs, {"cores": 16, "gpu": 1})]
    assert starts == [FIRST, FIRST + 10, FIRST + 20]
    starts = [start for start, _ in simulate(jobs, {"cores": 16})]
    assert starts[1] < FIRST + 1


def test_no_schedule_exceeds_a_limit_or_idles_without_reason():
    """Random jobs: at each start all running jobs fit, and nothing waits that would fit."""
    draw = random.Random(0)
    jobs = [
        job(
            draw.uniform(1, 20),
            draw.choice([1, 4, 8]),
            tuple(draw.sample(range(number), min(number, draw.choice([0, 0, 1, 2])))),
            gpu=draw.choice([0, 0, 1]),
            priority=draw.choice([0, 1]),
        )
        for number in range(60)
    ]
    limits = {"cores": 16, "gpu": 2}
    times = simulate(jobs, limits)
    for number, (start, end) in enumerate(times):
        assert end - start == pytest.approx(jobs[number].seconds)
        assert all(times[needed][1] <= start for needed in jobs[number].needs)
        running = [i for i, (a, b) in enumerate(times) if a <= start < b]
        for name, limit in limits.items():
            assert sum(jobs[i].requests[name] for i in running) <= limit
    busy = sum(jobs[i].requests["cores"] * jobs[i].seconds for i in range(60))
    assert run_seconds(jobs, limits) < 2 * busy / 16 + FIRST


@pytest.mark.parametrize(
    ("seconds", "cores", "n_gpus", "text"),
    [
        (3, 1, 0, "about 10 seconds on 1 core,"),
        (74, 2, 0, "about 70 seconds on 2 cores,"),
        (1610, 16, 1.0, "about 27 minutes on 16 cores and 1 GPU,"),
        (1610, 16, 0.5, "about 27 minutes on 16 cores and 0.5 GPUs,"),
        (9000, 32, 4.0, "about 2.5 hours on 32 cores and 4 GPUs,"),
    ],
)
def test_the_sentence_has_as_many_digits_as_are_known(seconds, cores, n_gpus, text):
    assert text in sentence(seconds, cores, n_gpus)


def test_every_rule_that_reads_counts_has_a_cost():
    assert all((COSTS[rule].gpus != "none") >= bool(COSTS[rule].gpu_time) for rule in COSTS)
    assert all(COSTS[rule].time.ns_per_value > 1 for rule in ("load", "hvg", "select_genes"))


# Measured runs ------------------------------------------------------------------------------------


PLATE_CHAIN = ("load", "qc_filter", "normalize", "hvg")
CORES = 2


def jobs_of(config: dict, n_plates: int, n_cells: int) -> list[TimedJob]:
    """Jobs of an atlas of equal plates with Tahoe's counts per cell."""
    plates = [Plate(plate=f"p{i}", path=f"{i}.h5ad", n_cells=n_cells) for i in range(n_plates)]
    estimates = Estimates(load(config), plates)
    jobs: list[TimedJob] = []

    def add(rule: str, plate: str | None, needs: list[int], threads: int | None = None) -> int:
        threads = min(threads or estimates.threads(rule, plate), CORES)
        seconds = estimates.seconds(rule, plate, threads)
        priority = int(rule in PLATE_CHAIN[1:])
        jobs.append(TimedJob(seconds, {"cores": threads}, needs, priority))
        return len(jobs) - 1

    genes = []
    for plate in plates:
        last: list[int] = []
        for rule in PLATE_CHAIN:
            last = [add(rule, plate.plate, last, 1 if rule == "qc_filter" else None)]
        genes += last
    last = [add("consensus", None, genes, 1)]
    selected = [add("select_genes", plate.plate, last) for plate in plates]
    last = [add("concat_on_disk", None, selected)]
    last = [add("pca", None, last)]
    for rule, threads in (("atlas", 1), ("subset", 1), ("neighbors", 4)):
        last = [add(rule, None, last, threads)]
    last = [add("umap", None, last, 4), add("leiden", None, last, 1)]
    last = [add("embedding", None, last, 1)]
    add("report", None, last, 1)
    return jobs


@pytest.mark.parametrize(
    ("n_plates", "n_cells", "n_comps", "n_sample", "measured"),
    [
        # bench/results/scaling-2026-11-23.txt, of which the map was twice as slow as it is now
        (1, 50_000, 300, 5000, 27.6),
        (1, 200_000, 300, 5000, 32.5),
        (1, 800_000, 300, 5000, 55.1),
        # bench/results/samples-2026-11-25.txt and samples-140-2026-11-25.txt: 3,000 cells with as
        # many values as 4,010 of Tahoe's
        (60, 4010, 50, 20_000, 61.9),
        (140, 4010, 50, 20_000, 136.7),
    ],
)
def test_the_expected_time_is_near_that_of_measured_runs(
    n_plates, n_cells, n_comps, n_sample, measured
):
    config = {
        "backend": "cpu", "pca": {"n_comps": n_comps}, "subset": {"n_cells": n_sample},
        "map": {"cells": "sample"}, "neighbors": {"n_pcs": n_comps},
    }  # fmt: skip
    jobs = jobs_of(config, n_plates, n_cells)
    assert run_seconds(jobs, {"cores": CORES}) == pytest.approx(measured, rel=0.25)


def test_hvg_of_a_plate_that_the_run_loads_reads_no_counts():
    def seconds(rule: str, loads: bool, **config) -> float:
        plates = [Plate(plate="p1", path="1.h5ad", n_cells=1_000_000)]
        return Estimates(load({"backend": "cpu"} | config), plates).seconds(rule, "p1", loads=loads)

    assert seconds("hvg", loads=True) == COSTS["hvg"].time.fixed_s
    saved = seconds("hvg", loads=False) - seconds("hvg", loads=True)
    assert 0 < seconds("load", loads=True) - seconds("load", loads=False) < saved
    assert seconds("select_genes", loads=True) == seconds("select_genes", loads=False)
    other = {"hvg": {"flavor": "seurat_v3"}}
    for rule in ("load", "hvg"):
        assert seconds(rule, loads=True, **other) == seconds(rule, loads=False, **other)


def test_the_expected_seconds_are_near_those_of_single_jobs_on_a_gpu():
    """11.4 million cells of one plate: bench/results/gpu-preset-2026-11-26.txt, averages;
    ``subset`` and ``embedding`` do other work since then, and the others were not measured again.
    """
    plates = [Plate(plate="p1", path="1.h5ad", n_cells=11_441_407)]
    config = {
        "backend": "gpu",
        "map": {"method": "full", "memory": "60GB"},
        "pca": {"n_comps": 100},
    }
    estimates = Estimates(load(config), plates, cores=16, jobs_per_gpu=2)
    measured = {"hvg": 9.3, "select_genes": 14.4, "neighbors": 34.0}
    measured |= {"umap": 33.3, "leiden": 44.6, "map": 7.0}
    for rule, seconds in measured.items():
        plate = "p1" if rule in ("hvg", "select_genes") else None
        expected = estimates.seconds(rule, plate, estimates.threads(rule, plate))
        assert expected == pytest.approx(seconds, rel=0.25), rule


def test_the_expected_seconds_are_near_those_of_jobs_with_eight_threads():
    """Two jobs at a time on 16 cores: bench/results/gpu-workflow-2026-11-25.txt, averages."""
    plates = [Plate(plate=f"p{i}", path=f"{i}.h5ad", n_cells=1_000_000) for i in range(6)]
    estimates = Estimates(load({"backend": "cpu"}), plates)
    for rule, measured in {"load": 10.7, "select_genes": 8.2}.items():
        assert estimates.seconds(rule, "p1", 8) == pytest.approx(measured, rel=0.25), rule
