# The report: figures, tables and one page.
# in:  the tables of all plates, consensus_genes.tsv, pca.zarr, umap.h5ad, atlas.zarr, marker genes, and what the
#      optional rules doublets and integrate have made
# out: figures/*.png, tables/*.tsv, report.html


rule report:
    input:
        qc=each(f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json"),
        hvg=each(f"{OUT}/manifests/hvg/{{plate}}.json"),
        genes=f"{OUT}/consensus_genes.tsv",
        pca=rules.pca.output.manifest,
        embedding=rules.embedding.output.manifest,
        cells=ancient(each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}")),
        summaries=ancient(each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS_SUMMARY}")),
        tables=ancient(each(f"{OUT}/plates/{{plate}}/hvg.parquet")),
        consensus=[f"{OUT}/manifests/consensus.json"] if CONFIG.plates.skips else [],
        pca_store=ancient(rules.pca.output.pca),
        umap_file=ancient(rules.embedding.output.embedding),
        atlas_manifest=[rules.atlas.output.manifest] if CONFIG.maps_all_cells else [],
        atlas=[ancient(rules.atlas.output.atlas)] if CONFIG.maps_all_cells else [],
        doublets_manifests=(
            each(f"{OUT}/manifests/doublets/{{plate}}.json") if CONFIG.doublets else []
        ),
        doublets=(
            ancient(each(f"{OUT}/plates/{{plate}}/doublets.json"))
            if CONFIG.doublets
            else []
        ),
        markers_manifest=[f"{OUT}/manifests/markers.json"] if CONFIG.markers.by else [],
        markers=[ancient(f"{OUT}/tables/markers.tsv")] if CONFIG.markers.by else [],
        means=[ancient(f"{OUT}/markers.h5ad")] if CONFIG.markers.by else [],
        integrate=[f"{OUT}/manifests/integrate.json"] if CONFIG.integrate else [],
        integrated=([ancient(f"{OUT}/integrated.h5ad")] if CONFIG.integrate else []),
        opening=str(HERE / "workflow/report/workflow.rst"),
        captions=[
            str(path) for path in sorted((HERE / "workflow/report").glob("*.rst"))
        ],
        script=script("report"),
    output:
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
        genes_by_plates=report(
            f"{OUT}/figures/genes_by_plates.png",
            caption="../report/genes_by_plates.rst",
            category="Genes",
            labels={"result": "Variable genes by number of plates"},
        ),
        pca_scree=report(
            f"{OUT}/figures/pca_scree.png",
            caption="../report/pca_scree.rst",
            category="Components",
            labels={"result": "Variance explained"},
        ),
        # A folder: the columns of the plates, and so the pictures, are known after loading.
        umap=report(
            directory(f"{OUT}/figures/umap"),
            patterns=["{color}.png"],
            caption="../report/umap.rst",
            category="Map",
            labels={"result": "UMAP by {color}"},
        ),
        odd_plates=report(
            f"{OUT}/tables/odd_plates.tsv",
            caption="../report/odd_plates.rst",
            category="Cells",
            labels={"result": "Plates compared (table)"},
        ),
        cells=report(
            f"{OUT}/tables/cells.tsv",
            caption="../report/cells.rst",
            category="Cells",
            labels={"result": "Cells (table)"},
        ),
        left_out=(
            report(
                f"{OUT}/tables/left_out.tsv",
                caption="../report/left_out.rst",
                category="Cells",
                labels={"result": "Plates left out (table)"},
            )
            if CONFIG.plates.skips
            else []
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
        clusters_by_plate=(
            report(
                f"{OUT}/tables/clusters_by_plate.tsv",
                caption="../report/clusters_by_plate.rst",
                category="Map",
                labels={"result": "Clusters by plate (table)"},
            )
            if CONFIG.maps_all_cells
            else []
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
        # Folders: one picture for each column of markers.by.
        markers_dots=(
            report(
                directory(f"{OUT}/figures/markers_dots"),
                patterns=["{color}.png"],
                caption="../report/markers_dots.rst",
                category="Markers",
                labels={"result": "Markers by {color}: dots"},
            )
            if CONFIG.markers.by
            else []
        ),
        markers_heat_map=(
            report(
                directory(f"{OUT}/figures/markers_heat_map"),
                patterns=["{color}.png"],
                caption="../report/markers_heat_map.rst",
                category="Markers",
                labels={"result": "Markers by {color}: heat map"},
            )
            if CONFIG.markers.by
            else []
        ),
        doublets_figure=(
            report(
                f"{OUT}/figures/doublets.png",
                caption="../report/doublets.rst",
                category="Cells",
                labels={"result": "Doublet scores"},
            )
            if CONFIG.doublets
            else []
        ),
        doublet_rates=(
            report(
                f"{OUT}/tables/doublet_rates.tsv",
                caption="../report/doublet_rates.rst",
                category="Cells",
                labels={"result": "Doublets (table)"},
            )
            if CONFIG.doublets
            else []
        ),
        mixing=(
            report(
                f"{OUT}/tables/mixing.tsv",
                caption="../report/mixing.rst",
                category="Integration",
                labels={"result": "Mixing (table)"},
            )
            if CONFIG.integrate
            else []
        ),
        integration=(
            report(
                directory(f"{OUT}/figures/integration"),
                patterns=["{color}.png"],
                caption="../report/integration.rst",
                category="Integration",
                labels={"result": "Before and after, by {color}"},
            )
            if CONFIG.integrate and CONFIG.integrate.umap
            else []
        ),
        manifest=f"{OUT}/manifests/report.json",
    log:
        f"{OUT}/logs/report.log",
    benchmark:
        f"{OUT}/benchmarks/report/atlas.tsv"
    retries: 2
    group:
        small_report
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("report")
    resources:
        **requests("report", "small_atlas"),
    params:
        qc=each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}", options=True),
        summaries=each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS_SUMMARY}", options=True),
        hvg=each(f"{OUT}/plates/{{plate}}/hvg.parquet", options=True),
        config=as_is(CONFIG.model_dump_json()),
        optional=report_options,
        code=code("report"),
        pca=subpath(input.pca_store, parent=True),
        captions=subpath(input.opening, parent=True),
        manifests=subpath(output.manifest, parent=True),
        figures=subpath(output.umap, parent=True),
        tables=subpath(output.cells, parent=True),
    message:
        "figures, tables and the report"
    shell:
        f"{RUN}"
        " {input.script:q} --qc {params.qc:q} --summaries {params.summaries:q}"
        " --hvg {params.hvg:q} --genes {input.genes:q} --pca {params.pca:q}"
        " --umap {input.umap_file:q} --manifests {params.manifests:q}"
        " --config {params.config:q} --captions {params.captions:q}"
        " --figures {params.figures:q} --tables {params.tables:q} {params.optional}"
        " --report {output.page:q}"
        f"{STEP_TAIL}"
