# Resources of all rules, from scatlas.workflow.resources. Each grows with the attempt: a job that
# failed runs again with more.
import atexit
import gc
from threading import Timer

from snakemake.scheduling.job_scheduler import JobScheduler
from snakemake.utils import available_cpu_count

from scatlas.compute.gpu_devices import find_gpus
from scatlas.workflow.resources import STORE_RULES, Estimates
from scatlas.workflow.run_time import (
    JobRequest,
    TimedJob,
    resource_table,
    run_seconds,
    sentence,
)


def runs_on_a_cluster():
    """Whether each job has its own part of a cluster, with whole GPUs.

    A dry run has no other executor: --jobs is given for a cluster, with no cores or with more than
    this machine has.
    """
    settings = workflow.resource_settings
    here = 1 < (settings.cores or 0) <= available_cpu_count()
    return workflow.remote_exec or (settings.nodes is not None and not here)


SCHEDULED = runs_on_a_cluster()
JOBS_PER_GPU = 1 if SCHEDULED else CONFIG.compute.jobs_per_gpu
GPUS = () if SCHEDULED or CONFIG.backend == "cpu" else find_gpus()
if not SCHEDULED:  # unless --resources gpu= tells another number
    workflow.global_resources.setdefault("gpu", JOBS_PER_GPU * max(len(GPUS), 1))
ESTIMATES = Estimates(
    CONFIG,
    SHEET,
    jobs_per_gpu=JOBS_PER_GPU,
    gpu_bytes=min((gpu.total for gpu in GPUS), default=None),
    cores=None if SCHEDULED else workflow.resource_settings.cores,
    n_gpus=max(len(GPUS), 1),
)
# Jobs of a cluster take the batches of their run: by then sources may be gone, and have no size.
FIRST_OF_BATCH = of_run("batches", ESTIMATES.first_of_batch, **PROCESS)
# Where a step computes is a resource, not a param: a change of it reruns nothing.
BUDGET = CONFIG.compute.block_budget
CLUSTER = CONFIG.compute.cluster
BACKEND = "cpu" if CLUSTER and CLUSTER.kind == "local-cpu" else CONFIG.backend
HOME = os.path.expanduser("~")
if ESTIMATES.gpus("pca") and (SCHEDULED or not os.access(HOME, os.W_OK)):
    # Compiled kernels: a folder that the jobs of all machines can write. Else they are in CuPy's,
    # in the user's home, where kernels of other projects need no new compilation.
    os.environ.setdefault("CUPY_CACHE_DIR", str(Path.cwd() / ".snakemake" / "cupy"))


def threads_for(name):
    return lambda wildcards: ESTIMATES.threads(name, wildcards.get("plate"))


def requests(name, counter=None):
    """Resources of a rule's jobs: its row in scatlas.workflow.costs, times the attempt.

    All rules have the same ones: jobs that share one of a cluster must agree on every text. The
    counter, small_plates or small_atlas, is that of the jobs at a time in a job that they share.
    """

    def estimate(amount):
        return lambda wildcards, attempt, threads: (
            attempt * amount(name, wildcards.get("plate"), threads)
        )

    def gpu(wildcards, attempt, threads):
        return ESTIMATES.gpu_parts(name, wildcards.get("plate"), threads, attempt)

    def gpu_share(wildcards, attempt, threads):
        parts = gpu(wildcards, attempt, threads)
        return f"{min(parts, JOBS_PER_GPU) or JOBS_PER_GPU}/{JOBS_PER_GPU}"

    def backend(wildcards):
        plate = wildcards.get("plate")
        if plate and ESTIMATES.prefers_cpu(plate):
            return "cpu"
        # Clusters are the same on both, and igraph's leave the GPU to other jobs.
        fewer = ESTIMATES.gpus(name) < ESTIMATES.gpus("umap")
        return "cpu" if name == "leiden" and fewer else BACKEND

    found = {
        "mem_mb": estimate(ESTIMATES.memory),
        "runtime": estimate(ESTIMATES.runtime),
        "gpu": gpu,
        "gpu_share": gpu_share,
        "budget": BUDGET,
        "backend": backend,
        "device_memory": CONFIG.compute.memory,
        "device_limit": CONFIG.compute.memory_limit or "none",
        # Scripts do not read an input again that they have refused.
        "attempt": lambda wildcards, attempt: attempt,
    }
    if name in STORE_RULES:
        found["disk_mb"] = lambda wildcards: ESTIMATES.disk(
            name, wildcards.get("plate")
        )
    return found | ({counter: 1} if counter else {})


