# Outputs of earlier runs, compared with what their steps have left (scatlas.workflow.integrity).
# in:  manifests/*.json, manifests/*/{plate}.json with their run records
# out: nothing; steps that failed or whose outputs are damaged are told to Snakemake
from functools import partial

from snakemake.io import apply_wildcards

from scatlas.workflow.integrity import Findings, check
from scatlas.io.files.checksums import text_digest

# What decides the bytes of all results, but for the plates' own files. Run records keep it.
PLAN = text_digest(
    repr([CONFIG.model_dump(exclude={"backend", "compute"}), SHEET, CODE]).encode()
)
os.environ.update(SCATLAS_PLAN=PLAN)


def outputs_of_steps():
    """Each step's manifest and all its outputs, of optional rules as of others."""
    found = {}
    for step in workflow.rules:
        if "manifest" in step.output.keys() and str(HERE) in str(step.snakefile):
            for plate in PLATES:
                of_plate = partial(apply_wildcards, wildcards={"plate": plate})
                manifest = Path(of_plate(str(step.output.manifest)))
                found[manifest] = [of_plate(str(path)) for path in step.output]
    return found


OUTPUTS.update(outputs_of_steps())


def checked():
    # Jobs on a cluster, each a Snakemake of its own, run what was planned; results in a storage
    # are Snakemake's to look at.
    elsewhere = workflow.storage_settings.default_storage_provider
    if not workflow.is_main_process or elsewhere:
        return Findings()
    results = Path(prefixed(OUT))
    above = next(path for path in (results, *results.parents) if path.exists())
    if not above.is_dir():
        raise WorkflowError(f"outdir: {above} is a file, not a folder: name another")
    if above != results:  # a first run
        return Findings()
    try:
        return check(OUTPUTS)
    except ScatlasError as error:
        raise WorkflowError(str(error)) from error


FOUND.append(checked())
