# What batch correction does (config: integrate): the sample before and after it, with scores.
# in:  umap.h5ad
# out: integrated.h5ad


rule integrate:
    input:
        embedding=f"{OUT}/manifests/embedding.json",
        umap=ancient(f"{OUT}/umap.h5ad"),
        script=script("integrate"),
    output:
        integrated=f"{OUT}/integrated.h5ad",
        manifest=f"{OUT}/manifests/integrate.json",
    log:
        f"{OUT}/logs/integrate.log",
    benchmark:
        f"{OUT}/benchmarks/integrate/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("integrate")
    resources:
        **requests("integrate", "small_atlas"),
    params:
        options=sections(
            integrate=CONFIG.integrate,
            neighbors=CONFIG.neighbors,
            umap=CONFIG.umap,
            leiden=CONFIG.leiden,
        ),
        seed=CONFIG.seed,
        code=code("integrate"),
    message:
        "the sample before and after the correction"
    shell:
        f"{RUN}"
        " {input.script:q} --umap {input.umap:q} {params.options}"
        " --seed {params.seed}"
        " --integrated {output.integrated:q}"
        f"{DEVICE_OPTIONS}{STEP_TAIL}"


RESULTS += rules.integrate.output
