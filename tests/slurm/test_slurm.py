"""``snakemake --profile slurm`` on a real Slurm: one atlas, with failures of its jobs.

An atlas of two plates, up to its components, is built once, with the committed profile and as for a
user, while a node is lost, a job is cancelled, one has too little memory, the controller restarts,
and Snakemake itself is killed and started again. The tests check the records of Slurm and the
results. There is no GPU: the GPU steps request one (``--set-resources``), get it from Slurm, and
fall back to the CPU. Where small plates share jobs, all steps run on Slurm. The jobs of the other
tests start from a process that has imported the libraries.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from scatlas.workflow.run_lock import RUN_FILE
from tests.slurm import cluster as slurm
from tests.workflow import warm
from tests.workflow.conftest import EACH
from tests.workflow.runs import ROOT, Project, assert_same_outputs

pytestmark = [pytest.mark.workflow, pytest.mark.slurm]

GPU_RULES = ("hvg", "select_genes", "pca")
# Too little memory for a step with its two Snakemakes.
TOO_LITTLE_MB = 100
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"}
SNAKEMAKE = (sys.executable, str(Path(__file__).with_name("head.py")))
PATIENCE = 300  # seconds; a shared machine may be slow


def warm_jobs() -> dict[str, str]:
    """Variables that start the jobs in processes with imported libraries."""
    return {"PYTHON_OF_JOBS": warm.python()}


@dataclass
class Job:
    """Slurm's record of one job."""

    id: str
    rule: str
    plate: str
    state: str
    node: str
    partition: str
    memory: str


def jobs() -> dict[str, Job]:
    """All jobs by id; none while the controller is down."""
    ask = ("squeue", "-a", "-h", "--states=all", "-o", "%i|%k|%T|%N|%P|%m")
    found = {}
    for line in slurm.command(*ask, check=False).split("\n"):
        if line.count("|") == 5:
            number, comment, *rest = line.split("|")
            rule, _, plate = comment.removeprefix("rule_").partition("_wildcards_")
            found[number] = Job(number, rule, plate, *rest)
    return found


def of_rule(rule: str) -> list[Job]:
    return [job for job in jobs().values() if job.rule == rule]


def running(rule: str, node: str = "") -> list[Job]:
    return [j for j in of_rule(rule) if j.state == "RUNNING" and j.node.startswith(node)]


