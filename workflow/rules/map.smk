# The map of all cells.
# in:  merged.zarr, pca.zarr, consensus.parquet; subset.h5ad, embedding/*.h5ad
# out: base.zarr, the atlas before its map, whose cells are sampled; map.zarr, which becomes a part of
#      atlas.zarr


rule base:
    input:
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        pca_manifest=rules.pca.output.manifest,
        pca=ancient(rules.pca.output.pca),
        harmony_manifest=[f"{OUT}/manifests/harmony.json"] if CONFIG.harmony else [],
        harmony=[ancient(f"{OUT}/harmony.zarr/zarr.json")] if CONFIG.harmony else [],
        consensus=f"{OUT}/manifests/consensus.json",
        table=ancient(f"{OUT}/consensus.parquet"),
        script=script("atlas"),
    output:
        base=f"{OUT}/base.zarr/zarr.json",
        manifest=f"{OUT}/manifests/base.json",
    log:
        f"{OUT}/logs/base.log",
    benchmark:
        f"{OUT}/benchmarks/base/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("base")
    resources:
        **requests("base", "small_atlas"),
    params:
        code=code("atlas"),
        merged=subpath(input.merged, parent=True),
        pca=subpath(input.pca, parent=True),
        harmony=HARMONY_OPTION,
        base=subpath(output.base, parent=True),
    message:
        "the atlas without its map"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --pca {params.pca:q}"
        " {params.harmony} --genes {input.table:q} --atlas {params.base:q}"
        f"{STEP_TAIL}"


rule map:
    input:
        components_manifest=f"{OUT}/manifests/{COMPONENTS}.json",
        components=ancient(f"{OUT}/{COMPONENTS}.zarr/zarr.json"),
        # Not umap.h5ad, which joins them: the map of all cells does not wait for it.
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        neighbors_manifest=rules.neighbors.output.manifest,
        neighbors=ancient(rules.neighbors.output.neighbors),
        umap_manifest=rules.umap.output.manifest,
        umap=ancient(rules.umap.output.umap),
        leiden_manifest=rules.leiden.output.manifest,
        leiden=ancient(rules.leiden.output.leiden),
        script=script("map"),
    output:
        map=f"{OUT}/map.zarr/zarr.json",
        manifest=f"{OUT}/manifests/map.json",
    log:
        f"{OUT}/logs/map.log",
    benchmark:
        f"{OUT}/benchmarks/map/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("map")
    resources:
        **requests("map", "small_atlas"),
    params:
        seed=CONFIG.seed,
        code=code("map"),
        components=subpath(input.components, parent=True),
        map=subpath(output.map, parent=True),
    message:
        "the map of all cells"
    shell:
        f"{RUN}"
        " {input.script:q} --components {params.components:q} --subset {input.subset:q}"
        " --neighbors {input.neighbors:q} --umap {input.umap:q} --leiden {input.leiden:q}"
        " --seed {params.seed} --map {params.map:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"
