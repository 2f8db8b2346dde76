# Paths, options and ends of commands that the rules compute from the config.
import json
from functools import cache

from scatlas.workflow.provenance import plate_rows, recipe

# Ends of shell commands: of rules that read counts in blocks, of rules that may use a GPU, of all.
BLOCK_OPTIONS = " --block-budget {resources.budget}"
DEVICE_OPTIONS = (
    " --backend {resources.backend} --memory {resources.device_memory}"
    " --memory-limit {resources.device_limit} --gpu-share {resources.gpu_share}"
)
STEP_TAIL = (
    " --manifest {output.manifest:q} --threads {threads} --attempt {resources.attempt}"
    " 2>&1 | tee {log:q} | awk ' /^error: /{{next}} {{print; fflush()}}'"
)


wildcard_constraints:
    plate=r"[A-Za-z0-9._-]+",


def with_prefix(path):
    """Add the prefix of the results, for params: Snakemake adds it to inputs and outputs alone."""
    return str(PREFIX.replace_prefix(path))


def plate_path(plate):
    """Path of a plate's counts. Those of the demo are results and get the prefix."""
    return with_prefix(plate.path) if plate.is_simulated else plate.path


def script(name):
    """Path of a rule's script, as an input: Snakemake compares its content, not its age."""
    return str(HERE / "scripts" / f"{name}.py")


def code(name):
    """Hash of a script and of the package's modules that it imports: a change reruns its steps."""
    return code_hash(HERE / "scripts" / f"{name}.py")


def all_plates(pattern):
    """Fill in the name of each plate, in the order of the plate sheet."""
    return [pattern.format(plate=plate) for plate in PLATES]


def by_plate(pattern, plates=PLATES):
    """List PLATE=PATH for each plate: options of the scripts that read all plates."""
    return [f"{plate}={with_prefix(pattern.format(plate=plate))}" for plate in plates]


def atlas_plates():
    """Rows of the plate sheet whose plates are in the atlas, known after `consensus`."""
    if not CONFIG.plates.skips:
        return SHEET
    left_out = plates_left_out(Path(checkpoints.consensus.get().output.manifest))
    return [plate for plate in SHEET if plate.plate not in left_out]


def batch(wildcards):
    """Plates in the atlas that share a job, which has the name of the first one."""
    names = [plate.plate for plate in atlas_plates()]
    return [name for name in names if FIRST_OF_BATCH[name] == wildcards.plate]


def batches(pattern, options=False):
    """Paths of all batches; or options PLATE=PATH, for each plate with the path of its batch."""

    def fill_in(wildcards):
        names = [plate.plate for plate in atlas_plates()]
        paths = {name: pattern.format(plate=FIRST_OF_BATCH[name]) for name in names}
        if options:
            return [f"{name}={with_prefix(path)}" for name, path in paths.items()]
        return list(dict.fromkeys(paths.values()))

    return fill_in


def each(pattern, options=False, plates=None):
    """Paths, or options PLATE=PATH, of the plates in the atlas, or in a batch, for inputs and
    params."""

    def fill_in(wildcards):
        names = (
            plates(wildcards) if plates else [plate.plate for plate in atlas_plates()]
        )
        if options:
            return by_plate(pattern, names)
        return [pattern.format(plate=name) for name in names]

    return fill_in


def as_is(text):
    """Keep Snakemake from reading braces in users' text as wildcards of a param."""
    return lambda wildcards: text


# load finds mitochondrial genes in this var column.
gene_names, rare = CONFIG.qc.gene_names, CONFIG.qc.drop_rare_genes
GENE_NAMES_OPTION = f"--gene-names {shlex.quote(gene_names)}" if gene_names else ""
# normalize and hvg ignore rare genes.
RARE_GENE_OPTION = f"--drop-rare-genes {rare}" if rare else ""


def sections(**parts):
    """Sections of the config, for the scripts that read them."""
    return as_is(sections_option(**parts))