def tasks() -> dict[str, list[tuple[str, str]]]:
    """Node and CUDA_VISIBLE_DEVICES of each job, in its script and then in its step."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in slurm.TASKS.read_text().splitlines():
        number, node, devices = line.split()
        found.setdefault(number, []).append((node, devices))
    return found


def at_work(rule: str, attempt: int) -> bool:
    """Whether a job of a rule runs its step, so that Slurm is not starting it.

    An ``srun`` that requests its step within seconds of the controller's start may wait for ever
    (Slurm 22.05); the job's time limit would end it too late for a test.
    """
    jobs_ = sorted(of_rule(rule), key=by_id)
    return (
        len(jobs_) == attempt
        and jobs_[-1].state == "RUNNING"
        and len(tasks().get(jobs_[-1].id, [])) > 1
    )


def by_id(job: Job) -> int:
    return int(job.id)


@dataclass
class Head:
    """Snakemake on the login node."""

    project: Project
    process: subprocess.Popen | None = None
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *options: str, target: str = "atlas", path: str = "/usr/bin") -> None:
        asks = [f"{rule}:gpu=1" for rule in GPU_RULES]
        asks += [f"concat_on_disk:mem_mb={TOO_LITTLE_MB}*attempt**3"]
        with (self.project.folder / "head.log").open("a") as log:
            self.process = subprocess.Popen(
                [
                    *(*SNAKEMAKE, target, "--profile", "slurm", "--nocolor"),
                    *("--snakefile", str(ROOT / "Snakefile"), "--configfile", "my.yaml"),
                    # A job per step, as of large plates.
                    *("--group-components", "small_plates=1"),
                    # So that two plates need both nodes for CPUs.
                    *("--set-threads", "load=4"),
                    *("--set-resources", *asks, *options),
                ],
                cwd=self.project.folder, stdout=log, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, start_new_session=True,
                env=os.environ | self.env | {"PATH": f"{path}:{os.environ['PATH']}"},
            )  # fmt: skip

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def interrupt(self) -> None:
        """Ctrl-C; if the run does not end, the log says where each thread is."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            raise AssertionError(f"it does not end: {self.said()}") from None

    def until(self, what: str, done: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert self.process.poll() is None, f"ended before {what}: {self.said()}"
            assert time.monotonic() < end, f"no {what}: {self.said()}"
            time.sleep(0.2)

    def finish(self) -> None:
        """Wait for the end of Snakemake, as long as its log grows."""
        log, begin = self.project.folder / "head.log", time.time()
        while self.process.poll() is None:
            silence = time.time() - max(begin, log.stat().st_mtime)
            assert silence < PATIENCE, f"nothing new for {PATIENCE} s: {self.said()}"
            time.sleep(0.2)
        assert self.process.returncode == 0, self.said()

    def said(self) -> str:
        queue = "\n".join(f"{job}" for job in jobs().values() if job.state not in ENDED)
        return f"{(self.project.folder / 'head.log').read_text()[-6000:]}\nIn the queue:\n{queue}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    why = slurm.lacking()
    if why is None and find_spec("snakemake_executor_plugin_slurm") is None:
        why = "snakemake-executor-plugin-slurm is not installed (scatlas[slurm])"
    if why and os.environ.get("SCATLAS_REQUIRE_SLURM"):
        pytest.fail(f"SCATLAS_REQUIRE_SLURM is set, but {why}")
    if why:
        pytest.skip(why)
    slurm.down()
    slurm.up()
    yield
    slurm.down()


@dataclass
class Story:
    """One atlas and the events of its run."""

    project: Project
    head: Head
    lost: str = ""
    cancelled: str = ""
    records: dict[str, int] = field(default_factory=dict)
    in_flight: set[tuple[str, str]] = field(default_factory=set)
    jobs: dict[str, Job] = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(cluster: None, tmp_path_factory: pytest.TempPathFactory, two: Project) -> Iterator[Story]:
    project = Project(tmp_path_factory.mktemp("slurm"), dict(two.config))
    (project.folder / "plates.tsv").symlink_to(two.folder / "plates.tsv")
    # As in a checkout, with the link next to the Snakefile.
    (project.folder / "slurm").symlink_to(ROOT / "slurm")
    head = Head(project)
    story = Story(project, head)
    head.start()
    try:
        head.until("load on cpu2", lambda: running("load", "cpu2") and running("load", "cpu1"))
        story.lost, story.cancelled = (running("load", node)[0].id for node in ("cpu2", "cpu1"))
        slurm.lose_node("cpu2")
        slurm.command("scancel", story.cancelled)
        head.until("new jobs", lambda: len([job for job in of_rule("load") if job.node]) == 4)
        slurm.start_node("cpu2")
        head.until("select_genes", lambda: running("select_genes"))
        story.records = project.records()
        head.kill()
        story.in_flight = {(j.rule, j.plate) for j in jobs().values() if j.state not in ENDED}
        slurm.wait_for(
            "what ran is done",
            lambda: all(job.state in ENDED for job in jobs().values()),
            PATIENCE,
        )
        head.start()
        head.until("concat_on_disk, again", lambda: at_work("concat_on_disk", attempt=2))
        slurm.restart_controller()
        head.finish()
        story.jobs = jobs()
        yield story
    finally:
        if head.process.poll() is None:
            head.kill()
        for job in jobs().values():
            if job.state not in ENDED:
                slurm.command("scancel", job.id, check=False)


def test_the_atlas_has_the_bytes_of_a_local_run(story: Story, two: Project):
    assert_same_outputs(story.project.outputs(), two.outputs())


def test_snakemakes_report_tells_of_the_slurm_run(story: Story, tmp_path: Path):
    page = tmp_path / "report.html"
    options = ("--snakefile", str(ROOT / "Snakefile"), "--configfile", "my.yaml", "--nocolor")
    command = [warm.python(), "-m", "snakemake", "atlas", "--profile", "slurm", *options]
    done = subprocess.run(
        [*command, "--report", page],
        cwd=story.project.folder, text=True, check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    text = page.read_text()
    rules = {name.partition("/")[0] for name in story.project.records()}
    assert {rule for rule in rules if f'"{rule}"' not in text} == set(), "run times of each rule"


def test_plates_are_worked_on_side_by_side_on_several_nodes(story: Story):
    assert {job.node for job in story.jobs.values() if job.rule == "load"} >= {"cpu1", "cpu2"}


def test_gpus_are_asked_for_where_they_are_used_and_nowhere_else(story: Story):
    seen = tasks()
    for job in story.jobs.values():
        if job.state != "COMPLETED":
            continue
        node, devices = seen[job.id][-1]
        if job.rule in GPU_RULES:
            assert (job.partition, node) == ("gpu", "gpu1")
            assert devices in ("0", "1"), "one of the two"
        else:
            assert (job.partition, node[:3], devices) == ("cpu", "cpu", "none")
    # They start together, after the consensus.
    cut = [job.id for job in story.jobs.values() if job.rule == "select_genes"]
    assert {seen[number][-1][1] for number in cut} == {"0", "1"}


def test_a_lost_node_and_a_cancelled_job_are_made_up_for(story: Story):
    for number, state in ((story.lost, "NODE_FAIL"), (story.cancelled, "CANCELLED")):
        job = story.jobs[number]
        assert job.state == state
        again = [
            other
            for other in story.jobs.values()
            if (other.rule, other.plate) == ("load", job.plate) and other.id != number
        ]
        assert [other.state for other in again] == ["COMPLETED"]
        assert again[0].node == "cpu1", "the node that was left"


def test_a_job_that_had_too_little_memory_is_tried_with_more(story: Story):
    tries = sorted((job for job in story.jobs.values() if job.rule == "concat_on_disk"), key=by_id)
    assert [job.memory for job in tries] == [f"{TOO_LITTLE_MB}M", f"{8 * TOO_LITTLE_MB}M"]
    # Without control groups Slurm 22.05 calls it FAILED.
    assert tries[0].state in ("FAILED", "OUT_OF_MEMORY")
    assert tries[1].state == "COMPLETED"


def test_nothing_is_lost_or_done_twice_when_snakemake_is_killed(story: Story):
    assert story.records, "a premise"
    now = story.project.records()
    assert {name: now.get(name) for name in story.records} == story.records
    done = Counter((j.rule, j.plate) for j in story.jobs.values() if j.state == "COMPLETED")
    # Slurm does not record the plate of a group of qc_filter and normalize.
    assert {
        times for (rule, plate), times in done.items() if plate or "_normalize_" not in rule
    } == {1}
    assert [times for (rule, _), times in done.items() if "_normalize_" in rule] == [2]
    # Slurm's jobs continue without Snakemake.
    assert {rule for rule, _ in story.in_flight} == {"select_genes"}


def test_short_steps_share_a_job(story: Story):
    rules = Counter(job.rule for job in story.jobs.values())
    assert not {"qc_filter", "normalize"} & set(rules)
    assert {"qc_filter/p1", "normalize/p1"} <= set(story.project.records())


def test_steps_of_small_plates_share_jobs(cluster: None, two: Project, tmp_path: Path):
    """Seven jobs of Slurm in place of 24: two plates, and no step that the next test covers."""
    local = two.copied(tmp_path / "local")
    local.config["by_gene"] = False
    local.write_config()
    local.build()
    project = Project(tmp_path / "slurm", local.config)
    (project.folder / "plates.tsv").symlink_to(local.folder / "plates.tsv")
    (project.folder / "slurm").symlink_to(ROOT / "slurm")
    before = set(jobs())
    command = [*SNAKEMAKE, "--profile", "slurm", "--nocolor"]
    command += ["--snakefile", str(ROOT / "Snakefile"), "--configfile", "my.yaml"]
    options = {"cwd": project.folder, "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    options["env"] = os.environ | warm_jobs()
    for _ in range(3):  # Snakemake may end early, and the workflow then asks for the same again
        done = subprocess.run(command, **options, text=True, check=False)
        if "Snakemake ended with" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr

    def new_jobs() -> list[str]:
        return [job.rule for number, job in jobs().items() if number not in before]

    # A busy controller answers nothing for a while.
    slurm.wait_for("the records of seven jobs", lambda: len(new_jobs()) >= 7, PATIENCE)
    new = set(new_jobs())
    groups = {
        "small_plates": "load",
        "small_plates_selected": "select_genes",
        "small_atlas": "atlas",
        "small_plates_markers": "group_sums",
        "small_report": "report",
    }
    for name, rule in groups.items():
        found = [job for job in new if job.startswith(f"{name}_") and rule in job]
        assert len(found) == 1, f"{name} with {rule}: {sorted(new)}"
    assert len(new) == len(new_jobs()) == 7
    assert {"consensus", "cell_groups"} <= new
    assert_same_outputs(project.outputs(), local.outputs())


def test_each_step_of_a_small_atlas_has_a_group():
    rules = "\n".join(path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk"))
    groups = {}
    for part in re.split(r"^(?:rule|checkpoint) ", rules, flags=re.MULTILINE)[1:]:
        if '"small_atlas")' in part:
            group = re.search(r"^    group:\n +(\w+)$", part, re.MULTILINE)
            groups[part.partition(":")[0]] = group and group[1]
    assert {"atlas", "subset", "merge_by_gene", "embedding", "map"} <= set(groups)
    last = {"markers", "report", "edistance", "effects"}
    assert {rule for rule in groups if groups[rule] == "small_report"} == last
    assert set(groups.values()) == {"small_atlas", "small_report"}, groups


@pytest.fixture
def small(cluster: None, plates: dict[str, Path], tmp_path: Path) -> Iterator[Head]:
    """A run of two plates, which a test ends."""
    project = Project(tmp_path, EACH | {"qc": {"min_genes": 5}})
    project.write_plates({name: plates[name] for name in ("p1", "p2")})
    (project.folder / "slurm").symlink_to(ROOT / "slurm")
    head, before = Head(project, env=warm_jobs()), set(jobs())
    yield head
    if head.process.poll() is None:
        head.kill()
    slurm.command("scancel", *(set(jobs()) - before), check=False)


def test_a_config_that_is_edited_while_jobs_wait_is_that_of_the_next_run(small: Head):
    before, project = len(of_rule("load")), small.project
    filtered = "results/manifests/qc_filter/p1.json"
    small.start(target=filtered)
    small.until("load", lambda: len(of_rule("load")) > before)
    project.config["qc"] = {"min_genes": 33}
    project.write_config()
    small.finish()
    assert json.loads((project.folder / filtered).read_text())["thresholds"]["min_genes"] == 5


def test_no_run_starts_beside_jobs_and_ctrl_c_leaves_none(small: Head, tmp_path: Path):
    first = {job.id for job in of_rule("load")}
    on_hold, target = "load:slurm_extra='--hold'", "results/manifests/consensus.json"

    def new() -> list[Job]:
        return [job for job in of_rule("load") if job.id not in first]

    small.start(on_hold, target=target)
    small.until("two jobs", lambda: len(new()) == 2)
    small.kill()
    small.start(on_hold, target=target)
    assert small.process.wait(PATIENCE) == 1
    command = re.search(r"give (scancel --name=\S+) to end them", small.said())[1]
    assert [job.state for job in new()] == ["PENDING", "PENDING"]
    slurm.command(*command.split())
    # On a busy cluster: Ctrl-C comes while the second job is submitted.
    slow = tmp_path / "bin/sbatch"
    slow.parent.mkdir()
    slow.write_text('#!/bin/sh\n/usr/bin/sbatch "$@"\nexec sleep 2\n')
    slow.chmod(0o755)
    small.start(on_hold, target=target, path=str(slow.parent))
    small.until("the first job", lambda: len(new()) > 2)
    small.interrupt()
    assert small.process.returncode == 1, small.said()
    assert {job.state for job in new()} == {"CANCELLED"}, small.said()
    assert not (small.project.results / RUN_FILE).exists()


def test_a_rule_runs_on_dask_workers_of_several_nodes(story: Story, two: Project):
    """Workers are separate Slurm jobs; the rule finds them by the scheduler's file."""
    project = story.project
    file = project.folder / "scheduler.json"
    dask = f"{sys.executable} -m dask"
    common = f"--scheduler-file {file} --host 127.0.0.1 --no-dashboard"
    wanted = [("cpu1", f"{dask} scheduler {common} --port 0")]
    wanted += [(node, f"{dask} worker {common} --nthreads 1") for node in ("cpu1", "cpu2")]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    slurm.start_node("cpu2")
    submitted = []
    for node, line in wanted:
        done = subprocess.run(
            [
                *("sbatch", "--parsable", "-w", node, "-c1", "--mem=1500", "-t10"),
                # Paths of results are relative to Snakemake's folder.
                *("-D", str(project.folder)),
                *("-o", str(project.folder / f"dask-{len(submitted)}.log"), "--wrap", line),
            ],
            env=env, text=True, check=True, capture_output=True,
        )  # fmt: skip
        submitted.append(done.stdout.strip())
        slurm.wait_for("the scheduler's file", file.exists, PATIENCE)

    # Local functions, so the workers get their code and not this module's name.
    def node_of(dask_worker: object) -> str:
        return os.environ["SLURMD_NODENAME"]

    def executed(dask_worker: object) -> int:
        return dask_worker.state.executed_count

    try:
        cluster = {"kind": "existing", "scheduler_file": str(file)}
        project.config["compute"] = project.config["compute"] | {"cluster": cluster}
        project.write_config()
        from distributed import Client

        with Client(scheduler_file=str(file), timeout=60) as client:
            client.wait_for_workers(2, timeout=PATIENCE)
            nodes = client.run(node_of)
            assert sorted(nodes.values()) == ["cpu1", "cpu2"]
            story.head.start("--forcerun", "pca", target="results/pca.zarr/zarr.json")
            story.head.finish()
            assert sum(client.run(executed).values()) > 0
    finally:
        slurm.command("scancel", *submitted)
        slurm.wait_for(
            "the end of Dask's processes",
            lambda: {jobs()[number].state for number in submitted} <= ENDED,
            PATIENCE,
        )
    assert_same_outputs(project.outputs(), two.outputs())
