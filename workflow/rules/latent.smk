# Components of another method for the map (config: map.use).
# in:  merged.zarr, the file that map.use names
# out: latent.zarr, which becomes a part of atlas.zarr


rule latent:
    input:
        concat=f"{OUT}/manifests/concat_on_disk.json",
        merged=ancient(f"{OUT}/merged.zarr/zarr.json"),
        use=CONFIG.map.use,
        script=script("latent"),
    output:
        latent=f"{OUT}/latent.zarr/zarr.json",
        manifest=f"{OUT}/manifests/latent.json",
    log:
        f"{OUT}/logs/latent.log",
    benchmark:
        f"{OUT}/benchmarks/latent/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("latent")
    resources:
        **requests("latent", "small_atlas"),
    params:
        use_rep=CONFIG.map.use_rep,
        code=code("latent"),
        merged=subpath(input.merged, parent=True),
        latent=subpath(output.latent, parent=True),
    message:
        "components of another method"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --use {input.use:q}"
        " --use-rep {params.use_rep:q} --latent {params.latent:q}"
        f"{STEP_TAIL}"
