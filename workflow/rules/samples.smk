# One file of many samples, divided into a source for each plate (config: plates.path, plates.by).
# in:  the file
# out: samples/{plate}.zarr, until the plate is loaded


rule split:
    input:
        source=local_source(CONFIG.plates.path),
        script=script("split"),
    output:
        # Without a wildcard: one job reads the file once for all samples.
        [temp(directory(f"{SAMPLES}/{plate}.zarr")) for plate in PLATES],
        manifest=f"{OUT}/manifests/split.json",
    log:
        f"{OUT}/logs/split.log",
    benchmark:
        f"{OUT}/benchmarks/split/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("split")
    resources:
        **requests("split"),
    params:
        source=as_is(CONFIG.plates.path),
        stamp=lambda wildcards: stamp_of(CONFIG.plates.path),
        by=as_is(CONFIG.plates.by),
        counts=as_is(CONFIG.source.counts),
        lists=as_is(
            CONFIG.source.lists and f"--lists {shlex.quote(CONFIG.source.lists)}"
        ),
        folder=with_prefix(SAMPLES),
        code=code("split"),
    message:
        "dividing the cells by sample"
    shell:
        f"{RUN}"
        " {input.script:q} --source {params.source:q} --by {params.by:q}"
        " --counts {params.counts:q} {params.lists}"
        " --folder {params.folder:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"