def result(option, name, when=True):
    """An option with a file or store among the results; nothing if no step makes it."""
    return shlex.join([option, with_prefix(f"{OUT}/{name}")]) if when else ""


def stores(*names):
    """Options with the stores of the merged plates and of the steps of the map."""
    of_atlas = {"components": COMPONENTS, "merged": "merged", "pca": "pca"}
    paths = (f"{of_atlas.get(name, f'embedding/{name}')}.zarr" for name in names)
    return " ".join(map(result, (f"--{name}" for name in names), paths))


def first_file(store):
    """The file by which Snakemake knows a store."""
    return f"{OUT}/{store}/zarr.json" if store.endswith(".zarr") else f"{OUT}/{store}"


def of_plate(option, name, when=True):
    """The same of one plate."""
    return lambda wildcards: result(option, f"plates/{wildcards.plate}/{name}", when)


def union_option(option):
    """An option of steps for which it matters that plates lack genes of the atlas."""
    return option if CONFIG.genes == "union" else ""


# The cells of the map: all of them, or the sample; and the steps that make it.
MAPPED = "atlas" if CONFIG.maps_all_cells else "embedding"
CELLS = "atlas.zarr" if CONFIG.maps_all_cells else "umap.h5ad"
REPORTS_SAMPLE = bool(not CONFIG.maps_all_cells or CONFIG.annotate)  # genes of types
# obs columns of the sums of counts.
PSEUDOBULK = CONFIG.pseudobulk.by if CONFIG.pseudobulk else []
EFFECTS = CONFIG.effects.columns if CONFIG.effects else []


def waits_for_groups(by):
    """Whether sums by these columns wait for clusters or labels; else they are made at once."""
    return "leiden" in by or (CONFIG.names_cells and bool(by))


# Columns of cell_groups.h5.
GROUPED = [*CONFIG.markers.by]
GROUPED += [name for by in (PSEUDOBULK, EFFECTS) if waits_for_groups(by) for name in by]
# The user's names of clusters and cells, for rules that join or show them.
LABELS_MANIFEST = [f"{OUT}/manifests/labels.json"] if CONFIG.names_cells else []
LABELS_STORE = [ancient(f"{OUT}/labels.zarr/zarr.json")] if CONFIG.names_cells else []
# Classifiers of types: those of a run, also if it maps new plates onto an atlas.
ANNOTATORS = {
    source: f"{OUT}/annotator/{source}.h5ad"
    for source in (CONFIG.annotate.sources if CONFIG.annotate else ())
}
LEARNS_FROM_PLATES = bool(
    CONFIG.annotate and CONFIG.annotate.label and not CONFIG.annotate.reference
)
ANNOTATORS_OPTION = shlex.join(
    [
        "--annotators",
        *(f"{name}={with_prefix(path)}" for name, path in ANNOTATORS.items()),
    ]
)
LABELS_OPTION = result("--labels", "labels.zarr", CONFIG.names_cells)
# Components of the neighbours, map and clusters: their step and store, and, if they are not those of
# pca, their name and how scripts get them.
COMPONENTS, BASIS = CONFIG.basis
OTHER = COMPONENTS != "pca"
BASIS_OPTION = shlex.join(["--basis", BASIS]) if OTHER else ""
OBSM_OPTION = (
    shlex.join(["--obsm", f"{BASIS}={with_prefix(f'{OUT}/{COMPONENTS}.zarr')}"])
    if OTHER
    else ""
)
OBSM_MANIFEST = [f"{OUT}/manifests/{COMPONENTS}.json"] if OTHER else []
OBSM_STORE = [ancient(f"{OUT}/{COMPONENTS}.zarr/zarr.json")] if OTHER else []
DOUBLETS_OPTION = of_plate("--doublets", "doublets.parquet", CONFIG.doublets)
MARKERS_OPTION = result("--markers", "tables/markers.tsv", CONFIG.markers.by)
INTEGRATED_OPTION = result("--integrated", "integrated.h5ad", CONFIG.integrate)
EFFECTS_OPTION = result("--effects", "effects.h5ad", CONFIG.effects)


