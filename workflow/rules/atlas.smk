# One atlas of all plates.
# in:  plates/{plate}/{selected.zarr,gram.npz}, consensus.parquet
# out: merged.zarr, pca.zarr, atlas.zarr
from scatlas.workflow.provenance import recipe


rule concat_on_disk:
    input:
        select_genes=all_plates(f"{OUT}/manifests/select_genes/{{plate}}.json"),
        selected=ancient(all_plates(f"{OUT}/plates/{{plate}}/selected.zarr/zarr.json")),
        script=script("concat_on_disk"),
    output:
        merged=f"{OUT}/merged.zarr/zarr.json",
        manifest=f"{OUT}/manifests/concat_on_disk.json",
    log:
        f"{OUT}/logs/concat_on_disk.log",
    benchmark:
        f"{OUT}/benchmarks/concat_on_disk/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: atlas_threads
    resources:
        mem_mb=atlas_memory,
        runtime=concat_runtime,
        disk_mb=merged_disk,
        attempt=which_attempt,
        budget=BUDGET,
    params:
        selected=by_plate(f"{OUT}/plates/{{plate}}/selected.zarr"),
        labels=as_is(json.dumps({plate.plate: plate.labels for plate in SHEET})),
        code=code("concat_on_disk"),
        merged=subpath(output.merged, parent=True),
    message:
        "merging the plates"
    shell:
        "python {input.script:q} --selected {params.selected:q} --merged {params.merged:q}"
        " --labels {params.labels:q} --manifest {output.manifest:q} --threads {threads}"
        " --attempt {resources.attempt} --block-budget {resources.budget}"
        " 2>&1 | tee {log:q}"


rule pca:
    input:
        select_genes=all_plates(f"{OUT}/manifests/select_genes/{{plate}}.json"),
        grams=ancient(all_plates(f"{OUT}/plates/{{plate}}/gram.npz")),
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
    conda:
        "../../envs/cpu.yaml"
    threads: pca_threads
    resources:
        mem_mb=pca_memory,
        runtime=pca_runtime,
        disk_mb=pca_disk,
        attempt=which_attempt,
        budget=BUDGET,
        gpu=GPUS,
        backend=BACKEND,
        device_memory=DEVICE_MEMORY,
        device_limit=DEVICE_LIMIT,
    params:
        options=options(CONFIG.pca),
        scale=scale_options(CONFIG.scale),
        code=code("pca"),
        merged=subpath(input.merged, parent=True),
        pca=subpath(output.pca, parent=True),
    message:
        "principal components"
    shell:
        "python {input.script:q} --merged {params.merged:q} --grams {input.grams:q}"
        " {params.options} {params.scale} --pca {params.pca:q} --manifest {output.manifest:q}"
        " --threads {threads}"
        " --attempt {resources.attempt} --block-budget {resources.budget}"
        " --backend {resources.backend} --memory {resources.device_memory}"
        " --memory-limit {resources.device_limit} 2>&1 | tee {log:q}"


rule atlas:
    input:
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        pca_manifest=rules.pca.output.manifest,
        pca=ancient(rules.pca.output.pca),
        harmony_manifest=[f"{OUT}/manifests/harmony.json"] if HARMONY else [],
        harmony=[ancient(f"{OUT}/harmony.zarr/zarr.json")] if HARMONY else [],
        load=all_plates(f"{OUT}/manifests/load/{{plate}}.json"),
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
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=atlas_memory,
        runtime=atlas_runtime,
        attempt=which_attempt,
    params:
        recipe=as_is(recipe(CONFIG, SHEET)),
        code=code("atlas"),
        manifests=subpath(output.manifest, parent=True),
        merged=subpath(input.merged, parent=True),
        pca=subpath(input.pca, parent=True),
        harmony=mixed_option(HARMONY),
        atlas=subpath(output.atlas, parent=True),
    message:
        "putting the atlas together"
    shell:
        "python {input.script:q} --merged {params.merged:q} --pca {params.pca:q}"
        " {params.harmony} --genes {input.table:q} --atlas {params.atlas:q}"
        " --manifest {output.manifest:q}"
        " --recipe {params.recipe:q} --manifests {params.manifests:q} --threads {threads}"
        " --attempt {resources.attempt} 2>&1 | tee {log:q}"
