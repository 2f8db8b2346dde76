# What the run says at its end: about plates that cannot be used, and about steps that were not run.
# in:  manifests/*/{plate}.refused, manifests/consensus.json
# out: nothing
from snakemake.logging import logger

from scatlas.workflow.left_out import sentences


def refusals():
    """Stored messages of steps of one plate, by file, with the times of the files."""
    found = Path(with_prefix(f"{OUT}/manifests")).glob("*/*.refused")
    return {path: path.stat().st_mtime_ns for path in found if path.stem in PLATES}


# Those of earlier runs, which this run may mend.
OLD_REFUSALS = refusals()


def name_bad_plates():
    """After an error: which plates cannot be used, and what to do."""
    refused = {
        path.stem: path.read_text("utf-8")
        for path, time in sorted(refusals().items())
        if OLD_REFUSALS.get(path) != time
    }
    if refused:
        logger.error(
            f"{len(refused):,} of {len(PLATES):,} plates cannot be used. Mend them or remove them "
            "from the plate sheet, or set plates.on_error to skip, and give the same command "
            f"again:\n{sentences(refused)}"
        )


def name_what_is_missing():
    """After success: steps that are left, plates that the atlas lacks, and names not used."""
    # With checkpoints and groups Snakemake has ended early (its issue 823), and with --keep-going it
    # takes that for success.
    if left := list(workflow.dag.needrun_jobs()):
        raise WorkflowError(
            f"Snakemake ended with {len(left):,} of {len(workflow.dag):,} steps left, and none of "
            "them has failed: give the same command again, which continues"
        )
    consensus = Path(with_prefix(f"{OUT}/manifests/consensus.json"))
    if CONFIG.plates.skips and consensus.exists():
        if missing := plates_left_out(consensus):
            logger.warning(
                f"{len(missing):,} of {len(PLATES):,} plates are left out of the atlas "
                f"(plates.on_error is skip):\n{sentences(missing)}"
            )
    labels = Path(with_prefix(f"{OUT}/manifests/labels.json"))
    if CONFIG.labels and not ATLAS and labels.exists():
        if not_used := json.loads(labels.read_text("utf-8"))["not_used"]:
            raise WorkflowError("; ".join(not_used))


def say_at_the_end():
    """Have Snakemake call both, and then the handlers of the workflow's own Snakefile: it runs no
    onerror and onsuccess of a module."""
    for name, say in {
        "_onerror": name_bad_plates,
        "_onsuccess": name_what_is_missing,
    }.items():
        setattr(workflow, name, partial(say_first, say, getattr(workflow, name)))


def say_first(say, then, log):
    say()
    then(log)