def shown(name, category, label, when=True):
    """An output with its place in Snakemake's report, and the caption of its name.

    A name without a suffix is a folder: of one picture for each {color}, known after loading.
    """
    if not when:
        return []
    stem, _, suffix = name.partition(".")
    path = f"{OUT}/{'tables' if suffix == 'tsv' else 'figures'}/{name}"
    return report(
        path if suffix else directory(path),
        caption=f"../report/{stem}.rst",
        category=category,
        labels={"result": label},
        patterns=[] if suffix else ["{color}.png"],
    )


def qc_option(wildcards):
    """Section qc of a plate; a column of the sheet has one value, which groups all its cells."""
    is_label = bool(PLATES[wildcards.plate].labels.get(CONFIG.qc.by))
    by = "plate" if is_label else CONFIG.qc.by
    return sections_option(qc=CONFIG.qc.model_copy(update={"by": by}))


def rare_gene_counts(wildcards):
    """RARE_GENE_OPTION with the store of the counts, which normalize does not need otherwise."""
    store = of_plate("--store", "counts.zarr")(wildcards)
    return RARE_GENE_OPTION and f"{store} {RARE_GENE_OPTION}"


def recipe_option(wildcards):
    """Settings and plates of the atlas."""
    return recipe(CONFIG, atlas_plates())


def labels_option(wildcards):
    """Labels of the plates in the atlas."""
    return json.dumps({plate.plate: plate.labels for plate in atlas_plates()})


def plate_labels(wildcards):
    return json.dumps(PLATES[wildcards.plate].labels)


def consensus_options():
    """How many genes consensus takes, of plates with how many cells, on how many of them genes must
    be variable, and where it reads which plates are small or left out."""
    n_genes, wanted = CONFIG.consensus.n_top_genes_of(CONFIG.hvg), CONFIG.consensus
    return shlex.join(
        [
            *(["--n-top-genes", str(n_genes)] if n_genes else []),
            *["--min-plates", *map(str, wanted.min_plates_entries)],
            *["--min-cells", str(wanted.min_cells)],
            *["--manifests", with_prefix(f"{OUT}/manifests/hvg")],
            *(["--leave-out"] if CONFIG.plates.skips else []),
        ]
    )


def also_option():
    """Genes that the atlas gets in any case, and where their names are looked up."""
    if not CONFIG.consensus.also:
        return ""
    stores = by_plate(f"{OUT}/plates/{{plate}}/counts.zarr")
    words = shlex.join(["--also", *CONFIG.consensus.also, "--stores", *stores])
    return as_is(f"{words} {GENE_NAMES_OPTION}")


def clusters_option():
    """Where the cells find their clusters."""
    option, name = (
        ("--map", "map.zarr") if CONFIG.maps_all_cells else ("--umap", "umap.h5ad")
    )
    return result(option, name, "leiden" in GROUPED)


def groups_of(by):
    """Groups of the cells, as an input of sums that wait for them."""
    return ancient(cell_groups) if waits_for_groups(by) else []


def groups_option(by):
    """Where sums find their groups: in cell_groups.h5, or in obs and the plate sheet."""
    if waits_for_groups(by):
        return result("--groups", "cell_groups.h5")

    def labels(wildcards):
        there = {**PLATES[wildcards.plate].labels, "plate": wildcards.plate}
        given = {name: there[name] for name in by if there.get(name)}
        return f"--labels {shlex.quote(json.dumps(given))}" if given else ""

    return labels


def by_gene_option(wildcards, input):
    """Genes of the copy by gene, if it does not have all."""
    if not input.genes:
        return ""
    names = CONFIG.by_gene.names
    return shlex.join(
        ["--genes", str(input.genes), *(["--also", *names] if names else [])]
    )


