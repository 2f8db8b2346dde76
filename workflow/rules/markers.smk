# Marker genes of the groups of markers.by: sums by group of each plate, added up and compared.
# in:  plates/{plate}/{counts.zarr,size_factors.parquet}, cell_groups.h5
# out: plates/{plate}/group_sums.h5, of a batch of plates that {plate} is the first of;
#      tables/markers.tsv, markers.h5ad
#
# Small plates share a job, because its start takes longer than the sums of one of them.
rule group_sums:
    input:
        load=each(f"{OUT}/manifests/load/{{plate}}.json", plates=batch),
        stores=ancient(
            each(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json", plates=batch)
        ),
        normalize=each(f"{OUT}/manifests/normalize/{{plate}}.json", plates=batch),
        size_factors=ancient(
            each(f"{OUT}/plates/{{plate}}/size_factors.parquet", plates=batch)
        ),
        groups=ancient(cell_groups),
        script=script("group_sums"),
    output:
        sums=f"{OUT}/plates/{{plate}}/group_sums.h5",
        manifest=f"{OUT}/manifests/group_sums/{{plate}}.json",
    log:
        f"{OUT}/logs/group_sums/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/group_sums/{{plate}}.tsv"
    priority: -2
    retries: 2
    group:
        together("small_plates_markers", "group_sums")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("group_sums")
    resources:
        **requests("group_sums", "small_plates"),
    params:
        by=CONFIG.markers.by,
        labels=digest_of_labels(CONFIG.markers.by, batch),
        code=code("group_sums"),
        stores=each(f"{OUT}/plates/{{plate}}/counts.zarr", options=True, plates=batch),
        size_factors=each(
            f"{OUT}/plates/{{plate}}/size_factors.parquet", options=True, plates=batch
        ),
    message:
        "sums by group of {wildcards.plate} for marker genes"
    shell:
        f"{RUN}"
        " {input.script:q} --stores {params.stores:q} --size-factors {params.size_factors:q}"
        " --groups {input.groups:q} --by {params.by:q} --sums {output.sums:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule markers:
    input:
        # Else it would not wait for sums that the checkpoint adds to the run.
        cell_groups=f"{OUT}/manifests/cell_groups.json",
        group_sums=batches(f"{OUT}/manifests/group_sums/{{plate}}.json"),
        sums=ancient(batches(f"{OUT}/plates/{{plate}}/group_sums.h5")),
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
        sums=batches(f"{OUT}/plates/{{plate}}/group_sums.h5", options=True),
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
