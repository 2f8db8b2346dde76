# Resources of all rules, from scatlas.workflow.resources. Each grows with the attempt: a job that
# failed runs again with more.
import atexit

from scatlas.workflow.resources import (
    STORE_RULES,
    Estimates,
    JobRequest,
    resource_table,
)

ESTIMATES = Estimates(CONFIG, SHEET)
# Where a step computes is a resource, not a param: a change of it reruns nothing.
BUDGET = CONFIG.compute.block_budget
CLUSTER = CONFIG.compute.cluster
BACKEND = "cpu" if CLUSTER and CLUSTER.kind == "local-cpu" else CONFIG.backend
if ESTIMATES.gpus("pca"):
    # Compiled kernels: a folder that all jobs can write and later runs can read.
    os.environ.setdefault("CUPY_CACHE_DIR", str(Path.cwd() / ".snakemake" / "cupy"))


def memory(rule):
    def mem_mb(wildcards, attempt, threads):
        return attempt * ESTIMATES.memory(rule, wildcards.get("plate"), threads)

    return mem_mb


def runtime(rule):
    def minutes(wildcards, attempt, threads):
        return attempt * ESTIMATES.runtime(rule, wildcards.get("plate"), threads)

    return minutes


def threads_for(rule):
    return lambda wildcards: ESTIMATES.threads(rule, wildcards.get("plate"))


def disk(rule):
    return lambda wildcards: ESTIMATES.disk(rule, wildcards.get("plate"))


def which_attempt(wildcards, attempt):
    """The attempt as an option: scripts do not read an input again that they have refused."""
    return attempt


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


def device(rule):
    """Where a rule computes, and with how much memory for its blocks.

    All rules have these: jobs that share one of a cluster must agree on every text.
    """

    def gpu(wildcards):
        return ESTIMATES.gpus(rule, wildcards.get("plate"))

    def backend(wildcards):
        plate = wildcards.get("plate")
        return "cpu" if plate and ESTIMATES.prefers_cpu(plate) else BACKEND

    return {
        "gpu": gpu,
        "budget": BUDGET,
        "backend": backend,
        "device_memory": CONFIG.compute.memory,
        "device_limit": CONFIG.compute.memory_limit or "none",
    }


def job_request(job):
    requested = job.resources
    return JobRequest(
        job.rule.name,
        job.threads,
        requested.mem_mb,
        requested.runtime,
        requested.get("gpu", 0),
        requested.disk_mb if job.rule.name in STORE_RULES else 0,
    )


def print_plan():
    """Print the resources of all jobs at the end of a dry run."""
    if not workflow.dryrun or workflow.dag is None:
        return
    order = [rule.name for rule in workflow.rules]
    jobs = workflow.dag.needrun_jobs(exclude_finished=False)  # a dry run finishes them
    jobs = [job for job in jobs if not job.is_norun]
    if jobs:
        jobs.sort(key=lambda job: order.index(job.rule.name))
        print(resource_table(map(job_request, jobs)), flush=True)


# Snakemake calls no hook in a dry run, and knows the jobs only at its end.
atexit.register(print_plan)