def labelled_plates(wildcards):
    """Options with the plates and their kept cells, if these are learnt from."""
    if not LEARNS_FROM_PLATES:
        return ""
    stores = each(f"{OUT}/plates/{{plate}}/counts.zarr", options=True)
    kept = each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}", options=True)
    words = ["--stores", *stores(wildcards), "--qc", *kept(wildcards)]
    return shlex.join([*words, "--labels", labels_option(wildcards)])


def annotations_option(wildcards):
    """Types of the cells of all plates, their classifiers, and the columns that they become."""
    if not CONFIG.annotate:
        return ""
    cells = each(f"{OUT}/plates/{{plate}}/annotation.parquet", options=True)
    words = ["--key", CONFIG.annotate.key, "--out", with_prefix(f"{OUT}/tables")]
    words += ["--compared", *CONFIG.annotate.label[-1:]]
    cells = shlex.join(["--annotations", *cells(wildcards), *words])
    return f"{cells} {ANNOTATORS_OPTION}"


def wilcoxon_option():
    """The sample, and the table of its marker genes."""
    table = result("--wilcoxon", "tables/markers_wilcoxon.tsv")
    return f"{result('--umap', 'umap.h5ad')} {table}" if CONFIG.markers.wilcoxon else ""


def report_options(wildcards):
    """Outputs of optional rules that the report shows."""
    doublets = each(f"{OUT}/plates/{{plate}}/doublets.json", options=True)
    words = [
        shlex.join(["--doublets", *doublets(wildcards)]) if CONFIG.doublets else "",
        result("--consensus", "manifests/consensus.json"),
        result("--umap", "umap.h5ad", REPORTS_SAMPLE),
        result("--atlas", "atlas.zarr", CONFIG.maps_all_cells),
        MARKERS_OPTION,
        result("--means", "markers.h5ad", CONFIG.markers.by),
        INTEGRATED_OPTION,
        EFFECTS_OPTION,
        LABELS_OPTION,
    ]
    return " ".join(filter(None, words))


# Facts that are known after a checkpoint ----------------------------------------------------------


def consensus_genes(wildcards):
    """The gene list, which Snakemake compares again after the checkpoint."""
    return checkpoints.consensus.get().output.genes


def cell_groups(wildcards):
    """Labels of all cells."""
    return checkpoints.cell_groups.get().output.groups


@cache
def facts(manifest, _):
    """Content of a manifest since its time: the rules of all plates read it."""
    return json.loads(manifest.read_text("utf-8"))


def digest_of_labels(by, plates=lambda wildcards: [wildcards.plate]):
    """Digest of the labels of a plate's cells: a change of it reruns the sums of the plate, or of
    its batch."""
    if by is not CONFIG.markers.by and not waits_for_groups(by):
        return ""

    def digest(wildcards):
        manifest = Path(checkpoints.cell_groups.get().output.manifest)
        # The manifest of an earlier run may lack a new plate, or a column.
        found = facts(manifest, manifest.stat().st_mtime_ns)["plates"]
        names = plates(wildcards)
        return "-".join(
            found.get(plate, {}).get(name, "") for plate in names for name in by
        )

    return digest


# Values of all plates up to which the copy has all genes, if by_gene.genes is auto.
MAX_VALUES_OF_ALL_GENES = 2_000_000_000


@cache
def has_few_values(_):
    """Whether the copy has all genes, since the time of `consensus`, which comes after all plates."""
    paths = each(f"{OUT}/manifests/load/{{plate}}.json")(None)
    texts = (Path(with_prefix(path)).read_text("utf-8") for path in paths)
    n_values = sum(json.loads(text)["n_values"] for text in texts)
    return n_values <= MAX_VALUES_OF_ALL_GENES


def genes_by_gene(wildcards):
    """The atlas's genes, if the copy has only these; with auto, the checkpoint knows the plates."""
    choice = CONFIG.by_gene.genes
    if choice == "all":
        return []
    genes = consensus_genes(wildcards)
    if choice == "auto" and has_few_values(os.stat(genes).st_mtime_ns):
        return []
    return genes
