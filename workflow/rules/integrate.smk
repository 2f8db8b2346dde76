# The sample's cells with their plates mixed, for those who ask for it (config: integrate).
# in:  umap.h5ad
# out: integrated.h5ad; in the report figures/integration and tables/mixing.tsv


rule integrate:
    input:
        umap_manifest=f"{OUT}/manifests/umap.json",
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
    conda:
        "../../envs/cpu.yaml"
    threads: 4
    resources:
        mem_mb=integrate_memory,
        runtime=integrate_runtime,
        attempt=which_attempt,
        gpu=ONE_GPU,
        backend=UMAP_BACKEND,
        device_memory=DEVICE_MEMORY,
        device_limit=DEVICE_LIMIT,
    params:
        options=as_is(options(CONFIG.integrate, prefix="integrate")),
        neighbors=options(CONFIG.neighbors),
        umap=options(CONFIG.umap),
        leiden=options(CONFIG.leiden),
        seed=CONFIG.seed,
        code=code("integrate"),
    message:
        "the sample with its plates mixed"
    shell:
        "python {input.script:q} --umap {input.umap:q} {params.options} {params.neighbors}"
        " {params.umap} {params.leiden} --seed {params.seed} --integrated {output.integrated:q}"
        " --manifest {output.manifest:q} --threads {threads} --attempt {resources.attempt}"
        " --backend {resources.backend} --memory {resources.device_memory}"
        " --memory-limit {resources.device_limit} 2>&1 | tee {log:q}"


REPORT_INPUT |= {
    "integrate": rules.integrate.output.manifest,
    "integrated": ancient(rules.integrate.output.integrated),
}
REPORT_OPTIONS.append(f"--integrated {shlex.quote(prefixed(f'{OUT}/integrated.h5ad'))}")
REPORT_OUTPUT["mixing"] = report(
    f"{OUT}/tables/mixing.tsv",
    caption="../report/mixing.rst",
    category="Integration",
    labels={"result": "Mixing (table)"},
)
if CONFIG.integrate.umap:
    REPORT_OUTPUT["integration"] = report(
        directory(f"{OUT}/figures/integration"),
        patterns=["{color}.png"],
        caption="../report/integration.rst",
        category="Integration",
        labels={"result": "Before and after, by {color}"},
    )
