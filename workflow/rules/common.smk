# Config, plate sheet, and what the rules ask of a machine. Nothing here opens a plate: on a
# cluster each job parses this file again.
import atexit
import fcntl
import json
import os
import shlex
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile
from snakemake.logging import logger

# Of this checkout: the main Snakefile may be that of another workflow, which imports this one.
HERE = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
if not (HERE / "scripts").is_dir():
    raise WorkflowError(
        f"{HERE}: scatlas runs from a checkout: clone it, and import its Snakefile by its path"
    )
# Prefix of all results, where another workflow imports this one with one.
PREFIX = workflow.modifier.path_modifier
DEMO = "resources/demo"  # whose plates are made when they are missing
# Jobs run this checkout's package with this Python, installed or not, activated or not.
sys.path.insert(0, str(HERE / "src"))
os.environ.update(
    PYTHONPATH=str(HERE / "src"),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    ),
)
# Arrow reads this when it is loaded. Its own allocator keeps 40 MB beside that of the C library.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from scatlas.compute.footprints import harmony_bytes
from scatlas.workflow.config.model import Harmony, fit_to_plates, load, options
from scatlas.errors import ScatlasError
from scatlas.workflow.code_hash import code_hash
from scatlas.workflow.integrity import run_record
from scatlas._util.byte_sizes import parse_bytes
from scatlas.io.files.stamps import stamp
from scatlas.workflow.config.plate_sheet import read_plates
from scatlas.workflow.resources import (
    COUNT_BYTES,
    GPU_MB,
    SECONDS_PER_CELL,
    SECONDS_PER_COMPONENT,
    SECONDS_PER_GENE_CUBED,
    SECONDS_PER_MIXED,
    SECONDS_PER_VALUE,
    SELECTED_BYTES,
    SELECTED_SHARE,
    JobRequest,
    Size,
    block_threads,
    memory_mb,
    minutes,
    plan,
    plate_size,
    total,
)

try:
    CONFIG = load(config)
    SHEET = read_plates(CONFIG.plates, generated=DEMO)
    CONFIG = fit_to_plates(CONFIG, SHEET)
except ScatlasError as error:
    raise WorkflowError(str(error)) from error

PLATES = {plate.plate: plate for plate in SHEET}
# Plates at addresses that a storage plugin of Snakemake reads: it copies them here for the step
# `load` and notices when they change. Without the plugin, `load` reads them where they are.
PLUGINS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
STORED = {
    plate.plate: getattr(storage, plugin)(plate.path)
    for plate in SHEET
    if (plugin := PLUGINS.get(plate.path.partition("://")[0]))
    and find_spec(f"snakemake_storage_plugin_{plugin}")
    # There are no folders over http.
    and (plugin != "http" or plate.path.endswith((".h5ad", ".h5")))
}
OUT = CONFIG.outdir
BUDGET = CONFIG.compute.block_budget
BUDGET_BYTES = parse_bytes(BUDGET)
# The option of the steps for which rare genes do not exist; empty where none are dropped.
RARE = (
    f"--drop-rare-genes {CONFIG.qc.drop_rare_genes}"
    if CONFIG.qc.drop_rare_genes
    else ""
)
# The option of `load` for the var column in which mitochondrial genes are looked for.
GENE_NAMES = (
    f"--gene-names {shlex.quote(CONFIG.qc.gene_names)}" if CONFIG.qc.gene_names else ""
)

# Where a step works goes by resources, as the budget does: a change of them runs nothing again.
BACKEND = CONFIG.backend
DEVICE_MEMORY = CONFIG.compute.memory
DEVICE_LIMIT = CONFIG.compute.memory_limit or "none"
# GPUs that a job of a GPU step may take, for profiles that limit them and schedulers that hand
# them out. With auto they are asked for only where the jobs' Python could use them.
GPUS = int(BACKEND == "gpu" or (BACKEND == "auto" and find_spec("cupy") is not None))
if CONFIG.compute.cluster:
    kind, devices = CONFIG.compute.cluster.kind, CONFIG.compute.cluster.devices
    GPUS *= 0 if kind == "local-cpu" else devices or 1
# umap works in its job's own process, on one GPU, whatever the cluster of the other steps.
ONE_GPU = min(GPUS, 1)
LOCAL_CPU = CONFIG.compute.cluster and CONFIG.compute.cluster.kind == "local-cpu"
UMAP_BACKEND = "cpu" if LOCAL_CPU else BACKEND
if GPUS:
    # Compiled kernels, kept where every job can write and the next run finds them.
    os.environ.setdefault("CUPY_CACHE_DIR", str(Path.cwd() / ".snakemake" / "cupy"))

