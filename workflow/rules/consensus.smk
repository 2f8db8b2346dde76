# The consensus genes of all plates, and each plate reduced to them.
# in:  plates/{plate}/hvg.parquet of all plates; plates/{plate}/counts.zarr
# out: consensus_genes.tsv, consensus.parquet, plates/{plate}/{selected.zarr,gram.zarr}


# A checkpoint, so that Snakemake compares the list after it is made: if a new plate does not change
# it, no other plate is selected again.
checkpoint consensus:
    input:
        hvg=all_plates(f"{OUT}/manifests/hvg/{{plate}}.json"),
        tables=ancient(all_plates(f"{OUT}/plates/{{plate}}/hvg.parquet")),
        # Names of genes that are looked up.
        stores=(
            ancient(all_plates(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json"))
            if CONFIG.consensus.also
            else []
        ),
        script=script("consensus"),
    output:
        genes=f"{OUT}/consensus_genes.tsv",
        table=f"{OUT}/consensus.parquet",
        manifest=f"{OUT}/manifests/consensus.json",
    log:
        f"{OUT}/logs/consensus.log",
    benchmark:
        f"{OUT}/benchmarks/consensus/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("consensus")
    resources:
        **requests("consensus"),
    params:
        hvg=by_plate(f"{OUT}/plates/{{plate}}/hvg.parquet"),
        choice=consensus_options(),
        genes=CONFIG.genes,
        also=also_option(),
        code=code("consensus"),
    message:
        "genes that the plates agree on"
    shell:
        f"{RUN}"
        " {input.script:q} --hvg {params.hvg:q} {params.choice}"
        " --genes {params.genes} {params.also} --list {output.genes:q} --table {output.table:q}"
        f"{STEP_TAIL}"


rule select_genes:
    input:
        genes=consensus_genes,
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        normalize=rules.normalize.output.manifest,
        size_factors=ancient(rules.normalize.output.table),
        doublets_manifest=(
            [f"{OUT}/manifests/doublets/{{plate}}.json"] if CONFIG.doublets else []
        ),
        doublets=(
            [ancient(f"{OUT}/plates/{{plate}}/doublets.parquet")]
            if CONFIG.doublets
            else []
        ),
        script=script("select_genes"),
    output:
        selected=f"{OUT}/plates/{{plate}}/selected.zarr/zarr.json",
        gram=f"{OUT}/plates/{{plate}}/gram.zarr/zarr.json",
        manifest=f"{OUT}/manifests/select_genes/{{plate}}.json",
    log:
        f"{OUT}/logs/select_genes/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/select_genes/{{plate}}.tsv"
    retries: 2
    group:
        together("small_plates_selected", "select_genes")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("select_genes")
    resources:
        **requests("select_genes", "small_plates"),
    params:
        doublets=DOUBLETS_OPTION,
        union=union_option("--may-lack-genes"),
        code=code("select_genes"),
        store=subpath(input.store, parent=True),
        selected=subpath(output.selected, parent=True),
        gram=subpath(output.gram, parent=True),
    message:
        "consensus genes of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --size-factors {input.size_factors:q} {params.doublets} --genes {input.genes:q}"
        " {params.union}"
        " --selected {params.selected:q} --gram {params.gram:q}"
        f"{BLOCK_OPTIONS}{DEVICE_OPTIONS}{STEP_TAIL}"


RESULTS.append(rules.consensus.output.genes)
