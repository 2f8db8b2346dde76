# The map as one page that opens by a double click: cells and sums by pixel.
# in:  atlas.zarr or, if it has no map, umap.h5ad; umap.h5ad; tables/markers.tsv; integrated.h5ad; effects.h5ad;
#      plates/{plate}/{counts.zarr,size_factors.parquet} for names of genes, and for genes that the atlas lacks
# out: explore.html
MAPPED_CELLS = "atlas.zarr/zarr.json" if CONFIG.maps_all_cells else "umap.h5ad"


rule explore:
    input:
        mapped=f"{OUT}/manifests/{MAPPED}.json",
        cells=ancient(f"{OUT}/{MAPPED_CELLS}"),
        embedding=rules.embedding.output.manifest,
        umap=ancient(rules.embedding.output.embedding),
        labels=LABELS_STORE,
        markers_manifest=[f"{OUT}/manifests/markers.json"] if CONFIG.markers.by else [],
        markers=[ancient(f"{OUT}/tables/markers.tsv")] if CONFIG.markers.by else [],
        load=each(f"{OUT}/manifests/load/{{plate}}.json"),
        stores=ancient(each(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json")),
        normalize=each(f"{OUT}/manifests/normalize/{{plate}}.json"),
        size_factors=ancient(each(f"{OUT}/plates/{{plate}}/size_factors.parquet")),
        integrate=[f"{OUT}/manifests/integrate.json"] if CONFIG.integrate else [],
        integrated=([ancient(f"{OUT}/integrated.h5ad")] if CONFIG.integrate else []),
        effects_manifest=[f"{OUT}/manifests/effects.json"] if CONFIG.effects else [],
        effects=[ancient(f"{OUT}/effects.h5ad")] if CONFIG.effects else [],
        script=script("explore"),
    output:
        page=f"{OUT}/explore.html",
        manifest=f"{OUT}/manifests/explore.json",
    log:
        f"{OUT}/logs/explore.log",
    benchmark:
        f"{OUT}/benchmarks/explore/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("explore")
    resources:
        **requests("explore"),
    params:
        options=sections(explore=CONFIG.explore),
        cells=result("--cells", CELLS),
        markers=MARKERS_OPTION,
        integrated=INTEGRATED_OPTION,
        effects=EFFECTS_OPTION,
        stores=each(f"{OUT}/plates/{{plate}}/counts.zarr", options=True),
        size_factors=each(f"{OUT}/plates/{{plate}}/size_factors.parquet", options=True),
        genes=CONFIG.genes,
        gene_names=as_is(GENE_NAMES_OPTION),
        labels=LABELS_OPTION,
        code=code("explore"),
    message:
        "the atlas as a page: explore.html"
    shell:
        f"{RUN}"
        " {input.script:q} {params.cells} --umap {input.umap:q}"
        " {params.markers} {params.integrated} {params.effects} {params.labels} --stores {params.stores:q}"
        " --size-factors {params.size_factors:q} --genes {params.genes} {params.gene_names}"
        " {params.options} --html {output.page:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += rules.explore.output
