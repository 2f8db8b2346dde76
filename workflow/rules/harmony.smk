# Batch correction of all cells of the atlas (config: integrate).
# in:  merged.zarr, pca.zarr
# out: harmony.zarr, which becomes a part of atlas.zarr


rule harmony:
    input:
        concat=f"{OUT}/manifests/concat_on_disk.json",
        merged=ancient(f"{OUT}/merged.zarr/zarr.json"),
        pca_manifest=f"{OUT}/manifests/pca.json",
        pca=ancient(f"{OUT}/pca.zarr/zarr.json"),
        script=script("harmony"),
    output:
        harmony=f"{OUT}/harmony.zarr/zarr.json",
        manifest=f"{OUT}/manifests/harmony.json",
    log:
        f"{OUT}/logs/harmony.log",
    benchmark:
        f"{OUT}/benchmarks/harmony/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("harmony")
    resources:
        **requests("harmony", "small_atlas"),
    params:
        options=sections(harmony=CONFIG.harmony),
        seed=CONFIG.seed,
        code=code("harmony"),
        merged=subpath(input.merged, parent=True),
        pca=subpath(input.pca, parent=True),
        harmony=subpath(output.harmony, parent=True),
    message:
        "mixing the plates' cells"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --pca {params.pca:q}"
        " {params.options} --seed {params.seed} --harmony {params.harmony:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"
