# The report: figures, tables and one page.
# in:  the tables of all plates, consensus_genes.tsv, pca.zarr, umap.h5ad or atlas.zarr, marker genes, and what the
#      optional rules doublets and integrate have made; with types of cells both umap.h5ad and atlas.zarr
# out: figures/*.png (and .pdf, .svg), tables/*.tsv, report.html


rule report:
    input:
        qc=each(f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json"),
        hvg=each(f"{OUT}/manifests/hvg/{{plate}}.json"),
        genes=f"{OUT}/consensus_genes.tsv",
        pca=rules.pca.output.manifest,
        embedding=[rules.embedding.output.manifest] if REPORTS_SAMPLE else [],
        cells=ancient(each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}")),
        summaries=ancient(each(f"{OUT}/plates/{{plate}}/{KEPT_CELLS_SUMMARY}")),
        tables=ancient(each(f"{OUT}/plates/{{plate}}/hvg.parquet")),
        consensus=f"{OUT}/manifests/consensus.json",
        pca_store=ancient(rules.pca.output.pca),
        umap_file=[ancient(rules.embedding.output.embedding)] if REPORTS_SAMPLE else [],
        labels=LABELS_STORE,
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
        effects_manifest=[f"{OUT}/manifests/effects.json"] if CONFIG.effects else [],
        effects=[ancient(f"{OUT}/effects.h5ad")] if CONFIG.effects else [],
        shares_manifest=[f"{OUT}/manifests/composition.json"] if CONFIG.effects else [],
        composition=(
            [ancient(f"{OUT}/tables/composition.tsv")] if CONFIG.effects else []
        ),
        opening=str(HERE / "workflow/report/workflow.rst"),
        captions=[
            str(path) for path in sorted((HERE / "workflow/report").glob("*.rst"))
        ],
        script=script("report"),
    output:
        page=f"{OUT}/report.html",
        cells_kept=shown("cells_kept.png", "Cells", "Cells kept"),
        qc_violins=shown("qc_violins.png", "Cells", "Quality of the cells"),
        hvg_overlap=shown("hvg_overlap.png", "Genes", "Overlap of the variable genes"),
        genes_by_plates=shown(
            "genes_by_plates.png", "Genes", "Variable genes by number of plates"
        ),
        pca_scree=shown("pca_scree.png", "Components", "Variance explained"),
        # A folder: the columns of the plates, and so the pictures, are known after loading.
        umap=shown("umap", "Map", "UMAP by {color}"),
        odd_plates=shown("odd_plates.tsv", "Cells", "Plates compared (table)"),
        cells=shown("cells.tsv", "Cells", "Cells (table)"),
        left_out=shown(
            "left_out.tsv", "Cells", "Plates left out (table)", CONFIG.plates.skips
        ),
        thresholds=shown("thresholds.tsv", "Cells", "Bounds (table)"),
        bounds=shown(
            "bounds.tsv", "Cells", "Bounds of each plate (table)", CONFIG.qc.mads
        ),
        consensus=shown("consensus.tsv", "Genes", "Consensus (table)"),
        pca=shown("pca.tsv", "Components", "Variance explained (table)"),
        cluster_shares=shown(
            "cluster_shares.png", "Map", "Clusters of each plate", len(PLATES) > 20
        ),
        clusters=shown("clusters.tsv", "Map", "Clusters (table)"),
        clusters_by_plate=shown(
            "clusters_by_plate.tsv",
            "Map",
            "Clusters by plate (table)",
            CONFIG.maps_all_cells,
        ),
        # Folders: one picture for each source of types.
        unknown_shares=shown(
            "unknown_shares", "Types", "Cells of unknown {color}", CONFIG.annotate
        ),
        type_genes=shown("type_genes", "Types", "Genes by {color}", CONFIG.annotate),
        runs=shown("runs.tsv", "Run", "Time and memory (table)"),
        settings=shown("settings.tsv", "Run", "Config (table)"),
        versions=shown("versions.tsv", "Run", "Software (table)"),
        # Folders: one picture for each column of markers.by.
        markers_dots=shown(
            "markers_dots", "Markers", "Markers by {color}: dots", CONFIG.markers.by
        ),
        markers_heat_map=shown(
            "markers_heat_map",
            "Markers",
            "Markers by {color}: heat map",
            CONFIG.markers.by,
        ),
        doublets_figure=shown(
            "doublets.png", "Cells", "Doublet scores", CONFIG.doublets
        ),
        doublet_rates=shown(
            "doublet_rates.tsv", "Cells", "Doublets (table)", CONFIG.doublets
        ),
        effect_strength=shown(
            "effect_strength.png", "Effects", "Genes by condition", CONFIG.effects
        ),
        # A folder: one picture for each of the strongest effects.
        volcano=shown("volcano", "Effects", "Volcano plot {color}", CONFIG.effects),
        # A folder: one picture for clusters, and for each column of types.
        share_changes=shown(
            "share_changes", "Effects", "Shares of {color}", CONFIG.effects
        ),
        # One picture for each of the strongest groups, if names of conditions have doses.
        dose_response=shown(
            "dose_response", "Effects", "Genes by dose {color}", CONFIG.effects
        ),
        strongest_effects=shown(
            "strongest_effects.tsv", "Effects", "Genes (table)", CONFIG.effects
        ),
        mixing=shown("mixing.tsv", "Integration", "Mixing (table)", CONFIG.integrate),
        integration=shown(
            "integration",
            "Integration",
            "Before and after, by {color}",
            CONFIG.integrate and CONFIG.integrate.umap,
        ),
        # The same figures for papers; those of folders are in these.
        papers=[
            f"{OUT}/figures/{name}.{ending}"
            for name in (
                *("cells_kept", "qc_violins", "hvg_overlap", "genes_by_plates"),
                *("pca_scree", *(["doublets"] if CONFIG.doublets else [])),
                *(["effect_strength"] if CONFIG.effects else []),
            )
            for ending in CONFIG.report.formats
            if ending != "png"
        ],
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
        n_plates=lambda wildcards: len(atlas_plates()),  # for the captions
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
        " --manifests {params.manifests:q} --config {params.config:q}"
        " --captions {params.captions:q} --figures {params.figures:q}"
        " --tables {params.tables:q} {params.optional} --report {output.page:q}"
        f"{STEP_TAIL}"


RESULTS += rules.report.output
