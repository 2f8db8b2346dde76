# A sample of the atlas, its neighbours, UMAP and clusters: a step each, so that a changed key reruns
# what it concerns.
# in:  base.zarr, or atlas.zarr if it has no map
# out: subset.h5ad, embedding/{neighbors,umap,leiden}.h5ad, umap.h5ad, which joins them
SAMPLED = "base" if CONFIG.maps_all_cells else "atlas"


rule subset:
    input:
        atlas=f"{OUT}/manifests/{SAMPLED}.json",
        store=ancient(f"{OUT}/{SAMPLED}.zarr/zarr.json"),
        script=script("subset"),
    output:
        subset=f"{OUT}/subset.h5ad",
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
        atlas=subpath(input.store, parent=True),
    message:
        "sampling cells"
    shell:
        f"{RUN}"
        " {input.script:q} --atlas {params.atlas:q} {params.options}"
        " --seed {params.seed} --subset {output.subset:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule neighbors:
    input:
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        script=script("neighbors"),
    output:
        neighbors=f"{OUT}/embedding/neighbors.h5ad",
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
    message:
        "neighbours of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --subset {input.subset:q} {params.basis} {params.options}"
        " --seed {params.seed} --neighbors {output.neighbors:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


rule umap:
    input:
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        neighbors_manifest=rules.neighbors.output.manifest,
        neighbors=ancient(rules.neighbors.output.neighbors),
        script=script("umap"),
    output:
        umap=f"{OUT}/embedding/umap.h5ad",
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
    message:
        "UMAP of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --subset {input.subset:q} --neighbors {input.neighbors:q}"
        " {params.basis} {params.options} --seed {params.seed} --umap {output.umap:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


rule leiden:
    input:
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        neighbors_manifest=rules.neighbors.output.manifest,
        neighbors=ancient(rules.neighbors.output.neighbors),
        script=script("leiden"),
    output:
        leiden=f"{OUT}/embedding/leiden.h5ad",
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
    message:
        "clusters of the sampled cells"
    shell:
        f"{RUN}"
        " {input.script:q} --subset {input.subset:q} --neighbors {input.neighbors:q}"
        " {params.options} --seed {params.seed} --leiden {output.leiden:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


rule embedding:
    input:
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
        labels=[ancient(f"{OUT}/embedding/labels.h5ad")] if CONFIG.names_cells else [],
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
        map=result("--map", "manifests/map.json", CONFIG.maps_all_cells),
        code=code("embedding"),
    message:
        "the sample with its UMAP and clusters"
    shell:
        f"{RUN}"
        " {input.script:q} --subset {input.subset:q}"
        " --parts {input.neighbors:q} {input.umap:q} {input.leiden:q} {input.labels:q} {params.map}"
        " --embedding {output.embedding:q}"
        f"{STEP_TAIL}"


RESULTS += rules.embedding.output
