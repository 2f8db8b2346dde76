# A sample of the cells, its neighbours, UMAP and clusters: a step each, so that a changed key reruns
# what it concerns, and only what the map needs goes from step to step.
# in:  pca.zarr, harmony.zarr or latent.zarr; merged.zarr, for strata, and for what joins them at the end
# out: embedding/{subset,neighbors,umap,leiden}.zarr; umap.h5ad, for users, beside the way of the map


rule subset:
    input:
        pca_manifest=rules.pca.output.manifest,
        pca=ancient(rules.pca.output.pca),
        obsm_manifest=OBSM_MANIFEST,
        obsm=OBSM_STORE,
        concat=[rules.concat_on_disk.output.manifest] if CONFIG.subset.by else [],
        merged=(
            [ancient(rules.concat_on_disk.output.merged)] if CONFIG.subset.by else []
        ),
        script=script("subset"),
    output:
        subset=f"{OUT}/embedding/subset.zarr/zarr.json",
        manifest=f"{OUT}/manifests/subset.json",
    log:
        f"{OUT}/logs/subset.log",
    benchmark:
        f"{OUT}/benchmarks/subset/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("subset")
    resources:
        **requests("subset", "small_atlas"),
    params:
        options=sections(subset=CONFIG.subset, map=CONFIG.map),
        seed=CONFIG.seed,
        code=code("subset"),
        stores=stores("pca", "subset", *(["merged"] if CONFIG.subset.by else [])),
        obsm=OBSM_OPTION,
    message:
        "sampling cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.stores} {params.obsm} {params.options} --seed {params.seed}"
        f"{STEP_TAIL}"


rule neighbors:
    input:
        components_manifest=f"{OUT}/manifests/{COMPONENTS}.json",
        components=ancient(f"{OUT}/{COMPONENTS}.zarr/zarr.json"),
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        script=script("neighbors"),
    output:
        neighbors=f"{OUT}/embedding/neighbors.zarr/zarr.json",
        manifest=f"{OUT}/manifests/neighbors.json",
    log:
        f"{OUT}/logs/neighbors.log",
    benchmark:
        f"{OUT}/benchmarks/neighbors/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("neighbors")
    resources:
        **requests("neighbors", "small_atlas"),
    params:
        options=sections(neighbors=CONFIG.neighbors),
        basis=BASIS_OPTION,
        seed=CONFIG.seed,
        code=code("neighbors"),
        stores=stores("components", "subset", "neighbors"),
    message:
        "neighbours of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.stores} {params.basis} {params.options} --seed {params.seed}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


rule umap:
    input:
        components_manifest=f"{OUT}/manifests/{COMPONENTS}.json",
        components=ancient(f"{OUT}/{COMPONENTS}.zarr/zarr.json"),
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        neighbors_manifest=rules.neighbors.output.manifest,
        neighbors=ancient(rules.neighbors.output.neighbors),
        script=script("umap"),
    output:
        umap=f"{OUT}/embedding/umap.zarr/zarr.json",
        manifest=f"{OUT}/manifests/umap.json",
    log:
        f"{OUT}/logs/umap.log",
    benchmark:
        f"{OUT}/benchmarks/umap/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("umap")
    resources:
        **requests("umap", "small_atlas"),
    params:
        options=sections(umap=CONFIG.umap),
        basis=BASIS_OPTION,
        seed=CONFIG.seed,
        code=code("umap"),
        stores=stores("components", "subset", "neighbors", "umap"),
    message:
        "UMAP of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.stores} {params.basis} {params.options} --seed {params.seed}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


rule leiden:
    input:
        neighbors_manifest=rules.neighbors.output.manifest,
        neighbors=ancient(rules.neighbors.output.neighbors),
        script=script("leiden"),
    output:
        leiden=f"{OUT}/embedding/leiden.zarr/zarr.json",
        manifest=f"{OUT}/manifests/leiden.json",
    log:
        f"{OUT}/logs/leiden.log",
    benchmark:
        f"{OUT}/benchmarks/leiden/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("leiden")
    resources:
        **requests("leiden", "small_atlas"),
    params:
        options=sections(leiden=CONFIG.leiden),
        seed=CONFIG.seed,
        code=code("leiden"),
        stores=stores("neighbors", "leiden"),
    message:
        "clusters of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.stores} {params.options} --seed {params.seed}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


rule embedding:
    input:
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        pca_manifest=rules.pca.output.manifest,
        pca=ancient(rules.pca.output.pca),
        obsm_manifest=OBSM_MANIFEST,
        obsm=OBSM_STORE,
        consensus=f"{OUT}/manifests/consensus.json",
        table=ancient(f"{OUT}/consensus.parquet"),
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        neighbors_manifest=rules.neighbors.output.manifest,
        neighbors=ancient(rules.neighbors.output.neighbors),
        umap_manifest=rules.umap.output.manifest,
        umap=ancient(rules.umap.output.umap),
        leiden_manifest=rules.leiden.output.manifest,
        leiden=ancient(rules.leiden.output.leiden),
        # Clusters are numbered by their size in the whole atlas.
        map=[f"{OUT}/manifests/map.json"] if CONFIG.maps_all_cells else [],
        labels_manifest=LABELS_MANIFEST,
        labels=LABELS_STORE,
        script=script("embedding"),
    output:
        embedding=f"{OUT}/umap.h5ad",
        manifest=f"{OUT}/manifests/embedding.json",
    log:
        f"{OUT}/logs/embedding.log",
    benchmark:
        f"{OUT}/benchmarks/embedding/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("embedding")
    resources:
        **requests("embedding", "small_atlas"),
    params:
        code=code("embedding"),
        stores=stores("merged", "pca", "subset", "neighbors", "umap", "leiden"),
        obsm=OBSM_OPTION,
        map=result("--map", "manifests/map.json", CONFIG.maps_all_cells),
        labels=LABELS_OPTION,
    message:
        "the sample with its UMAP and clusters"
    shell:
        f"{RUN}"
        " {input.script:q} {params.stores} {params.obsm} --genes {input.table:q} {params.map}"
        " {params.labels} --embedding {output.embedding:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += rules.embedding.output
