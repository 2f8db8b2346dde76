# Marker genes of the groups of markers.by: sums by group of each plate, added up and compared.
# in:  plates/{plate}/{counts.zarr,size_factors.parquet}, map.zarr or umap.h5ad
# out: cell_groups.h5, plates/{plate}/group_sums.h5ad, tables/markers.tsv, markers.h5ad
BY_CLUSTER = "leiden" in CONFIG.markers.by
# Only other columns may be labels: a new name of a cluster sums no counts again.
BY_LABEL = CONFIG.names_cells and set(CONFIG.markers.by) - {"leiden", "plate"}
# The steps that give each cell its cluster, and their output.
CLUSTERED = "map" if CONFIG.maps_all_cells else "embedding"
CLUSTERS = "map.zarr/zarr.json" if CONFIG.maps_all_cells else "umap.h5ad"


# A checkpoint, so that Snakemake compares the labels after they are made: only plates whose cells
# have other labels are summed again.
checkpoint cell_groups:
    input:
        load=each(f"{OUT}/manifests/load/{{plate}}.json"),
        stores=ancient(each(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json")),
        normalize=each(f"{OUT}/manifests/normalize/{{plate}}.json"),
        size_factors=ancient(each(f"{OUT}/plates/{{plate}}/size_factors.parquet")),
        clustered=[f"{OUT}/manifests/{CLUSTERED}.json"] if BY_CLUSTER else [],
        clusters=[ancient(f"{OUT}/{CLUSTERS}")] if BY_CLUSTER else [],
        labels_manifest=LABELS_MANIFEST if BY_LABEL else [],
        names=LABELS_STORE if BY_LABEL else [],
        script=script("cell_groups"),
    output:
        groups=f"{OUT}/cell_groups.h5",
        manifest=f"{OUT}/manifests/cell_groups.json",
    log:
        f"{OUT}/logs/cell_groups.log",
    benchmark:
        f"{OUT}/benchmarks/cell_groups/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("cell_groups")
    resources:
        **requests("cell_groups"),
    params:
        stores=each(f"{OUT}/plates/{{plate}}/counts.zarr", options=True),
        size_factors=each(f"{OUT}/plates/{{plate}}/size_factors.parquet", options=True),
        by=CONFIG.markers.by,
        labels=labels_option,
        clusters=clusters_option(),
        names=result("--names", "labels.zarr", BY_LABEL),
        code=code("cell_groups"),
    message:
        "groups of the cells"
    shell:
        f"{RUN}"
        " {input.script:q} --stores {params.stores:q} --size-factors {params.size_factors:q}"
        " --by {params.by:q} --labels {params.labels:q} {params.clusters}"
        " {params.names}"
        " --groups {output.groups:q}"
        f"{STEP_TAIL}"


rule group_sums:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        normalize=rules.normalize.output.manifest,
        size_factors=ancient(rules.normalize.output.table),
        groups=ancient(cell_groups),
        script=script("group_sums"),
    output:
        sums=f"{OUT}/plates/{{plate}}/group_sums.h5ad",
        manifest=f"{OUT}/manifests/group_sums/{{plate}}.json",
    log:
        f"{OUT}/logs/group_sums/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/group_sums/{{plate}}.tsv"
    retries: 2
    group:
        together("small_plates_markers", "group_sums")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("group_sums")
    resources:
        **requests("group_sums", "small_plates"),
    params:
        labels=digest_of_labels,
        code=code("group_sums"),
        store=subpath(input.store, parent=True),
    message:
        "sums by group of {wildcards.plate} for its marker genes"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --size-factors {input.size_factors:q} --groups {input.groups:q}"
        " --sums {output.sums:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule markers:
    input:
        # Else it would not wait for sums that the checkpoint adds to the run.
        cell_groups=f"{OUT}/manifests/cell_groups.json",
        group_sums=each(f"{OUT}/manifests/group_sums/{{plate}}.json"),
        sums=ancient(each(f"{OUT}/plates/{{plate}}/group_sums.h5ad")),
        atlas_genes=f"{OUT}/consensus_genes.tsv",
        labels_manifest=LABELS_MANIFEST,
        labels=LABELS_STORE,
        embedding=([rules.embedding.output.manifest] if CONFIG.markers.wilcoxon else []),
        umap=(
            [ancient(rules.embedding.output.embedding)]
            if CONFIG.markers.wilcoxon
            else []
        ),
        script=script("markers"),
    output:
        table=shown("markers.tsv", "Markers", "Marker genes (table)"),
        wilcoxon=shown(
            "markers_wilcoxon.tsv",
            "Markers",
            "Marker genes by Wilcoxon (table)",
            CONFIG.markers.wilcoxon,
        ),
        means=f"{OUT}/markers.h5ad",
        manifest=f"{OUT}/manifests/markers.json",
    log:
        f"{OUT}/logs/markers.log",
    benchmark:
        f"{OUT}/benchmarks/markers/atlas.tsv"
    retries: 2
    group:
        small_report
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("markers")
    resources:
        **requests("markers", "small_atlas"),
    params:
        sums=each(f"{OUT}/plates/{{plate}}/group_sums.h5ad", options=True),
        genes=CONFIG.genes,
        n_genes=CONFIG.markers.n_genes,
        min_fold_change=CONFIG.markers.min_fold_change,
        wilcoxon=wilcoxon_option(),
        labels=LABELS_OPTION,
        code=code("markers"),
    message:
        "marker genes"
    shell:
        f"{RUN}"
        " {input.script:q} --sums {params.sums:q} --genes {params.genes}"
        " --atlas-genes {input.atlas_genes:q} --n-genes {params.n_genes}"
        " --min-fold-change {params.min_fold_change}"
        " --table {output.table:q} --means {output.means:q} {params.wilcoxon} {params.labels}"
        f"{STEP_TAIL}"


RESULTS += rules.markers.output
