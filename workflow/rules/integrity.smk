# Outputs of earlier runs, compared with what their steps have left (scatlas.integrity).
# in:  manifests/*.json, manifests/*/{plate}.json with their run records
# out: nothing; steps that failed or whose outputs are damaged are told to Snakemake
from snakemake.io import apply_wildcards

from scatlas.integrity import Findings, check


def manifests():
    """Each step's manifest, of optional rules as of others."""
    for rule in workflow.rules:
        if "manifest" in rule.output.keys() and str(HERE) in str(rule.snakefile):
            pattern = str(rule.output.manifest)
            paths = [apply_wildcards(pattern, {"plate": plate}) for plate in PLATES]
            yield from map(Path, dict.fromkeys(paths))


def checked():
    # Jobs on a cluster, each a Snakemake of its own, run what was planned; results in a storage
    # are Snakemake's to look at.
    elsewhere = workflow.storage_settings.default_storage_provider
    if not workflow.is_main_process or elsewhere:
        return Findings()
    if not Path(prefixed(OUT)).exists():  # a first run
        return Findings()
    try:
        return check(manifests())
    except ScatlasError as error:
        raise WorkflowError(str(error)) from error


FOUND.append(checked())
