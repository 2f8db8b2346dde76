# Marker genes of the groups of markers.by: sums by group of each plate, added up and compared.
# in:  plates/{plate}/{counts.zarr,size_factors.parquet}, cell_groups.h5
# out: plates/{plate}/group_sums.h5ad, tables/markers.tsv, markers.h5ad
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
        by=CONFIG.markers.by,
        labels=digest_of_labels(CONFIG.markers.by),
        code=code("group_sums"),
        store=subpath(input.store, parent=True),
    message:
        "sums by group of {wildcards.plate} for its marker genes"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --size-factors {input.size_factors:q} --groups {input.groups:q} --by {params.by:q}"
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
