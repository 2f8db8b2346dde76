# The files of the plates: paths, ages, addresses, and the checks of `load`.
from functools import cache
from importlib.util import find_spec

from scatlas.io.files.listing import stamp
from scatlas.workflow.job_environment import job_environment
from scatlas.workflow.job_environment import set_options

# Plates at addresses that a storage plugin of Snakemake reads: it copies them to this machine for
# `load` and notices changes. Without the plugin, `load` reads the address itself.
PLUGINS = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "http": "http", "https": "http"}
# Runs side by side have their own copies, which Snakemake deletes after use.
if workflow.is_main_process:
    copies = workflow.storage_settings
    of_outdir = Path(copies.local_storage_prefix, OUT.replace(os.sep, "_"))
    if copies.remote_job_local_storage_prefix == copies.local_storage_prefix:
        copies.remote_job_local_storage_prefix = of_outdir
    copies.local_storage_prefix = of_outdir


@cache
def s3_with(profile, requester_pays):
    """A storage for plates with these options."""
    tag = "_".join(filter(None, ["s3", profile, requester_pays]))
    _ = storage.register_storage("s3")  # else the next one returns this
    provider = storage.register_storage("s3", tag=tag)
    try:
        set_options(provider, profile, requester_pays=requester_pays == "yes")
    except ScatlasError as error:
        raise WorkflowError(str(error)) from error
    return getattr(storage, tag)


def storage_of(plate, plugin):
    if plate.has_s3_options:
        return s3_with(plate.s3_profile, plate.s3_requester_pays)
    return getattr(storage, plugin)


STORED = {
    plate.plate: storage_of(plate, plugin)(plate.path)
    for plate in SHEET
    if (plugin := PLUGINS.get(plate.path.partition("://")[0]))
    and (plate.has_s3_options or find_spec(f"snakemake_storage_plugin_{plugin}"))
    # There are no folders over http.
    and (plugin != "http" or plate.path.endswith((".h5ad", ".h5", ".loom")))
}
# `load` compares each plate's genes with those of the first plate. Snakemake copies one stored plate
# at a time; of these, `consensus` compares the genes. It also does where bad plates are left out,
# for the first plate may be one of them. Samples of one file have the same genes.
COMPARED_WITH_FIRST = (
    CONFIG.genes == "same"
    and SHEET[0].plate not in STORED
    and not CONFIG.plates.skips
    and not CONFIG.plates.by
)
os.environ.update(
    job_environment(
        CONFIG,
        SHEET,
        reference=plate_path(SHEET[0]) if COMPARED_WITH_FIRST else "",
        reference_counts=SHEET[0].counts or CONFIG.source.counts,
    )
)
stamp_of = cache(stamp)


def source_path(wildcards, input):
    if wildcards.plate in STORED or SPLITS:
        return str(input.source)
    return plate_path(PLATES[wildcards.plate])


def source_option(wildcards, input):
    """The plate's source, and for a sample the file of all samples, whose stamp is recorded."""
    plate = PLATES[wildcards.plate]
    words = ["--source", source_path(wildcards, input)]
    if SPLITS:  # which has put the counts in X
        words += ["--origin", CONFIG.plates.path]
    else:
        if CONFIG.plates.by:
            words += ["--by", CONFIG.plates.by, "--sample", plate.sample]
        counts, lists = plate.counts or CONFIG.source.counts, CONFIG.source.lists
        words += ["--counts", counts] if counts != "X" else []
        words += ["--lists", lists] if lists else []
    if (plate.fractional or CONFIG.source.fractional) == "round":
        words += ["--fractional", "round"]
    return shlex.join(words)


def source_file(wildcards):
    """The file whose age tells whether a plate is new; for a Zarr store its root metadata."""
    rerun_unfinished_steps()
    plate = PLATES[wildcards.plate]
    path = plate.path
    if plate.is_remote:
        return STORED.get(plate.plate, [])
    if plate.is_simulated:
        return path
    if CONFIG.plates.by and not SPLITS:
        return []  # many files, whose stamp tells
    if SPLITS:
        return f"{SAMPLES}/{plate.plate}.zarr"
    return local_source(path)


def local_source(path):
    # Snakemake would read a brace as a wildcard. The stamp tells changes of such files.
    if "{" in path:
        return []
    if Path(path).is_dir():
        roots = (Path(path, name) for name in ("zarr.json", ".zattrs", ".zgroup"))
        path = next((str(root) for root in roots if root.exists()), path)
    # Without the prefix or storage of the results.
    return local(path)


def source_stamp(wildcards):
    """Age and size of a plate's file, or of every file of a Zarr store.

    Snakemake only asks whether the source is younger than the results: it misses a replacement by
    an older file, and counts or columns of a Zarr store that were changed in place.
    """
    plate = PLATES[wildcards.plate]
    return None if plate.is_remote or plate.is_simulated else stamp_of(plate.path)


def simulated_reference(wildcards):
    """The demo's first plate: the workflow has to make it before `load` compares genes with it."""
    first = SHEET[0]
    return [ancient(first.path)] if first.is_simulated and COMPARED_WITH_FIRST else []
