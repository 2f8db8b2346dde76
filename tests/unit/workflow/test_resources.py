"""Resources that jobs request: estimated from the sizes of plates, without opening them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from threading import Semaphore, Timer

import anndata as ad
import pytest
from scipy import sparse
from snakemake.scheduling.job_scheduler import JobScheduler

from scatlas.workflow.config.loading import load
from scatlas.workflow.config.plate_sheet import Plate
from scatlas.workflow.costs import block_threads
from scatlas.workflow.resources import Estimates
from scatlas.workflow.run_time import JobRequest, resource_table
from scatlas.workflow.sizes import BYTES_PER_CELL, VALUES_PER_CELL, Size, plate_size

BUDGET = 256_000_000


@pytest.mark.filterwarnings("ignore:.*zarr v[23]:UserWarning", "ignore:Consolidated:UserWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_says_its_shape(tmp_path: Path, zarr_format: int):
    x = sparse.random(30, 20, density=0.3, format="csr", random_state=0)
    with ad.settings.override(zarr_write_format=zarr_format):
        ad.AnnData(x).write_zarr(tmp_path / "sparse.zarr")
        ad.AnnData(x.toarray()).write_zarr(tmp_path / "dense.zarr")
    assert plate_size(Plate(plate="p", path=str(tmp_path / "sparse.zarr"))) == Size(30, x.nnz)
    assert plate_size(Plate(plate="p", path=str(tmp_path / "dense.zarr"))) == Size(30, 600)


def test_a_file_is_taken_to_hold_cells_like_tahoes(tmp_path: Path):
    path = tmp_path / "p.h5ad"
    path.write_bytes(bytes(10 * BYTES_PER_CELL))
    assert plate_size(Plate(plate="p", path=str(path))) == Size(10, 10 * VALUES_PER_CELL)
    told = Plate(plate="p", path=str(path), n_cells=7)
    assert plate_size(told) == Size(7, 7 * VALUES_PER_CELL)


def test_an_address_and_a_damaged_store_have_a_size(tmp_path: Path):
    (tmp_path / "X").mkdir()
    (tmp_path / "X" / "zarr.json").write_text("{")
    for path in ("s3://bucket/p.zarr", str(tmp_path)):
        assert plate_size(Plate(plate="p", path=path)).cells > 1_000_000
        assert plate_size(Plate(plate="p", path=path, n_cells=5)).cells == 5


@pytest.mark.parametrize(
    ("budget", "values", "gpu", "threads"),
    [
        (BUDGET, 1e12, False, 4),
        (BUDGET, 1e9, False, 4),
        (BUDGET, 1e9, True, 8),
        (BUDGET, 100, False, 2),  # one block
        (BUDGET, 9e6, False, 3),  # 72 MB in blocks of 32 MB
        (16_000_000, 1e9, False, 4),
        (544_000_000, 1e9, False, 16),  # docs/memory.md
        (544_000_000, 1e6, False, 2),
        (None, 1e9, False, 16),
        (None, 1e9, True, 8),
        (None, 9e6, False, 3),
    ],
)
def test_threads_follow_from_blocks(budget: int, values: float | None, gpu: bool, threads: int):
    assert block_threads(budget, values, gpu=gpu) == threads


@pytest.mark.parametrize(
    ("config", "jobs_per_gpu", "threads"),
    [
        ({"backend": "cpu"}, 1, 4),  # four of them fill 16 cores
        ({"backend": "gpu"}, 2, 4),
        ({"backend": "gpu"}, 1, 8),  # the GPU's only job, on a cluster
        ({"backend": "cpu", "compute": {"block_budget": "544MB"}}, 1, 16),  # as many as it asks for
    ],
)
def test_jobs_of_several_plates_share_the_cores(config: dict, jobs_per_gpu: int, threads: int):
    plates = [Plate(plate=name, path=f"{name}.h5ad", n_cells=1_000_000) for name in "ab"]
    estimates = Estimates(load(config), plates, jobs_per_gpu=jobs_per_gpu)
    assert estimates.threads("hvg", "a") == threads
    alone = Estimates(load(config), plates[:1], jobs_per_gpu=jobs_per_gpu)
    assert alone.threads("load", "a") == 16


@pytest.mark.parametrize(
    ("n_plates", "cores", "threads"),
    [
        (6, 16, 5),  # two rounds of three, not of four and two
        (2, 16, 6),
        (12, 16, 4),
        (14, 16, 4),
        (3, 2, 4),  # Snakemake gives it the two there are
        (300, 64, 4),
        (6, None, 4),  # each job has its own machine
    ],
)
def test_plates_side_by_side_are_done_in_few_rounds(n_plates: int, cores: int, threads: int):
    plates = [Plate(plate=f"p{i}", path="x.h5ad", n_cells=1_000_000) for i in range(n_plates)]
    estimates = Estimates(load({"backend": "cpu"}), plates, cores=cores)
    assert estimates.threads("load", "p0") == threads
    # GPU jobs run beside others that load plates; these are done before `select_genes`.
    shared = Estimates(load({"backend": "gpu"}), plates, jobs_per_gpu=4, cores=cores)
    assert shared.threads("hvg", "p0") == 4
    # A copy by gene that ends makes room for the next step to the map.
    copying = shared.threads("by_gene", "p0")
    assert shared.threads("pca") == (8 if cores is None else copying)
    assert estimates.threads("map") == (16 if cores is None else min(copying, 16))
    own = Estimates(load({"backend": "gpu", "by_gene": False}), plates, jobs_per_gpu=4, cores=cores)
    assert own.threads("pca") == (8 if cores is None else 16)


@pytest.mark.parametrize(
    ("n_plates", "cores", "n_gpus", "jobs_per_gpu", "threads"),
    [
        (6, 16, 1, 4, 5),  # two rounds of three
        (300, 16, 1, 4, 4),
        (2, 16, 1, 4, 8),
        (6, 16, 1, 2, 8),  # the parts of the GPU are fewer than the cores would serve
        (6, 16, 1, 1, 16),  # the only job
        (300, 8, 1, 4, 2),  # their starts take as long as their decoding
        (300, 2, 1, 4, 2),
        (300, 64, 1, 4, 8),
        (300, 64, 4, 4, 4),
        (6, None, 1, 4, 4),
    ],
)
def test_decoding_decides_how_many_plates_the_gpus_select_at_once(
    n_plates: int, cores: int, n_gpus: int, jobs_per_gpu: int, threads: int
):
    plates = [Plate(plate=f"p{i}", path="x.h5ad", n_cells=1_000_000) for i in range(n_plates)]
    given = {"jobs_per_gpu": jobs_per_gpu, "cores": cores, "n_gpus": n_gpus}
    estimates = Estimates(load({"backend": "gpu"}), plates, **given)
    assert estimates.threads("select_genes", "p0") == threads


def test_small_plates_that_are_neighbours_share_a_job():
    """An eighth of all plates at most, with 1e8 values together; a large plate has its own."""
    sizes = {f"p{i}": 1000 for i in range(17)} | {"p4": 10**9, "p8": 60_000, "p9": 10_000}
    plates = [Plate(plate=name, path="a.h5ad", n_cells=n) for name, n in sizes.items()]
    found = Estimates(load({}), plates)
    batches: dict[str, list[str]] = {}
    for name, first in found.first_of_batch.items():
        batches.setdefault(first, []).append(name)
    ends = [(0, 2), (3, 3), (4, 4), (5, 7), (8, 8), (9, 11), (12, 14), (15, 16)]
    assert [*batches.values()] == [[f"p{i}" for i in range(a, b + 1)] for a, b in ends]
    assert found.batch_size("p0") == Size(3000, 3000 * VALUES_PER_CELL)
    alone = Estimates(load({}), plates[:8]).first_of_batch
    assert all(name == first for name, first in alone.items())


def test_clusters_by_igraph_leave_the_gpu_to_others():
    plates = [Plate(plate="a", path="a.h5ad", n_cells=3_000_000)]
    config = {"backend": "gpu", "subset": {"n_cells": 1_000_000}}
    assert Estimates(load(config), plates).gpus("leiden") == 0
    assert Estimates(load(config), plates).gpus("umap") == 1
    config["subset"] = {"n_cells": 1_000_001}
    assert Estimates(load(config), plates).gpus("leiden") == 1


# Of three plates with 10,000,000, 1,000 and 10,000,000 cells, by config and rule: threads, MB of
# memory, minutes, MB of disk and GPUs. Rules of a plate: those of the first.
REQUESTS = {
    "default": {
        "split": (16, 9076, 27, 232171, 0),
        "load": (4, 4924, 45, 27569, 0),
        "qc_filter": (1, 4924, 11, 0, 0),
        "normalize": (1, 4924, 10, 0, 0),
        "hvg": (4, 4924, 15, 0, 0),
        "select_genes": (4, 5428, 19, 7980, 0),
        "concat_on_disk": (16, 3964, 16, 15961, 0),
        "pca": (16, 3964, 13, 24001, 0),
        "atlas": (1, 2812, 16, 0, 0),
        "subset": (16, 8000, 10, 0, 0),
        "neighbors": (16, 35076, 290, 0, 0),
        "umap": (8, 34052, 290, 0, 0),
        "leiden": (8, 34052, 290, 0, 0),
        "embedding": (8, 34052, 290, 0, 0),
        "report": (8, 35252, 290, 0, 0),
        "consensus": (1, 900, None, 0, 0),
        "simulate": (1, 900, None, 0, 0),
        "map": (16, 35576, 30, 360, 0),
        "cell_groups": (1, 2524, 14, 0, 0),
        "group_sums": (4, 5884, 34, 0, 0),
        "markers": (1, 2884, 10, 0, 0),
        "explore": (4, 4223, 33, 0, 0),
        "by_gene": (4, 4924, 40, 94315, 0),
        "merge_by_gene": (1, 1809, 10, 503, 0),
        "publish": (1, 900, 210, 0, 0),
    },
    "two GPUs, a large budget, integration of the sample": {
        "load": (38, 8924, 13, 27569, 0),
        "doublets": (38, 13052, 56, 0, 0),
        "hvg": (8, 14924, 12, 0, 2),
        "select_genes": (8, 15716, 14, 7980, 2),
        "pseudobulk": (38, 13924, 10, 0, 0),
        "merge_pseudobulk": (4, 5924, 16, 0, 0),
        "pca": (8, 12812, 16, 24001, 2),
        "subset": (16, 8080, 10, 0, 0),
        "neighbors": (8, 40924, 290, 0, 1),
        "integrate": (4, 47632, 334, 0, 1),
        "map": (16, 41424, 13, 360, 1),
        "publish": (1, 900, 210, 0, 0),
    },
    "all cells, no rare genes, many variable genes": {
        "normalize": (4, 4924, 15, 0, 0),
        "doublets": (4, 10076, 450, 0, 0),
        "hvg": (4, 4924, 15, 0, 0),
        "select_genes": (4, 12988, 19, 7980, 0),
        "concat_on_disk": (16, 8284, 16, 15961, 0),
        "pca": (16, 8284, 46, 4000, 0),
        "harmony": (16, 3757, 14, 4800, 0),
        "subset": (16, 9380, 10, 0, 0),
        "umap": (8, 174060, 2015, 0, 0),
        "integrate": (4, 173932, 2015, 0, 0),
        "group_sums": (4, 5884, 58, 0, 0),
        "markers": (1, 174892, 2025, 0, 0),
        "explore": (4, 12844, 55, 0, 0),
    },
}
CONFIGS = {
    "default": {"backend": "cpu"},
    "two GPUs, a large budget, integration of the sample": {
        "backend": "gpu",
        "compute": {"block_budget": "1256MB", "cluster": {"devices": 2}},
        "subset": {"by": ["plate"]},
        "doublets": {},
        "pseudobulk": {},
        "integrate": {"use": False},
    },
    "all cells, no rare genes, many variable genes": {
        "backend": "cpu",
        "qc": {"drop_rare_genes": 5},
        "hvg": {"n_top_genes": 6000},
        "consensus": {"min_plates": 1},
        "pca": {"n_comps": 50},
        "map": {"method": "full", "memory": "1000GB"},
        "doublets": {"filter": True},
        "pseudobulk": {},
        "integrate": {"n_pcs": 20},
        "markers": {"by": ["leiden", "plate"], "wilcoxon": True},
    },
}
PLATES = [
    Plate(plate=name, path=f"{name}.h5ad", n_cells=n_cells)
    for name, n_cells in {"first": 10_000_000, "small": 1000, "third": 10_000_000}.items()
]
PLATE_RULES = {"load", "qc_filter", "normalize", "doublets", "hvg", "select_genes", "pseudobulk"}
PLATE_RULES |= {"by_gene", "group_sums"}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_requests_of_each_rule(name: str):
    estimates = Estimates(load(CONFIGS[name]), PLATES)
    for rule, (threads, mem_mb, runtime, disk_mb, gpus) in REQUESTS[name].items():
        plate = "first" if rule in PLATE_RULES else None
        assert estimates.threads(rule, plate) == threads, rule
        assert estimates.memory(rule, plate, threads) == mem_mb, rule
        if runtime is not None:
            assert estimates.runtime(rule, plate, threads) == runtime, rule
        assert estimates.disk(rule, plate) == disk_mb, rule
        assert estimates.gpus(rule) == gpus, rule


def test_the_map_of_few_cells_takes_few_threads():
    estimates = Estimates(load({"backend": "cpu"} | {"subset": {"n_cells": 100_000}}), PLATES)
    assert [estimates.threads(rule) for rule in ("umap", "leiden", "embedding")] == [4, 1, 1]


def test_the_file_of_all_cells_is_written_in_parts():
    estimates = Estimates(load({"map": {"method": "full", "memory": "1000GB"}}), PLATES)
    assert estimates.memory("embedding") < estimates.memory("umap") / 10


def test_a_small_plate_requests_less():
    estimates = Estimates(load({"backend": "cpu"}), PLATES)
    assert estimates.threads("load", "small") == 1
    assert Estimates(load({}), PLATES[1:2]).threads("explore") == 1
    assert estimates.threads("normalize", "small") == 1
    assert estimates.memory("load", "small", 2) == 1924
    assert estimates.memory("select_genes", "small", 2) == 1930
    assert estimates.runtime("load", "small", 2) == 3
    assert estimates.disk("load", "small") == 2


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        ({"backend": "cpu"}, (0, 0)),
        ({"backend": "gpu"}, (1, 1)),
        ({"backend": "auto"}, (0, 0)),  # without CuPy
        ({"backend": "gpu", "compute": {"cluster": {"devices": 3}}}, (3, 1)),
        ({"backend": "auto", "compute": {"cluster": {"kind": "local-cpu"}}}, (0, 0)),
    ],
)
def test_gpus_follow_from_backend_and_cluster(config, gpus, monkeypatch):
    monkeypatch.setattr("scatlas.workflow.resources.find_spec", lambda name: None)
    estimates = Estimates(load(config), PLATES)
    assert (estimates.gpus("hvg"), estimates.gpus("umap")) == gpus
    assert estimates.gpus("load") == 0
    monkeypatch.setattr("scatlas.workflow.resources.find_spec", lambda name: name)
    assert Estimates(load({"backend": "auto"}), PLATES).gpus("pca") == 1


@pytest.mark.parametrize(
    ("config", "gpu_bytes", "parts"),
    [
        ({"backend": "cpu"}, 80e9, {"hvg": 0, "umap": 0, "load": 0}),
        ({"backend": "gpu"}, None, {"hvg": 1, "select_genes": 1, "umap": 2, "load": 0}),
        # 2,760,000 cells with 300 components take 12.6 GB, beside 4 GB of any step.
        ({"backend": "gpu"}, 80e9, {"hvg": 1, "select_genes": 1, "pca": 2, "umap": 2}),
        ({"backend": "gpu"}, 24e9, {"hvg": 1, "select_genes": 1, "neighbors": 4, "map": 4}),
        ({"backend": "gpu", "compute": {"jobs_per_gpu": 2}}, 80e9, {"hvg": 1, "umap": 1}),
        ({"backend": "gpu"}, 16e9, {"hvg": 2, "umap": 4}),
        ({"backend": "gpu", "compute": {"cluster": {"devices": 3}}}, 80e9, {"hvg": 12, "umap": 4}),
    ],
)
def test_parts_of_a_gpu_follow_from_its_memory(config, gpu_bytes, parts):
    read = load(config)
    estimates = Estimates(read, PLATES, jobs_per_gpu=read.compute.jobs_per_gpu, gpu_bytes=gpu_bytes)
    plates = {rule: "first" if rule in ("hvg", "select_genes", "load") else None for rule in parts}
    assert {rule: estimates.gpu_parts(rule, plate, 4) for rule, plate in plates.items()} == parts


def test_a_job_that_failed_gets_more_of_a_gpu_and_not_more_gpus():
    estimates = Estimates(load({"backend": "gpu"}), PLATES, jobs_per_gpu=3)
    parts = [estimates.gpu_parts("pca", None, 8, attempt) for attempt in (1, 2, 3, 4)]
    assert parts == [1, 2, 3, 3]
    whole = Estimates(load({"backend": "gpu"}), PLATES)  # as on a cluster
    assert [whole.gpu_parts("pca", None, 8, attempt) for attempt in (1, 3)] == [1, 1]


def test_plates_of_the_demo_have_a_size_before_they_exist():
    plate = Plate(plate="p", path="resources/demo/plate1.h5ad")
    assert plate.is_simulated
    assert plate_size(plate) == Size(2000, 6_000_000)
    assert not PLATES[0].is_simulated


def test_the_plan_adds_up():
    requests = [
        JobRequest("load", 4, 2000, 30, disk_mb=1500),
        JobRequest("load", 2, 3000, 60, disk_mb=500),
        JobRequest("hvg", 8, 5000, 90, gpu=2),
    ]
    lines = resource_table(requests).splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[3:]}
    assert list(rows) == ["load", "hvg", "all"]
    assert rows["load"] == ["2", "4", "0", "3.0", "1.5", "0.0", "2.0"]
    assert rows["hvg"] == ["1", "8", "2", "5.0", "1.5", "3.0", "0.0"]
    assert rows["all"] == ["3", "8", "2", "5.0", "3.0", "3.0", "2.0"]
    assert len({len(line) for line in lines[2:]}) == 1, "a table"
    nothing = resource_table([]).splitlines()[-1]
    assert nothing.split() == ["all", *["0"] * 3, *["0.0"] * 4]


def test_new_plates_request_what_the_reference_and_their_cells_need(tmp_path: Path):
    """The atlas's shape is in its metadata; its cells decide for the reference, up to a sample."""
    for name, shape in (("X/data", 3e9), ("X/indptr", 20_000_001)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "zarr.json").write_text(json.dumps({"shape": [int(shape)]}))
    config = load({"atlas": str(tmp_path), "backend": "cpu", "pca": {"n_comps": 50}})
    estimates = Estimates(config, PLATES)
    assert estimates.finished_atlas.cells == 20_000_000
    assert estimates.reference_cells == 200_000
    small, large = (estimates.memory("map_plate", plate, 4) for plate in ("small", "first"))
    assert 1900 < small < large
    for rule in ("reference", "map_report"):
        assert 1500 < estimates.memory(rule, None, 4) < 10_000
    assert estimates.runtime("map_plate", "first", 4) > estimates.runtime("map_plate", "small", 4)
    assert estimates.disk("extend") > estimates.disk("map_plate", "first") > 1000
    for rule in ("reference", "map_plate", "map_report", "extend"):
        assert estimates.gpus(rule) == 0
        assert estimates.runtime(rule, "first" if rule == "map_plate" else None, 4) >= 3


