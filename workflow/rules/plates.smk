# One plate alone: no rule here depends on another plate, except that load compares their genes.
# in:  the plate sheet's files
# out: plates/{plate}/{counts.zarr,moments.parquet,qc.parquet,qc_summary.json,size_factors.parquet,hvg.parquet}
#
# Rules depend on manifests, which hold checksums and are compared by content; the stores themselves
# only have to exist (ancient). The root metadata file stands for a store: with directory() Snakemake
# would write into it.
#
# The steps after load have a higher priority: they go on with a plate, whose store is still in the
# page cache, before the next plate is loaded. Copies by gene, then sums by group, have a lower one.


rule load:
    input:
        source=source_file,
        reference=simulated_reference,
        script=script("load"),
    output:
        store=f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json",
        moments=f"{OUT}/plates/{{plate}}/moments.parquet",
        manifest=f"{OUT}/manifests/load/{{plate}}.json",
    log:
        f"{OUT}/logs/load/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/load/{{plate}}.tsv"
    retries: 2
    group:
        together("small_plates", "load")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("load")
    resources:
        **requests("load", "small_plates"),
    params:
        source=source_option,
        stamp=source_stamp,
        mt_prefix=as_is(CONFIG.qc.mt_prefix),
        gene_names=as_is(GENE_NAMES_OPTION),
        code=code("load"),
        store=subpath(output.store, parent=True),
    message:
        "loading {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} {params.source}"
        " --store {params.store:q} --moments {output.moments:q}"
        " --mt-prefix {params.mt_prefix:q} {params.gene_names}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule qc_filter:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        script=script("qc_filter"),
    output:
        table=f"{OUT}/plates/{{plate}}/qc.parquet",
        summary=f"{OUT}/plates/{{plate}}/qc_summary.json",
        manifest=f"{OUT}/manifests/qc_filter/{{plate}}.json",
    log:
        f"{OUT}/logs/qc_filter/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/qc_filter/{{plate}}.tsv"
    priority: 1
    retries: 2
    group:
        together("small_plates", "qc_filter", "tables")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("qc_filter")
    resources:
        **requests("qc_filter", "small_plates"),
    params:
        options=qc_option,
        code=code("qc_filter"),
        store=subpath(input.store, parent=True),
    message:
        "choosing cells of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " {params.options} --table {output.table:q} --summary {output.summary:q}"
        " --previous {input.load:q}"
        f"{STEP_TAIL}"


rule normalize:
    input:
        kept=f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}"),
        # Counts are read only to subtract those of rare genes.
        load=[rules.load.output.manifest] if RARE_GENE_OPTION else [],
        store=[ancient(rules.load.output.store)] if RARE_GENE_OPTION else [],
        script=script("normalize"),
    output:
        table=f"{OUT}/plates/{{plate}}/size_factors.parquet",
        manifest=f"{OUT}/manifests/normalize/{{plate}}.json",
    log:
        f"{OUT}/logs/normalize/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/normalize/{{plate}}.tsv"
    priority: 1
    retries: 2
    group:
        together("small_plates", "normalize", "tables")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("normalize")
    resources:
        **requests("normalize", "small_plates"),
    params:
        options=sections(normalize=CONFIG.normalize),
        rare=rare_gene_counts,
        code=code("normalize"),
    message:
        "size factors of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --qc {input.qc:q} {params.options}"
        " {params.rare} --table {output.table:q} --previous {input.kept:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule hvg:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        normalize=rules.normalize.output.manifest,
        size_factors=ancient(rules.normalize.output.table),
        moments=ancient(rules.load.output.moments),
        script=script("hvg"),
    output:
        table=f"{OUT}/plates/{{plate}}/hvg.parquet",
        manifest=f"{OUT}/manifests/hvg/{{plate}}.json",
    log:
        f"{OUT}/logs/hvg/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/hvg/{{plate}}.tsv"
    priority: 1
    retries: 2
    group:
        together("small_plates", "hvg")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("hvg")
    resources:
        **requests("hvg", "small_plates"),
    params:
        options=sections(hvg=CONFIG.hvg),
        min_cells=CONFIG.qc.min_cells or 0,
        rare=RARE_GENE_OPTION,
        code=code("hvg"),
        store=subpath(input.store, parent=True),
    message:
        "highly variable genes of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --moments {input.moments:q} --size-factors {input.size_factors:q} {params.options}"
        " --min-cells {params.min_cells} {params.rare} --table {output.table:q}"
        " --previous {input.normalize:q}"
        f"{BLOCK_OPTIONS}{DEVICE_OPTIONS}{STEP_TAIL}"