# Which step has the last word on a plate's cells, and the files in which it says so.
DROPS_DOUBLETS = CONFIG.doublets is not None and CONFIG.doublets.filter
KEPT, KEPT_TABLE, KEPT_SUMMARY = (
    ("doublets", "doublets.parquet", "doublets.json")
    if DROPS_DOUBLETS
    else ("qc_filter", "qc.parquet", "qc_summary.json")
)
# Mixed cells of the whole atlas are a part of it; those of the sample come after it.
HARMONY = None
if CONFIG.integrate and CONFIG.integrate.cells == "all":
    HARMONY = Harmony(**CONFIG.integrate.model_dump(include=set(Harmony.model_fields)))
# What optional rules add to the report: inputs, outputs, options of its script.
REPORT_INPUT, REPORT_OUTPUT, REPORT_OPTIONS = {}, {}, []


def prefixed(path):
    """A path of a result as rules have it, for params, which Snakemake takes as they are."""
    return str(PREFIX.replace_prefix(path))


def is_demo(plate):
    return Path(plate.path).is_relative_to(DEMO)


def placed(plate):
    """Where a plate is; those of the demo are results, too."""
    return prefixed(plate.path) if is_demo(plate) else plate.path


# load checks these but does not use them, so that a change of either must not load a plate
# again: they travel in the environment, where Snakemake does not look. So does the cluster.
CLUSTER = CONFIG.compute.cluster
os.environ.update(
    SCATLAS_CLUSTER=CLUSTER.model_dump_json(exclude_none=True) if CLUSTER else "",
    SCATLAS_QC_FILTER=CONFIG.qc.filter or "",
    SCATLAS_MAX_PCT_MT=(
        "" if CONFIG.qc.max_pct_mt is None else str(CONFIG.qc.max_pct_mt)
    ),
    # Of stored plates there is one copy at a time: `consensus` compares their genes.
    SCATLAS_REFERENCE_PLATE=(
        placed(SHEET[0])
        if CONFIG.genes == "same" and SHEET[0].plate not in STORED
        else ""
    ),
)


def mixed_by():
    """Columns of integrate.key that plates have to have themselves, and which plates do: those
    without a label. Later steps make the columns that are left out, and doublets that are dropped
    may lack a value. None stands for all plates."""
    if not CONFIG.integrate or DROPS_DOUBLETS:
        return {}
    names = [name for name in CONFIG.integrate.key if name not in MADE_LATER]
    lack = {name: [p.plate for p in SHEET if not p.labels.get(name)] for name in names}
    return {
        name: plates if len(plates) < len(SHEET) else None
        for name, plates in lack.items()
        if plates
    }


MADE_LATER = {"plate", "size_factor", "doublet_score", "predicted_doublet", "leiden"}
os.environ.update(
    SCATLAS_MIXED_BY=json.dumps(mixed_by()), SCATLAS_N_COMPS=str(CONFIG.pca.n_comps)
)


wildcard_constraints:
    plate=r"[A-Za-z0-9._-]+",


def script(name):
    """A rule's script as an input: compared by content, not by age."""
    return str(HERE / "scripts" / f"{name}.py")


CODE = {}


def code(name):
    """Content hash of the package's modules behind a script: changed code reruns its steps."""
    CODE[name] = code_hash(HERE / "scripts" / f"{name}.py")
    return CODE[name]


def all_plates(pattern):
    """A path for each plate, in the order of the plate sheet."""
    return [pattern.format(plate=plate) for plate in PLATES]


def by_plate(pattern):
    """PLATE=PATH for each plate: how the atlas-level scripts are told which is which."""
    return [f"{plate}={prefixed(pattern.format(plate=plate))}" for plate in PLATES]


def as_is(text):
    """A param with words of the user, in which Snakemake would look for wildcards otherwise."""
    return lambda wildcards: text


def scale_options(scale):
    """The script's options for a section that may be null."""
    return f"--scale {options(scale, prefix='scale')}" if scale else ""


def doublets_table(plate):
    """Table of a plate's doublets, if they are looked for; a list, for a rule's input."""
    return [f"{OUT}/plates/{plate}/doublets.parquet"] if CONFIG.doublets else []


def doublets_option(wildcards):
    """The option of the step that gives the atlas's cells their columns."""
    tables = doublets_table(wildcards.plate)
    return f"--doublets {shlex.quote(prefixed(tables[0]))}" if tables else ""


