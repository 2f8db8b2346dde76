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
        pca=subpath(input.pca, parent=True),
        obsm=OBSM_OPTION,
        merged=result("--merged", "merged.zarr", CONFIG.subset.by),
        subset=subpath(output.subset, parent=True),
    message:
        "sampling cells"
    shell:
        f"{RUN}"
        " {input.script:q} --pca {params.pca:q} {params.obsm} {params.merged}"
        " {params.options} --seed {params.seed} --subset {params.subset:q}"
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
        components=subpath(input.components, parent=True),
        subset=subpath(input.subset, parent=True),
        neighbors=subpath(output.neighbors, parent=True),
    message:
        "neighbours of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --components {params.components:q} --subset {params.subset:q}"
        " {params.basis} {params.options} --seed {params.seed} --neighbors {params.neighbors:q}"
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
        components=subpath(input.components, parent=True),
        subset=subpath(input.subset, parent=True),
        neighbors=subpath(input.neighbors, parent=True),
        umap=subpath(output.umap, parent=True),
    message:
        "UMAP of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --components {params.components:q} --subset {params.subset:q}"
        " --neighbors {params.neighbors:q} {params.basis} {params.options}"
        " --seed {params.seed} --umap {params.umap:q}"
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
        neighbors=subpath(input.neighbors, parent=True),
        leiden=subpath(output.leiden, parent=True),
    message:
        "clusters of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --neighbors {params.neighbors:q} {params.options}"
        " --seed {params.seed} --leiden {params.leiden:q}"
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
        merged=subpath(input.merged, parent=True),
        pca=subpath(input.pca, parent=True),
        obsm=OBSM_OPTION,
        subset=subpath(input.subset, parent=True),
        neighbors=subpath(input.neighbors, parent=True),
        umap=subpath(input.umap, parent=True),
        leiden=subpath(input.leiden, parent=True),
        map=result("--map", "manifests/map.json", CONFIG.maps_all_cells),
        labels=LABELS_OPTION,
    message:
        "the sample with its UMAP and clusters"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --pca {params.pca:q} {params.obsm}"
        " --genes {input.table:q} --subset {params.subset:q} --neighbors {params.neighbors:q}"
        " --umap {params.umap:q} --leiden {params.leiden:q} {params.map} {params.labels}"
        " --embedding {output.embedding:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += rules.embedding.output
