# A sample of the atlas, its UMAP and clusters.
# in:  atlas.zarr
# out: subset.h5ad, umap.h5ad


rule subset:
    input:
        atlas=rules.atlas.output.manifest,
        store=ancient(rules.atlas.output.atlas),
        script=script("subset"),
    output:
        subset=f"{OUT}/subset.h5ad",
        manifest=f"{OUT}/manifests/subset.json",
    log:
        f"{OUT}/logs/subset.log",
    benchmark:
        f"{OUT}/benchmarks/subset/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=memory("subset"),
        runtime=runtime("subset"),
        attempt=which_attempt,
        budget=BUDGET,
    params:
        options=options(CONFIG.subset),
        seed=CONFIG.seed,
        code=code("subset"),
        atlas=subpath(input.store, parent=True),
    message:
        "sampling cells"
    shell:
        "{RUN} {input.script:q} --atlas {params.atlas:q} {params.options}"
        " --seed {params.seed} --subset {output.subset:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule umap:
    input:
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        script=script("umap"),
    output:
        umap=f"{OUT}/umap.h5ad",
        manifest=f"{OUT}/manifests/umap.json",
    log:
        f"{OUT}/logs/umap.log",
    benchmark:
        f"{OUT}/benchmarks/umap/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 4
    resources:
        **device("umap"),
        mem_mb=memory("umap"),
        runtime=runtime("umap"),
        attempt=which_attempt,
    params:
        neighbors=options(CONFIG.neighbors),
        umap=options(CONFIG.umap),
        leiden=options(CONFIG.leiden),
        seed=CONFIG.seed,
        code=code("umap"),
    message:
        "neighbours, UMAP and Leiden clusters"
    shell:
        "{RUN} {input.script:q} --subset {input.subset:q} {params.neighbors} {params.umap}"
        " {params.leiden} --seed {params.seed} --umap {output.umap:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"
