# One atlas of all plates.
# in:  plates/{plate}/{selected.zarr,gram.zarr}, consensus.parquet, map.zarr
# out: merged.zarr, pca.zarr, atlas.zarr


rule concat_on_disk:
    input:
        select_genes=each(f"{OUT}/manifests/select_genes/{{plate}}.json"),
        selected=ancient(each(f"{OUT}/plates/{{plate}}/selected.zarr/zarr.json")),
        script=script("concat_on_disk"),
    output:
        merged=f"{OUT}/merged.zarr/zarr.json",
        manifest=f"{OUT}/manifests/concat_on_disk.json",
    log:
        f"{OUT}/logs/concat_on_disk.log",
    benchmark:
        f"{OUT}/benchmarks/concat_on_disk/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("concat_on_disk")
    resources:
        **requests("concat_on_disk", "small_atlas"),
    params:
        selected=each(f"{OUT}/plates/{{plate}}/selected.zarr", options=True),
        labels=labels_option,
        genes=union_option("--genes union"),
        code=code("concat_on_disk"),
        merged=subpath(output.merged, parent=True),
    message:
        "merging the plates"
    shell:
        f"{RUN}"
        " {input.script:q} --selected {params.selected:q} --merged {params.merged:q}"
        " --labels {params.labels:q} {params.genes}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule pca:
    input:
        select_genes=each(f"{OUT}/manifests/select_genes/{{plate}}.json"),
        grams=ancient(each(f"{OUT}/plates/{{plate}}/gram.zarr/zarr.json")),
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        script=script("pca"),
    output:
        pca=f"{OUT}/pca.zarr/zarr.json",
        manifest=f"{OUT}/manifests/pca.json",
    log:
        f"{OUT}/logs/pca.log",
    benchmark:
        f"{OUT}/benchmarks/pca/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("pca")
    resources:
        **requests("pca", "small_atlas"),
    params:
        options=sections(pca=CONFIG.pca, scale=CONFIG.scale),
        grams=each(with_prefix(f"{OUT}/plates/{{plate}}/gram.zarr")),
        code=code("pca"),
        merged=subpath(input.merged, parent=True),
        pca=subpath(output.pca, parent=True),
    message:
        "principal components"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --grams {params.grams:q}"
        " {params.options} --pca {params.pca:q}"
        f"{BLOCK_OPTIONS}{DEVICE_OPTIONS}{STEP_TAIL}"


rule atlas:
    input:
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        pca_manifest=rules.pca.output.manifest,
        pca=ancient(rules.pca.output.pca),
        obsm_manifest=OBSM_MANIFEST,
        obsm=OBSM_STORE,
        load=each(f"{OUT}/manifests/load/{{plate}}.json"),
        map_manifest=[f"{OUT}/manifests/map.json"] if CONFIG.maps_all_cells else [],
        map=[ancient(f"{OUT}/map.zarr/zarr.json")] if CONFIG.maps_all_cells else [],
        labels_manifest=LABELS_MANIFEST if CONFIG.maps_all_cells else [],
        labels=LABELS_STORE if CONFIG.maps_all_cells else [],
        consensus=f"{OUT}/manifests/consensus.json",
        table=ancient(f"{OUT}/consensus.parquet"),
        script=script("atlas"),
    output:
        atlas=f"{OUT}/atlas.zarr/zarr.json",
        manifest=f"{OUT}/manifests/atlas.json",
    log:
        f"{OUT}/logs/atlas.log",
    benchmark:
        f"{OUT}/benchmarks/atlas/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("atlas")
    resources:
        **requests("atlas", "small_atlas"),
    params:
        recipe=recipe_option,
        code=code("atlas"),
        manifests=subpath(output.manifest, parent=True),
        merged=subpath(input.merged, parent=True),
        pca=subpath(input.pca, parent=True),
        obsm=OBSM_OPTION,
        map=result("--map", "map.zarr", CONFIG.maps_all_cells),
        labels=result(
            "--labels", "labels.zarr", CONFIG.names_cells and CONFIG.maps_all_cells
        ),
        atlas=subpath(output.atlas, parent=True),
    message:
        "putting the atlas together"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --pca {params.pca:q}"
        " {params.obsm} {params.map} {params.labels} --genes {input.table:q} --atlas {params.atlas:q}"
        " --recipe {params.recipe:q} --manifests {params.manifests:q}"
        f"{STEP_TAIL}"


RESULTS += rules.atlas.output
