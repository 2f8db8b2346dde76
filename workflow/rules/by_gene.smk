# X of the atlas gene after gene, for look-ups of single genes (config: by_gene).
# in:  merged.zarr, whose X is that of the atlas: another map changes nothing here
# out: by_gene.zarr


rule by_gene:
    input:
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        script=script("by_gene"),
    output:
        by_gene=f"{OUT}/by_gene.zarr/zarr.json",
        manifest=f"{OUT}/manifests/by_gene.json",
    log:
        f"{OUT}/logs/by_gene.log",
    benchmark:
        f"{OUT}/benchmarks/by_gene/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("by_gene")
    resources:
        **requests("by_gene", "small_atlas"),
    params:
        code=code("by_gene"),
        merged=subpath(input.merged, parent=True),
        by_gene=subpath(output.by_gene, parent=True),
    message:
        "the gene-major copy of X"
    shell:
        f"{RUN}"
        " {input.script:q} --merged {params.merged:q} --by-gene {params.by_gene:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += rules.by_gene.output
