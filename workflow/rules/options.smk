# Options of the scripts that the rules compute from the config.
import json

from scatlas.workflow.provenance import plate_rows, recipe

# Of load: the var column in which mitochondrial genes are found.
GENE_NAMES_OPTION = (
    f"--gene-names {shlex.quote(CONFIG.qc.gene_names)}" if CONFIG.qc.gene_names else ""
)
# Of normalize and hvg, which ignore rare genes.
RARE_GENE_OPTION = (
    f"--drop-rare-genes {CONFIG.qc.drop_rare_genes}"
    if CONFIG.qc.drop_rare_genes
    else ""
)


def rare_gene_counts(wildcards):
    """RARE_GENE_OPTION with the store of the counts, which normalize does not need otherwise."""
    store = with_prefix(f"{OUT}/plates/{wildcards.plate}/counts.zarr")
    return RARE_GENE_OPTION and f"--store {shlex.quote(store)} {RARE_GENE_OPTION}"


def recipe_option(wildcards):
    """Settings and plates of the atlas."""
    return recipe(CONFIG, atlas_plates())


def labels_option(wildcards):
    """Labels of the plates in the atlas."""
    return json.dumps({plate.plate: plate.labels for plate in atlas_plates()})


def consensus_options():
    """How many genes consensus takes, on how many plates they must be variable, and where it reads
    which plates are left out."""
    n_genes = CONFIG.consensus.n_top_genes_of(CONFIG.hvg)
    top = ["--n-top-genes", str(n_genes)] if n_genes else []
    if not CONFIG.plates.skips:
        at_least = [str(CONFIG.consensus.min_plates_of(len(PLATES)))]
        return shlex.join([*top, "--min-plates", *at_least])
    # A share is one of the plates that are left.
    at_least = map(str, CONFIG.consensus.min_plates_entries)
    manifests = with_prefix(f"{OUT}/manifests/hvg")
    return shlex.join([*top, "--min-plates", *at_least, "--manifests", manifests])


def consensus_genes(wildcards):
    """The gene list, which Snakemake compares again after the checkpoint."""
    return checkpoints.consensus.get().output.genes


def union_option(option):
    """An option of steps for which it matters that plates lack genes of the atlas."""
    return option if CONFIG.genes == "union" else ""


def doublets_option(wildcards):
    """Table with the doublet columns of the atlas's cells."""
    table = with_prefix(f"{OUT}/plates/{wildcards.plate}/doublets.parquet")
    return f"--doublets {shlex.quote(table)}" if CONFIG.doublets else ""


def scale_option():
    scale = CONFIG.scale
    return f"--scale {options(scale, prefix='scale')}" if scale else ""


def harmony_option():
    """Store with the corrected components of all cells."""
    store = with_prefix(f"{OUT}/harmony.zarr")
    return f"--harmony {shlex.quote(store)}" if CONFIG.harmony else ""


def map_option():
    """Store with the map of all cells."""
    store = with_prefix(f"{OUT}/map.zarr")
    return f"--map {shlex.quote(store)}" if CONFIG.maps_all_cells else ""


def clusters_option():
    """Where the cells find their clusters."""
    if "leiden" not in CONFIG.markers.by:
        return ""
    flag, name = (
        ("--map", "map.zarr") if CONFIG.maps_all_cells else ("--umap", "umap.h5ad")
    )
    return shlex.join([flag, with_prefix(f"{OUT}/{name}")])


def cell_groups(wildcards):
    """Labels of all cells, known after the checkpoint."""
    return checkpoints.cell_groups.get().output.groups


def digest_of_labels(wildcards):
    """Digest of the labels of a plate's cells: a change of it reruns the sums of the plate."""
    manifest = Path(checkpoints.cell_groups.get().output.manifest)
    # The manifest of an earlier run may lack a new plate.
    return json.loads(manifest.read_text("utf-8"))["plates"].get(wildcards.plate, "")


def wilcoxon_option():
    """The sample, and the table of its marker genes."""
    if not CONFIG.markers.wilcoxon:
        return ""
    umap, table = (
        with_prefix(f"{OUT}/{name}")
        for name in ("umap.h5ad", "tables/markers_wilcoxon.tsv")
    )
    return shlex.join(["--umap", umap, "--wilcoxon", table])


def report_options(wildcards):
    """Outputs of optional rules that the report shows."""
    words = []
    if CONFIG.doublets:
        doublets = each(f"{OUT}/plates/{{plate}}/doublets.json", options=True)
        words += ["--doublets", *doublets(wildcards)]
    if CONFIG.plates.skips:
        words += ["--consensus", with_prefix(f"{OUT}/manifests/consensus.json")]
    if CONFIG.maps_all_cells:
        words += ["--atlas", with_prefix(f"{OUT}/atlas.zarr")]
    if CONFIG.markers.by:
        words += ["--markers", with_prefix(f"{OUT}/tables/markers.tsv")]
        words += ["--means", with_prefix(f"{OUT}/markers.h5ad")]
    if CONFIG.integrate:
        words += ["--integrated", with_prefix(f"{OUT}/integrated.h5ad")]
    return shlex.join(words)


def cells_option():
    """The cells of the map: all of them, or the sample."""
    name = "atlas.zarr" if CONFIG.maps_all_cells else "umap.h5ad"
    return shlex.join(["--cells", with_prefix(f"{OUT}/{name}")])


def markers_option():
    """Table of the marker genes."""
    table = with_prefix(f"{OUT}/tables/markers.tsv")
    return shlex.join(["--markers", table]) if CONFIG.markers.by else ""


def integrated_option():
    """The sample with its map after mixing."""
    path = with_prefix(f"{OUT}/integrated.h5ad")
    return shlex.join(["--integrated", path]) if CONFIG.integrate else ""


def atlas_path():
    """Root metadata of the atlas, without the prefix or storage of the results."""
    return local(f"{CONFIG.atlas}/zarr.json")


def plate_labels(wildcards):
    return json.dumps(PLATES[wildcards.plate].labels)
