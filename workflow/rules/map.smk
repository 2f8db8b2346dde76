# The map of all cells.
# in:  pca.zarr or harmony.zarr; embedding/{subset,neighbors,umap,leiden}.zarr
# out: map.zarr, which becomes a part of atlas.zarr


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
        stores=stores("components", "subset", "neighbors", "umap", "leiden"),
        map=subpath(output.map, parent=True),
    message:
        "the map of all cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.stores} --seed {params.seed} --map {params.map:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"
