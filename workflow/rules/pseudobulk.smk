# Counts summed by plate and group of cells (config: pseudobulk).
# in:  plates/{plate}/{counts.zarr,qc.parquet}; cell_groups.h5, if the groups are clusters or labels
# out: plates/{plate}/pseudobulk.zarr, pseudobulk.h5ad


rule pseudobulk:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        kept=f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}"),
        groups=groups_of(PSEUDOBULK),
        script=script("pseudobulk"),
    output:
        sums=f"{OUT}/plates/{{plate}}/pseudobulk.zarr/zarr.json",
        manifest=f"{OUT}/manifests/pseudobulk/{{plate}}.json",
    log:
        f"{OUT}/logs/pseudobulk/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/pseudobulk/{{plate}}.tsv"
    priority: 1
    retries: 2
    group:
        together("small_plates_pseudobulk", "pseudobulk")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("pseudobulk")
    resources:
        **requests("pseudobulk", "small_plates"),
    params:
        by=PSEUDOBULK,
        groups=groups_option(PSEUDOBULK),
        digest=digest_of_labels(PSEUDOBULK),
        key="pseudobulk.by",
        complete="",
        code=code("pseudobulk"),
        store=subpath(input.store, parent=True),
        sums=subpath(output.sums, parent=True),
    message:
        "sums by group of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --qc {input.qc:q} --by {params.by:q} --key {params.key} {params.complete}"
        " {params.groups}"
        " --sums {params.sums:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule merge_pseudobulk:
    input:
        pseudobulk=each(f"{OUT}/manifests/pseudobulk/{{plate}}.json"),
        sums=ancient(each(f"{OUT}/plates/{{plate}}/pseudobulk.zarr/zarr.json")),
        script=script("merge_pseudobulk"),
    output:
        pseudobulk=f"{OUT}/pseudobulk.h5ad",
        manifest=f"{OUT}/manifests/merge_pseudobulk.json",
    log:
        f"{OUT}/logs/merge_pseudobulk.log",
    benchmark:
        f"{OUT}/benchmarks/merge_pseudobulk/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("merge_pseudobulk")
    resources:
        **requests("merge_pseudobulk", "small_atlas"),
    params:
        sums=each(f"{OUT}/plates/{{plate}}/pseudobulk.zarr", options=True),
        genes=CONFIG.genes,
        labels=labels_option,
        code=code("merge_pseudobulk"),
    message:
        "merging the sums by group"
    shell:
        f"{RUN}"
        " {input.script:q} --sums {params.sums:q} --genes {params.genes}"
        " --labels {params.labels:q} --pseudobulk {output.pseudobulk:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


if CONFIG.pseudobulk:
    RESULTS += rules.merge_pseudobulk.output