@pytest.mark.parametrize(
    ("cores", "threads", "without"), [(None, 1, 1), (2, 1, 2), (4, 3, 4), (16, 4, 4)]
)
def test_figures_leave_a_core_to_the_page(cores: int | None, threads: int, without: int):
    plates = [Plate(plate="a", path="x.h5ad", n_cells=5000)]
    for page, expected in ((True, threads), (False, without)):
        config = load({"explore": {"page": page}})
        assert Estimates(config, plates, cores=cores).threads("report") == expected


def test_one_timer_at_a_time_lets_snakemake_look_for_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own ones add up (findings/snakemake_looks_add_up.sh)."""
    rules = ast.parse((Path(__file__).parents[3] / "workflow/rules/resources.smk").read_text())
    patch = ("look_again", "JobScheduler._schedule_reevalutation = look_again")
    rules.body = [x for x in rules.body if {getattr(x, "name", ""), ast.unparse(x)} & {*patch}]
    own = JobScheduler._schedule_reevalutation
    monkeypatch.setattr(JobScheduler, "_schedule_reevalutation", own)  # put back at the end
    exec(compile(rules, "resources.smk", "exec"), {"JobScheduler": JobScheduler, "Timer": Timer})
    scheduler = JobScheduler.__new__(JobScheduler)
    scheduler._open_jobs = Semaphore(0)
    for _ in range(2):
        for _ in range(50):
            scheduler._schedule_reevalutation(0.2)
        assert scheduler._open_jobs.acquire(timeout=60)
        assert not scheduler._open_jobs.acquire(timeout=0.4)
