# Outputs of earlier runs, compared with the run records of their steps (scatlas.workflow.integrity).
# in:  manifests/*.json, manifests/*/{plate}.json with their run records
# out: nothing; Snakemake learns which steps failed or lost outputs
import atexit
from contextlib import suppress
from functools import partial

from snakemake.io import IOFile, apply_wildcards, is_flagged
from snakemake.logging import logger

from scatlas.io.files.checksums import text_digest
from scatlas.workflow.fork_client import connect
from scatlas.workflow.integrity import Findings, check_outputs, run_record
from scatlas.workflow.run_lock import lock_results, release, share_results
from scatlas.workflow.slurm_executor import watch
from scatlas.workflow.run_lock import refuse_live_jobs

OWN_RULES = [rule for rule in workflow.rules if str(HERE) in str(rule.snakefile)]


def outputs_by_manifest():
    """All outputs of each step of this workflow, by its manifest."""
    found = {}
    for step in OWN_RULES:
        if "manifest" in step.output.keys():
            for plate in PLATES:
                of_plate = partial(apply_wildcards, wildcards={"plate": plate})
                manifest = Path(of_plate(str(step.output.manifest)))
                # Snakemake deletes temporary outputs when they have been used.
                found[manifest] = [
                    of_plate(str(path))
                    for path in step.output
                    if not is_flagged(path, "temp")
                ]
    return found


def compare_outputs():
    # Cluster jobs, each with its own Snakemake, run as planned. Snakemake itself checks results in
    # a storage.
    in_storage = workflow.storage_settings.default_storage_provider
    if not workflow.is_main_process or in_storage:
        return Findings()
    results = Path(with_prefix(OUT))
    existing = next(path for path in (results, *results.parents) if path.exists())
    if not existing.is_dir():
        raise WorkflowError(f"outdir: {existing} is a file, not a folder: name another")
    if existing != results:  # a first run
        return Findings()
    try:
        return check_outputs(OUTPUTS, results=set(map(os.path.normpath, RESULTS)))
    except ScatlasError as error:
        raise WorkflowError(str(error)) from error


# Digest of everything that decides the bytes of the results, except for the plates' files. Run
# records hold it.
CODE = sorted(
    {str(rule.params.code) for rule in OWN_RULES if "code" in rule.params.keys()}
)


def digest(settings):
    return text_digest(repr([settings, SHEET, CODE]).encode())


# Sections of the steps that may leave a plate out: others do not make its plate usable.
OF_PLATES = {"plates", "source", "qc", "genes", "doublets", "normalize", "hvg", "atlas"}
PLATES_PLAN = digest(CONFIG.model_dump(include=OF_PLATES))
PLAN = f'{digest(CONFIG.model_dump(exclude={"backend", "compute"}))} {PLATES_PLAN}'
os.environ.update(SCATLAS_PLAN=PLAN)
if vars(workflow).setdefault("scatlas_plan", PLAN) != PLAN:
    raise WorkflowError(
        "this workflow imports scatlas with two configs, whose jobs would share one environment: "
        "use one config, and run the other atlas by its own command"
    )
RULES = [path.read_text("utf-8") for path in sorted(HERE.glob("workflow/rules/*.smk"))]
try:
    bind(f"the code of scatlas in {HERE}", repr([CODE, RULES]), **PROCESS)
except ScatlasError as error:
    raise WorkflowError(str(error)) from error
OUTPUTS = outputs_by_manifest()
FINDINGS = compare_outputs()


def is_tried_again(manifest, record):
    """Whether a step has left its plate out and may do otherwise now: its source, the config, the
    plates or the code have changed, or its source cannot be seen to change."""
    plate = PLATES.get(manifest.stem)
    if not (record.get("left_out") and plate):
        return False
    plan = (record.get("plan") or "").rpartition(" ")[2]
    return plate.is_remote or plan != PLATES_PLAN or not has_source(manifest, record)


def is_current(manifest, record):
    """Whether a step would make the same outputs again, by its run record. Snakemake does not know
    this of a cluster job that outlived it."""
    return record.get("plan") == PLAN and has_source(manifest, record)


def has_source(manifest, record):
    """Whether the file that a step has read is still the same. Only `load` and `split` read files
    that are no outputs of a step; Snakemake compares the ages of those."""
    plate = PLATES.get(manifest.stem)
    path = plate_path(plate) if plate else CONFIG.plates.path
    source = stamp_of(path) if record.get("source") and path else ""
    return record.get("source", "") == source


