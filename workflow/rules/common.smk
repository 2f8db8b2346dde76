# Config and plate sheet for all rules. On a cluster each job parses the rules again:
# nothing here opens a plate or imports more than pydantic.
import os
import shlex
import socket
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

# This checkout, or the folder of the workflow in the installed package (`scatlas run`). The main
# Snakefile may belong to another workflow that imports this one.
HERE = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
if not (HERE / "scripts").is_dir():
    raise WorkflowError(
        f"{HERE}: scatlas runs from a checkout: clone it, and import its Snakefile by its path"
    )
PACKAGE = HERE / "src/scatlas" if (HERE / "src").is_dir() else HERE.parent
if PACKAGE == HERE.parent and workflow.deployment_settings.deployment_method:
    # The package would hide that of the environment, which has another Python.
    raise WorkflowError(
        "environments made by Snakemake need a clone: leave out --software-deployment-method, or "
        "run snakemake in a clone of scatlas"
    )
# Prefix of all results, if another workflow imports this one with a prefix.
PREFIX = workflow.modifier.path_modifier
# Jobs use this Python, activated or not. fork_client.py gives them this package, installed or not.
sys.path.insert(0, str(PACKAGE.parent))
os.environ.update(
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    ),
)


def has_one_job(arguments):
    """Whether this is the Snakemake of one job, by its arguments."""
    before, _, after = " ".join(arguments).partition(" --target-jobs ")
    return len(after.partition(" --")[0].split()) == 1


# Jobs fork from a process of this Snakemake that has imported the libraries. It does not pay for a
# single job, like most of a cluster. Other systems than Linux have no such sockets.
can_fork = hasattr(socket, "SO_PEERCRED") and not has_one_job(sys.argv)
os.environ.update(SCATLAS_FORK_SERVER=str(os.getpid()) if can_fork else "")
CLIENT = shlex.quote(str(PACKAGE / "workflow/fork_client.py"))
RUN = f"python -IS {CLIENT}".replace("{", "{{").replace("}", "}}")
# Arrow reads this on import. Its own allocator would hold 40 MB beside the C library's.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from scatlas.errors import ScatlasError
from scatlas.workflow.code_hash import code_hash
from scatlas.workflow.config.cli_options import sections_option
from scatlas.workflow.config.loading import check_plates, load
from scatlas.workflow.config.plate_sheet import DEMO_FOLDER, read_plates
from scatlas.workflow.config.loading import sample_plates
from scatlas.workflow.left_out import plates_left_out
from scatlas.workflow.new_plates import (
    FinishedAtlas,
    check_new_plates,
    load_new_plates,
)
from scatlas.workflow.job_environment import bind, of_run

PROCESS = {
    "module": str(workflow.modifier.namespace),
    "is_main": workflow.is_main_process,
}

# The atlas onto which new plates are mapped (new_plates.smk), if the config names one.
ATLAS = None
try:
    given, settings = of_run("config", [GIVEN, config], **PROCESS)
    CONFIG = load(settings)
    if CONFIG.atlas:
        ATLAS = FinishedAtlas.open(Path(CONFIG.atlas))
        CONFIG = load_new_plates(given, ATLAS)
        ATLAS.check(["leiden", *CONFIG.new_plates.obs])
    if CONFIG.plates.by:
        SHEET = sample_plates(CONFIG, is_main=workflow.is_main_process)
    else:
        SHEET = read_plates(CONFIG.plates.sheet, generated=DEMO_FOLDER)
    bind(CONFIG.plates.place, repr(SHEET), **PROCESS)
    if ATLAS:
        check_new_plates(CONFIG, SHEET, ATLAS)
    else:
        check_plates(CONFIG, SHEET)
except ScatlasError as error:
    raise WorkflowError(str(error)) from error

PLATES = {plate.plate: plate for plate in SHEET}
OUT = CONFIG.folder
# Whether `split` divides one file of samples; Parquet files in order are read where they are.
SPLITS = bool(CONFIG.plates.by) and not SHEET[0].is_read_in_place
# Stores of the samples of one file, until they are loaded.
SAMPLES = f"{OUT}/samples"

# The last step that filters the cells of a plate, and its outputs.
LAST_CELL_FILTER = "doublets" if CONFIG.drops_doublets else "qc_filter"
KEPT_CELLS = "doublets.parquet" if CONFIG.drops_doublets else "qc.parquet"
KEPT_CELLS_SUMMARY = "doublets.json" if CONFIG.drops_doublets else "qc_summary.json"