def shared_jobs():
    """Whether the profile lets small steps share a job of a cluster (group-components)."""
    return workflow.group_settings.group_components.get("small_plates", 1) > 1


def together(group, rule, otherwise=None):
    """Group of a rule's jobs of small plates, many of which share one job of a cluster.

    Otherwise: the group of other jobs. A group would request the GPUs of all its jobs.
    """

    def group_of(wildcards):
        plate = wildcards.plate
        small = ESTIMATES.is_small(plate) and not ESTIMATES.gpus(rule, plate)
        return group if small and shared_jobs() else otherwise

    return group_of


def small_atlas(wildcards):
    """Group of the steps after the plates', if they take seconds and no GPU."""
    small = ESTIMATES.is_small_atlas and not ESTIMATES.gpus("pca")
    return "small_atlas" if small and shared_jobs() else None


def small_report(wildcards):
    """Group of the same steps after the sums by group, which depend on others of them: one group
    would wait for itself."""
    return "small_report" if small_atlas(wildcards) else None


def job_request(job):
    requested = job.resources
    return JobRequest(
        job.rule.name,
        job.threads,
        requested.mem_mb,
        requested.runtime,
        requested.get("gpu", 0) / JOBS_PER_GPU,
        requested.disk_mb if job.rule.name in STORE_RULES else 0,
    )


def look_again(scheduler, seconds):
    """Let Snakemake look for jobs again after some seconds, as it does while starts are limited to 100
    in a second. Its own way adds a timer for each look, whose end is one more look: after some hundred
    jobs they take all the time of its thread (findings/snakemake_looks_add_up.sh)."""

    def look():
        scheduler.will_look = False
        scheduler._open_jobs.release()

    if not vars(scheduler).get("will_look"):
        scheduler.will_look = True
        timer = Timer(seconds, look)
        timer.daemon = True  # else the end of the run waits for it
        timer.start()


JobScheduler._schedule_reevalutation = look_again


def planned_jobs():
    """Jobs of a dry run, by rule; none in a real run."""
    if not workflow.dryrun or workflow.dag is None:
        return []
    order = [rule.name for rule in workflow.rules]
    jobs = workflow.dag.needrun_jobs(exclude_finished=False)  # a dry run finishes them
    jobs = [job for job in jobs if not job.is_norun]
    return sorted(
        jobs, key=lambda job: (order.index(job.rule.name), *job.wildcards_dict.values())
    )


def run_limits():
    """Cores, parts of GPUs and other resources that the jobs on this machine divide."""
    limits = workflow.global_resources.items()
    limits = {name: getattr(limit, "value", limit) for name, limit in limits}
    return {name: limit for name, limit in limits.items() if isinstance(limit, int)}


def timed_jobs(jobs):
    """Jobs with their expected durations and the jobs of the run that they need."""
    number, limits = {job: i for i, job in enumerate(jobs)}, run_limits()
    loads = {job.wildcards_dict["plate"] for job in jobs if job.rule.name == "load"}
    return [
        TimedJob(
            ESTIMATES.seconds(
                job.rule.name,
                job.wildcards_dict.get("plate"),
                job.threads,
                loads=job.wildcards_dict.get("plate") in loads,
            ),
            {name: job.resources.get(name, 0) for name in limits},
            [
                number[other]
                for other in workflow.dag.dependencies[job]
                if other in number
            ],
            job.priority,
        )
        for job in jobs
    ]


def print_plan():
    """Print the resources of all jobs, and the expected run time, at the end of a dry run."""
    jobs = planned_jobs()
    if not jobs:
        return
    print(resource_table([*map(job_request, jobs)]), flush=True)
    if SCHEDULED:  # the queue of the cluster decides
        return
    timed, limits = timed_jobs(jobs), run_limits()
    n_gpus = (
        limits["gpu"] / JOBS_PER_GPU if any(job.requests["gpu"] for job in timed) else 0
    )
    print(sentence(run_seconds(timed, limits), limits["_cores"], n_gpus), flush=True)


# The objects of all jobs stay: to look for garbage among them took a fifth of a start with 200 plates.
gc.set_threshold(50_000, 20, 100)
atexit.register(gc.freeze)
# Snakemake calls no hook in a dry run, and knows the jobs only at its end.
atexit.register(print_plan)