async def check_jobs(then):
    """Refuse the jobs that would delete and write again what its owner has edited. Snakemake calls
    this whenever it knows which jobs will run."""
    await then()
    jobs = workflow.dag.needrun_jobs()
    try:
        FINDINGS.refuse_to_write(str(path) for job in jobs for path in job.output)
    except ScatlasError as error:
        atexit.unregister(print_plan)
        raise WorkflowError(str(error)) from None


@cache
def rerun_unfinished_steps():
    """Make Snakemake rerun failed steps and those of users' results that are missing: it ignores a
    missing output while all outputs after it exist. The input function of `load`, which every
    target needs, calls this."""
    if workflow.dag is None or not workflow.is_main_process:
        return
    say_at_the_end()
    forgotten = [
        str(manifest)
        for manifest, record in FINDINGS.intact.items()
        if any(
            workflow.persistence.metadata(IOFile(path)) is None
            for path in OUTPUTS[manifest]
        )
        and not is_current(manifest, record)
    ]
    if forgotten:
        logger.info(
            f"Snakemake does not remember how {len(forgotten):,} steps ran, {forgotten[0]} "
            "the first, and config, plates or code have changed since: they run again. If the "
            "change does not concern them, the same command with --touch keeps their results"
        )
    left_out = [
        str(manifest)
        for manifest, record in FINDINGS.intact.items()
        if is_tried_again(manifest, record)
    ]
    if left_out:
        logger.info(
            f"{len({Path(path).stem for path in left_out}):,} plates were left out by an earlier "
            "run: they are tried again"
        )
    for manifest, reason in FINDINGS.to_rerun.items():
        if run_record(manifest).exists():
            logger.info(f"{reason}: its step runs again, if it is part of this run")
    for reason in FINDINGS.incomplete.values():
        logger.info(f"{reason}: it is made again where it is needed")
    for sentence in FINDINGS.sentences:
        logger.warning(sentence)
    if FINDINGS.edited and workflow.execution_settings and not workflow.touch:
        workflow.dag.check_jobs = partial(check_jobs, workflow.dag.check_jobs)
    workflow.dag.forcefiles.update(
        [*forgotten, *left_out, *map(str, FINDINGS.to_rerun)]
    )
    if workflow.execution_settings and not workflow.dryrun:
        lock_folders()
        FINDINGS.apply()
        elsewhere = workflow.deployment_settings.deployment_method or workflow.touch
        if can_fork and workflow.local_exec and not (elsewhere or FINDINGS.intact):
            with suppress(OSError):  # a first run: it imports libraries during the plan
                connect(str(os.getpid()), f"{HERE}/scripts/load.py").close()


@cache
def lock_folders():
    """Refuse a second run with the same results, or that simulates the same plates, and one that
    makes the atlas of new plates again."""
    folders = [OUT]
    if any(
        plate.is_simulated and not Path(plate_path(plate)).exists() for plate in SHEET
    ):
        folders.append(DEMO_FOLDER)
    # Of jobs of Slurm the queue tells.
    jobs_stay = not workflow.local_exec and workflow.executor_plugin.name != "slurm"
    try:
        atlas_lock = ATLAS and share_results(ATLAS.path.parent)
        locks = []
        for folder in map(Path, map(with_prefix, folders)):
            locks.append(lock_results(folder, on_cluster=jobs_stay))
            atexit.register(release, locks[-1])
        refuse_live_jobs(Path(with_prefix(OUT)))
    except ScatlasError as error:
        # Snakemake would print a traceback for any other exception here.
        raise SystemExit(f"error: {error}") from None
    watch(workflow.executor_plugin, Path(with_prefix(OUT)))
    if all(locks) and len(OWN_RULES) == len(list(workflow.rules)):
        # Snakemake's own lock would stay after a killed run.
        workflow.persistence.lock = workflow.persistence.noop
    # Another run in this folder removes the folder of Snakemake's locks at its end.
    Path(".snakemake/locks").mkdir(exist_ok=True)
    return atlas_lock  # the cache keeps it open


if "--unlock" in sys.argv and workflow.is_main_process:
    for folder in filter(Path.is_dir, map(Path, map(with_prefix, (OUT, DEMO_FOLDER)))):
        try:
            release(lock_results(folder, unlock=True))
        except ScatlasError as error:
            raise WorkflowError(str(error)) from error
