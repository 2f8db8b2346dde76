# One plate, alone: every rule here depends on its own plate and no other.
# in:  the plate sheet's files
# out: plates/{plate}/{counts.zarr,qc.parquet,qc_summary.json,size_factors.parquet,hvg.parquet}
#
# Rules are chained by manifests, which hold checksums and are compared by content; the stores
# themselves only have to be there (ancient). A store is named by its root metadata file: with
# directory() Snakemake would write into it.


rule load:
    input:
        source=source_file,
        reference=simulated_reference,
        script=script("load"),
    output:
        store=f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json",
        manifest=f"{OUT}/manifests/load/{{plate}}.json",
    log:
        f"{OUT}/logs/load/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/load/{{plate}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: plate_threads
    resources:
        mem_mb=plate_memory,
        runtime=load_runtime,
        disk_mb=counts_disk,
        attempt=which_attempt,
        budget=BUDGET,
    params:
        source=source_path,
        stamp=source_stamp,
        mt_prefix=as_is(CONFIG.qc.mt_prefix),
        gene_names=as_is(GENE_NAMES),
        code=code("load"),
        store=subpath(output.store, parent=True),
    message:
        "loading {wildcards.plate}"
    shell:
        "python {input.script:q} --plate {wildcards.plate} --source {params.source:q}"
        " --store {params.store:q} --mt-prefix {params.mt_prefix:q} {params.gene_names}"
        " --manifest {output.manifest:q}"
        " --threads {threads}"
        " --attempt {resources.attempt} --block-budget {resources.budget} 2>&1 | tee {log:q}"


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
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=plate_memory,
        runtime=table_runtime,
        attempt=which_attempt,
    params:
        options=as_is(options(CONFIG.qc)),
        code=code("qc_filter"),
        store=subpath(input.store, parent=True),
    message:
        "choosing cells of {wildcards.plate}"
    shell:
        "python {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " {params.options} --table {output.table:q} --summary {output.summary:q}"
        " --manifest {output.manifest:q} --threads {threads}"
        " --attempt {resources.attempt} 2>&1 | tee {log:q}"


rule normalize:
    input:
        kept=f"{OUT}/manifests/{KEPT}/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/{KEPT_TABLE}"),
        # The counts are read only to take those of rare genes off.
        load=[rules.load.output.manifest] if RARE else [],
        store=[ancient(rules.load.output.store)] if RARE else [],
        script=script("normalize"),
    output:
        table=f"{OUT}/plates/{{plate}}/size_factors.parquet",
        manifest=f"{OUT}/manifests/normalize/{{plate}}.json",
    log:
        f"{OUT}/logs/normalize/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/normalize/{{plate}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: normalize_threads
    resources:
        mem_mb=plate_memory,
        runtime=normalize_runtime,
        attempt=which_attempt,
        budget=BUDGET,
    params:
        options=options(CONFIG.normalize),
        rare=rare_counts,
        code=code("normalize"),
    message:
        "size factors of {wildcards.plate}"
    shell:
        "python {input.script:q} --plate {wildcards.plate} --qc {input.qc:q} {params.options}"
        " {params.rare} --table {output.table:q} --manifest {output.manifest:q}"
        " --threads {threads} --attempt {resources.attempt}"
        " --block-budget {resources.budget} 2>&1 | tee {log:q}"


rule hvg:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        normalize=rules.normalize.output.manifest,
        size_factors=ancient(rules.normalize.output.table),
        script=script("hvg"),
    output:
        table=f"{OUT}/plates/{{plate}}/hvg.parquet",
        manifest=f"{OUT}/manifests/hvg/{{plate}}.json",
    log:
        f"{OUT}/logs/hvg/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/hvg/{{plate}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: gpu_threads
    resources:
        mem_mb=hvg_memory,
        runtime=hvg_runtime,
        attempt=which_attempt,
        budget=BUDGET,
        gpu=GPUS,
        backend=BACKEND,
        device_memory=DEVICE_MEMORY,
        device_limit=DEVICE_LIMIT,
    params:
        options=options(CONFIG.hvg),
        min_cells=CONFIG.qc.min_cells or 0,
        rare=RARE,
        code=code("hvg"),
        store=subpath(input.store, parent=True),
    message:
        "highly variable genes of {wildcards.plate}"
    shell:
        "python {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --size-factors {input.size_factors:q} {params.options} --min-cells {params.min_cells}"
        " {params.rare} --table {output.table:q} --manifest {output.manifest:q}"
        " --threads {threads} --attempt {resources.attempt}"
        " --block-budget {resources.budget}"
        " --backend {resources.backend} --memory {resources.device_memory}"
        " --memory-limit {resources.device_limit} 2>&1 | tee {log:q}"
