# Cells of each plate that are two, for those who ask for it (config: doublets).
# in:  plates/{plate}/{counts.zarr,qc.parquet,qc_summary.json}
# out: plates/{plate}/{doublets.parquet,doublets.json}, obs of the atlas; in the report
#      figures/doublets.png and tables/doublet_rates.tsv


rule doublets:
    input:
        load=f"{OUT}/manifests/load/{{plate}}.json",
        store=ancient(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json"),
        qc_filter=f"{OUT}/manifests/qc_filter/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/qc.parquet"),
        qc_summary=ancient(f"{OUT}/plates/{{plate}}/qc_summary.json"),
        script=script("doublets"),
    output:
        table=f"{OUT}/plates/{{plate}}/doublets.parquet",
        summary=f"{OUT}/plates/{{plate}}/doublets.json",
        manifest=f"{OUT}/manifests/doublets/{{plate}}.json",
    log:
        f"{OUT}/logs/doublets/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/doublets/{{plate}}.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: plate_threads
    resources:
        mem_mb=doublets_memory,
        runtime=doublets_runtime,
        attempt=which_attempt,
        budget=BUDGET,
    params:
        options=as_is(options(CONFIG.doublets)),
        n_top_genes=CONFIG.hvg.n_top_genes,
        seed=CONFIG.seed,
        code=code("doublets"),
        store=subpath(input.store, parent=True),
    message:
        "doublets of {wildcards.plate}"
    shell:
        "python {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --qc {input.qc:q} --qc-summary {input.qc_summary:q} {params.options}"
        " --n-top-genes {params.n_top_genes} --seed {params.seed} --table {output.table:q}"
        " --summary {output.summary:q} --manifest {output.manifest:q} --threads {threads}"
        " --attempt {resources.attempt} --block-budget {resources.budget} 2>&1 | tee {log:q}"


REPORT_INPUT |= {
    "doublets_manifests": all_plates(f"{OUT}/manifests/doublets/{{plate}}.json"),
    "doublets": ancient(all_plates(f"{OUT}/plates/{{plate}}/doublets.json")),
}
REPORT_OPTIONS.append(
    f"--doublets {shlex.join(by_plate(f'{OUT}/plates/{{plate}}/doublets.json'))}"
)
REPORT_OUTPUT |= {
    "doublets_figure": report(
        f"{OUT}/figures/doublets.png",
        caption="../report/doublets.rst",
        category="Cells",
        labels={"result": "Doublet scores"},
    ),
    "doublet_rates": report(
        f"{OUT}/tables/doublet_rates.tsv",
        caption="../report/doublet_rates.rst",
        category="Cells",
        labels={"result": "Doublets (table)"},
    ),
}
