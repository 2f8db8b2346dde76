# Doublets of each plate (config: doublets).
# in:  plates/{plate}/{counts.zarr,qc.parquet,qc_summary.json}
# out: plates/{plate}/{doublets.parquet,doublets.json}


rule doublets:
    input:
        load=f"{OUT}/manifests/load/{{plate}}.json",
        store=ancient(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json"),
        qc_filter=f"{OUT}/manifests/qc_filter/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/qc.parquet"),
        qc_summary=ancient(f"{OUT}/plates/{{plate}}/qc_summary.json"),
        script=script("doublets"),
    output:
        table=f"{OUT}/plates/{{plate}}/doublets.parquet",
        summary=f"{OUT}/plates/{{plate}}/doublets.json",
        manifest=f"{OUT}/manifests/doublets/{{plate}}.json",
    log:
        f"{OUT}/logs/doublets/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/doublets/{{plate}}.tsv"
    priority: 1
    retries: 2
    group:
        together("small_plates", "doublets")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("doublets")
    resources:
        **requests("doublets", "small_plates"),
    params:
        options=sections(doublets=CONFIG.doublets),
        n_top_genes=CONFIG.hvg.n_top_genes,
        seed=CONFIG.seed,
        code=code("doublets"),
        store=subpath(input.store, parent=True),
    message:
        "doublets of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --qc {input.qc:q} --qc-summary {input.qc_summary:q} {params.options}"
        " --n-top-genes {params.n_top_genes} --seed {params.seed} --table {output.table:q}"
        " --summary {output.summary:q} --previous {input.qc_filter:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"