def mixed_option(harmony):
    """The atlas's option for the store of all cells mixed."""
    return (
        f"--harmony {shlex.quote(prefixed(f'{OUT}/harmony.zarr'))}" if harmony else ""
    )


def rare_counts(wildcards):
    """As RARE, for a step that does not read the counts otherwise."""
    store = prefixed(f"{OUT}/plates/{wildcards.plate}/counts.zarr")
    return f"--store {shlex.quote(store)} {RARE}" if RARE else ""


def source_path(wildcards, input):
    stored = wildcards.plate in STORED
    return str(input.source) if stored else placed(PLATES[wildcards.plate])


# What workflow/rules/integrity.smk finds, once all rules are known: the outputs of each step by its
# manifest, and their state.
OUTPUTS = {}
FOUND = []
RUNNING = []


def is_current(manifest, record):
    """Whether a step ran as it would run now. Snakemake does not know it of a job that outlived it
    on a cluster; the run record does."""
    plate = PLATES.get(manifest.stem)
    # Only `load` reads what is no output of another step, whose age Snakemake compares.
    source = stamp_of(placed(plate)) if record.get("source") and plate else ""
    return (record.get("plan"), record.get("source", "")) == (PLAN, source)


@cache
def run_unfinished():
    """Tell Snakemake, while it asks for the inputs of `load`, which every target needs, what has to
    run again: a step whose last run failed has no outputs, which is no work to Snakemake while
    everything behind them is there."""
    if workflow.dag is None:
        return
    for findings in FOUND:
        forgotten = [
            str(manifest)
            for manifest, record in findings.sound.items()
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
        for manifest, why in findings.to_run.items():
            if run_record(manifest).exists():
                logger.info(f"{why}: its step runs again")
        for why in findings.incomplete.values():
            logger.info(f"{why}: it is made again where it is needed")
        workflow.dag.forcefiles.update([*forgotten, *map(str, findings.to_run)])
        if workflow.execution_settings and not workflow.dryrun:
            be_the_only_run()
            findings.withdraw()


def be_the_only_run():
    """Refuse a second Snakemake in this folder. Snakemake's own lock ends in a traceback where the
    first one ends at that moment, as it removes the folder of the locks. The system frees this
    one, however a process ends."""
    locks = Path(".snakemake/locks")
    file = locks.with_name("scatlas.lock").open("w")
    RUNNING.append(file)  # open, and so locked, as long as this process lives
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Snakemake would print a traceback for any other exception here.
        raise SystemExit(
            f"error: another Snakemake is running in {Path.cwd()}: wait until it has ended"
        ) from None
    except OSError as error:
        logger.info(f"{file.name} cannot be locked ({error}): start one run at a time")
    locks.mkdir(exist_ok=True)


def source_file(wildcards):
    """The file whose age says whether a plate is new: of a Zarr store, its root metadata."""
    run_unfinished()
    plate = PLATES[wildcards.plate]
    if plate.is_remote:
        return STORED.get(plate.plate, [])
    if is_demo(plate):
        return plate.path
    path = plate.path
    # It would be taken for a wildcard; a change shows in the stamp all the same.
    if "{" in path:
        return []
    if Path(path).is_dir():
        path = next(
            (
                str(Path(path, name))
                for name in ("zarr.json", ".zattrs", ".zgroup")
                if Path(path, name).exists()
            ),
            path,
        )
    # Where the sheet says, whatever prefix or storage the results have.
    return local(path)


def simulated_reference(wildcards):
    """The first plate, where `load` compares its genes and the demo has to make it first."""
    return (
        [ancient(SHEET[0].path)] if is_demo(SHEET[0]) and CONFIG.genes == "same" else []
    )


def source_stamp(wildcards):
    """Age and size of a plate's file, or of every file of a Zarr store. Snakemake itself asks
    whether a file is younger than the results, and a plate that was replaced by an older file is
    not; nor does it look beyond the root metadata of a Zarr store, which stays as it is when
    counts or columns are changed in place."""
    plate = PLATES[wildcards.plate]
    return None if plate.is_remote or is_demo(plate) else stamp_of(plate.path)


stamp_of = cache(stamp)


def consensus_genes(wildcards):
    """The gene list, which Snakemake looks at anew once it is made."""
    return checkpoints.consensus.get().output.genes


@cache
def size(plate):
    """Cells and values of a plate, as far as they are known without opening it."""
    if Path(PLATES[plate].path).is_relative_to(DEMO):
        return Size(2000, 2000 * 3000)
    return plate_size(PLATES[plate])


def atlas_size():
    return total(size(plate) for plate in PLATES)


def subset_cells():
    cells = atlas_size().cells
    return min(CONFIG.subset.n_cells or cells, cells)


def gram_mb():
    """A Gram matrix of the consensus genes."""
    return 8e-6 * consensus_size() ** 2


def consensus_size():
    """How many genes there may be. The number is not known yet, but each needs the votes of
    min_plates plates, and plates that agree at all leave no more than twice n_top_genes.
    """
    votes = CONFIG.hvg.n_top_genes * len(PLATES)
    return min(votes / CONFIG.consensus.min_plates, 2 * CONFIG.hvg.n_top_genes)


# Each number grows with the attempt, so that a job that had too little is tried with more.
def plate_memory(wildcards, attempt):
    return attempt * memory_mb(size(wildcards.plate).cells, BUDGET_BYTES)


def doublets_memory(wildcards, attempt):
    # The cells on 30 components with what is known of their doublets; the Gram matrix of the
    # variable genes; neighbours of one part.
    held = (
        0.35e-3 * size(wildcards.plate).cells
        + 4 * 8e-6 * CONFIG.hvg.n_top_genes**2
        + 500
    )
    return attempt * memory_mb(size(wildcards.plate).cells, BUDGET_BYTES, gram_mb=held)


def hvg_memory(wildcards, attempt):
    return attempt * memory_mb(size(wildcards.plate).cells, BUDGET_BYTES, gpus=GPUS)


def select_memory(wildcards, attempt, threads):
    # Each block in flight has a Gram matrix of its own, and two are being added up.
    grams = (threads + 3) * gram_mb()
    return attempt * memory_mb(
        size(wildcards.plate).cells, BUDGET_BYTES, gpus=GPUS, gram_mb=grams
    )


def atlas_memory(wildcards, attempt):
    # Obs is merged a column at a time, so an atlas takes a tenth of what its plates' tables do;
    # the Gram matrices of the genes come on top.
    cells = 0.1 * atlas_size().cells
    return attempt * memory_mb(cells, BUDGET_BYTES, gram_mb=4 * gram_mb())


def pca_memory(wildcards, attempt):
    cells = 0.1 * atlas_size().cells
    return attempt * memory_mb(cells, BUDGET_BYTES, gpus=GPUS, gram_mb=4 * gram_mb())


def subset_memory(wildcards, attempt):
    # The subset is held in memory, with its neighbours: 20 kB a cell.
    held = 20e-3 * subset_cells()
    return attempt * memory_mb(0, BUDGET_BYTES, gram_mb=held)


def table_memory(wildcards, attempt):
    return attempt * memory_mb(0, 0)


def umap_memory(wildcards, attempt):
    return subset_memory(wildcards, attempt) + attempt * GPU_MB * ONE_GPU


def pseudobulk_memory(wildcards, attempt):
    # The sums: 8 bytes for each of 60,000 genes, and a group for a thousand cells.
    cells = size(wildcards.plate).cells
    return attempt * memory_mb(cells, BUDGET_BYTES, gram_mb=0.5e-3 * cells)


def mixed_comps():
    return (CONFIG.integrate and CONFIG.integrate.n_pcs) or CONFIG.pca.n_comps


def mixed_mb(cells):
    """What Harmony holds of so many cells."""
    return harmony_bytes(cells, mixed_comps()) / 1e6


def harmony_memory(wildcards, attempt):
    return attempt * memory_mb(0, BUDGET_BYTES, gram_mb=mixed_mb(atlas_size().cells))


def integrate_memory(wildcards, attempt):
    own = 0 if HARMONY else mixed_mb(subset_cells())
    return umap_memory(wildcards, attempt) + int(attempt * own)


def merge_memory(wildcards, attempt):
    return attempt * memory_mb(0, BUDGET_BYTES)


def which_attempt(wildcards, attempt):
    """Tells the script, so that input refused once is not read again in vain."""
    return attempt


def plate_threads(wildcards):
    return block_threads(BUDGET_BYTES, size(wildcards.plate).values)


def normalize_threads(wildcards):
    return plate_threads(wildcards) if RARE else 1


def gpu_threads(wildcards):
    """Of steps on one plate that may have a GPU."""
    return block_threads(BUDGET_BYTES, size(wildcards.plate).values, gpu=GPUS > 0)


def atlas_threads(wildcards):
    values = atlas_size().values * SELECTED_SHARE
    return block_threads(BUDGET_BYTES, values)


def harmony_threads(wildcards):
    # It holds no blocks, and takes all the cores that there are.
    return 16 if atlas_size().cells > 1e6 else 4


def pca_threads(wildcards):
    values = atlas_size().values * SELECTED_SHARE
    return block_threads(BUDGET_BYTES, values, gpu=GPUS > 0)


def load_runtime(wildcards, attempt, threads):
    return plate_runtime("load", wildcards.plate, attempt, threads)


def hvg_runtime(wildcards, attempt, threads):
    return plate_runtime("hvg", wildcards.plate, attempt, threads)


def select_runtime(wildcards, attempt, threads):
    return plate_runtime("select_genes", wildcards.plate, attempt, threads)


def plate_runtime(rule, plate, attempt, threads):
    return attempt * minutes(size(plate).values * SECONDS_PER_VALUE[rule], threads)


def normalize_runtime(wildcards, attempt, threads):
    if RARE:
        return hvg_runtime(wildcards, attempt, threads)
    return table_runtime(wildcards, attempt)


def doublets_runtime(wildcards, attempt, threads):
    plate = size(wildcards.plate)
    passes = 4 * plate.values * SECONDS_PER_VALUE["hvg"]
    return attempt * minutes(
        passes + plate.cells * SECONDS_PER_CELL["doublets"], threads
    )


def table_runtime(wildcards, attempt):
    return attempt * minutes(size(wildcards.plate).cells * SECONDS_PER_CELL["tables"])


def concat_runtime(wildcards, attempt):
    return attempt * minutes(atlas_size().cells * SECONDS_PER_CELL["concat_on_disk"])


def pca_runtime(wildcards, attempt, threads):
    projection = atlas_size().cells * CONFIG.pca.n_comps * SECONDS_PER_COMPONENT
    vectors = consensus_size() ** 3 * SECONDS_PER_GENE_CUBED
    return attempt * minutes(projection + vectors, threads)


def atlas_runtime(wildcards, attempt):
    return attempt * minutes(atlas_size().cells * SECONDS_PER_CELL["atlas"])


def subset_runtime(wildcards, attempt):
    return attempt * int(15 + subset_cells() / 2_000)


def mixed_seconds(cells):
    return cells * mixed_comps() * SECONDS_PER_MIXED


def harmony_runtime(wildcards, attempt, threads):
    return attempt * minutes(mixed_seconds(atlas_size().cells), threads)


def integrate_runtime(wildcards, attempt, threads):
    own = 0 if HARMONY else minutes(mixed_seconds(subset_cells()), threads)
    return subset_runtime(wildcards, attempt) + attempt * own


# Disk: for the plan of a dry run, and for schedulers that hand it out.
STORES = {"load", "select_genes", "concat_on_disk", "pca", "harmony"}


def counts_disk(wildcards):
    return int(size(wildcards.plate).values * COUNT_BYTES / 1e6)


def selected_disk(wildcards):
    return int(size(wildcards.plate).values * SELECTED_SHARE * SELECTED_BYTES / 1e6)


def merged_disk(wildcards):
    return int(atlas_size().values * SELECTED_SHARE * SELECTED_BYTES / 1e6)


def pca_disk(wildcards):
    return int(atlas_size().cells * CONFIG.pca.n_comps * 4 / 1e6)


def harmony_disk(wildcards):
    return int(atlas_size().cells * mixed_comps() * 4 / 1e6)


def ask(job):
    asked = job.resources
    # Rules that say nothing of their disk have a guess of Snakemake's.
    disk_mb = asked.disk_mb if job.rule.name in STORES else 0
    gpu = asked.get("gpu", 0)
    return JobRequest(
        job.rule.name, job.threads, asked.mem_mb, asked.runtime, gpu, disk_mb
    )


def print_plan():
    """At the end of a dry run, what its jobs ask for."""
    if not workflow.dryrun or workflow.dag is None:
        return
    rules = [rule.name for rule in workflow.rules]
    jobs = workflow.dag.needrun_jobs(exclude_finished=False)  # a dry run finishes them
    jobs = [job for job in jobs if not job.is_norun]
    if jobs:
        jobs.sort(key=lambda job: rules.index(job.rule.name))
        print(plan(map(ask, jobs)), flush=True)


# Snakemake calls nothing of ours in a dry run, and only at its end are the jobs known.
atexit.register(print_plan)
