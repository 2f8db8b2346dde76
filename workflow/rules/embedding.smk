# What people look at: a subset of the atlas, its UMAP and clusters, the report.
# in:  atlas.zarr; the tables of all plates
# out: subset.h5ad, umap.h5ad, figures/*.png, tables/*.tsv, report.html


rule subset:
    input:
        atlas=rules.atlas.output.manifest,
        store=ancient(rules.atlas.output.atlas),
        script=script("subset"),
    output:
        subset=f"{OUT}/subset.h5ad",
        manifest=f"{OUT}/manifests/subset.json",
    log:
        f"{OUT}/logs/subset.log",
    benchmark:
        f"{OUT}/benchmarks/subset/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=subset_memory,
        runtime=subset_runtime,
        attempt=which_attempt,
        budget=BUDGET,
    params:
        options=options(CONFIG.subset),
        seed=CONFIG.seed,
        code=code("subset"),
        atlas=subpath(input.store, parent=True),
    message:
        "sampling cells"
    shell:
        "python {input.script:q} --atlas {params.atlas:q} {params.options} --seed {params.seed}"
        " --subset {output.subset:q} --manifest {output.manifest:q} --threads {threads}"
        " --attempt {resources.attempt}"
        " --block-budget {resources.budget} 2>&1 | tee {log:q}"


rule umap:
    input:
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        script=script("umap"),
    output:
        umap=f"{OUT}/umap.h5ad",
        manifest=f"{OUT}/manifests/umap.json",
    log:
        f"{OUT}/logs/umap.log",
    benchmark:
        f"{OUT}/benchmarks/umap/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 4
    resources:
        mem_mb=umap_memory,
        runtime=subset_runtime,
        attempt=which_attempt,
        gpu=ONE_GPU,
        backend=UMAP_BACKEND,
        device_memory=DEVICE_MEMORY,
        device_limit=DEVICE_LIMIT,
    params:
        neighbors=options(CONFIG.neighbors),
        umap=options(CONFIG.umap),
        leiden=options(CONFIG.leiden),
        seed=CONFIG.seed,
        code=code("umap"),
    message:
        "neighbours, UMAP and Leiden clusters"
    shell:
        "python {input.script:q} --subset {input.subset:q} {params.neighbors} {params.umap}"
        " {params.leiden} --seed {params.seed} --umap {output.umap:q}"
        " --manifest {output.manifest:q} --threads {threads}"
        " --attempt {resources.attempt}"
        " --backend {resources.backend} --memory {resources.device_memory}"
        " --memory-limit {resources.device_limit} 2>&1 | tee {log:q}"


rule report:
    input:
        **REPORT_INPUT,
        qc=all_plates(f"{OUT}/manifests/{KEPT}/{{plate}}.json"),
        hvg=all_plates(f"{OUT}/manifests/hvg/{{plate}}.json"),
        genes=f"{OUT}/consensus_genes.tsv",
        pca=rules.pca.output.manifest,
        umap=rules.umap.output.manifest,
        tables=ancient(
            all_plates(f"{OUT}/plates/{{plate}}/{KEPT_TABLE}")
            + all_plates(f"{OUT}/plates/{{plate}}/{KEPT_SUMMARY}")
            + all_plates(f"{OUT}/plates/{{plate}}/hvg.parquet")
        ),
        pca_store=ancient(rules.pca.output.pca),
        umap_file=ancient(rules.umap.output.umap),
        opening=str(HERE / "workflow/report/workflow.rst"),
        captions=[
            str(path) for path in sorted((HERE / "workflow/report").glob("*.rst"))
        ],
        script=script("report"),
    output:
        **REPORT_OUTPUT,
        page=f"{OUT}/report.html",
        cells_kept=report(
            f"{OUT}/figures/cells_kept.png",
            caption="../report/cells_kept.rst",
            category="Cells",
            labels={"result": "Cells kept"},
        ),
        qc_violins=report(
            f"{OUT}/figures/qc_violins.png",
            caption="../report/qc_violins.rst",
            category="Cells",
            labels={"result": "Quality of the cells"},
        ),
        hvg_overlap=report(
            f"{OUT}/figures/hvg_overlap.png",
            caption="../report/hvg_overlap.rst",
            category="Genes",
            labels={"result": "Overlap of the variable genes"},
        ),
        pca_scree=report(
            f"{OUT}/figures/pca_scree.png",
            caption="../report/pca_scree.rst",
            category="Components",
            labels={"result": "Variance explained"},
        ),
        # Which columns the plates have is known once they are read.
        umap=report(
            directory(f"{OUT}/figures/umap"),
            patterns=["{color}.png"],
            caption="../report/umap.rst",
            category="Map",
            labels={"result": "UMAP by {color}"},
        ),
        cells=report(
            f"{OUT}/tables/cells.tsv",
            caption="../report/cells.rst",
            category="Cells",
            labels={"result": "Cells (table)"},
        ),
        thresholds=report(
            f"{OUT}/tables/thresholds.tsv",
            caption="../report/thresholds.rst",
            category="Cells",
            labels={"result": "Bounds (table)"},
        ),
        consensus=report(
            f"{OUT}/tables/consensus.tsv",
            caption="../report/consensus.rst",
            category="Genes",
            labels={"result": "Consensus (table)"},
        ),
        pca=report(
            f"{OUT}/tables/pca.tsv",
            caption="../report/pca.rst",
            category="Components",
            labels={"result": "Variance explained (table)"},
        ),
        clusters=report(
            f"{OUT}/tables/clusters.tsv",
            caption="../report/clusters.rst",
            category="Map",
            labels={"result": "Clusters (table)"},
        ),
        runs=report(
            f"{OUT}/tables/runs.tsv",
            caption="../report/runs.rst",
            category="Run",
            labels={"result": "Time and memory (table)"},
        ),
        settings=report(
            f"{OUT}/tables/settings.tsv",
            caption="../report/settings.rst",
            category="Run",
            labels={"result": "Config (table)"},
        ),
        versions=report(
            f"{OUT}/tables/versions.tsv",
            caption="../report/versions.rst",
            category="Run",
            labels={"result": "Software (table)"},
        ),
        manifest=f"{OUT}/manifests/report.json",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: 1
    resources:
        mem_mb=subset_memory,
        runtime=subset_runtime,
        attempt=which_attempt,
    params:
        qc=by_plate(f"{OUT}/plates/{{plate}}/{KEPT_TABLE}"),
        summaries=by_plate(f"{OUT}/plates/{{plate}}/{KEPT_SUMMARY}"),
        hvg=by_plate(f"{OUT}/plates/{{plate}}/hvg.parquet"),
        config=as_is(CONFIG.model_dump_json()),
        optional=" ".join(REPORT_OPTIONS),
        code=code("report"),
        pca=subpath(input.pca_store, parent=True),
        captions=subpath(input.opening, parent=True),
        benchmarks=prefixed(f"{OUT}/benchmarks"),
        figures=subpath(output.umap, parent=True),
        tables=subpath(output.cells, parent=True),
    message:
        "figures, tables and the report"
    shell:
        "python {input.script:q} --qc {params.qc:q} --summaries {params.summaries:q}"
        " --hvg {params.hvg:q} --genes {input.genes:q} --pca {params.pca:q}"
        " --umap {input.umap_file:q} --benchmarks {params.benchmarks:q} --config {params.config:q}"
        " --captions {params.captions:q} --figures {params.figures:q} --tables {params.tables:q}"
        " {params.optional} --report {output.page:q} --manifest {output.manifest:q}"
        " --threads {threads} --attempt {resources.attempt} 2>&1 | tee {log:q}"
