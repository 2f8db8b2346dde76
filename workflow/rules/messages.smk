# What the run says at its end: about plates that cannot be used, and about steps that were not run.
# in:  manifests/*/{plate}.refused, manifests/consensus.json
# out: nothing
from snakemake.logging import logger

from scatlas.workflow.left_out import Refusals, sentences

REFUSALS = Refusals(Path(with_prefix(f"{OUT}/manifests")), PLATES)


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
    if CONFIG.names_cells and not ATLAS and labels.exists():
        if not_used := json.loads(labels.read_text("utf-8"))["not_used"]:
            raise WorkflowError("; ".join(not_used))


def say_at_the_end():
    """Have Snakemake call the handler above, and then that of the workflow's own Snakefile: it runs no
    onsuccess of a module."""
    REFUSALS.watch()
    workflow._onsuccess = partial(say_first, name_what_is_missing, workflow._onsuccess)


def say_first(say, then, log):
    say()
    then(log)
