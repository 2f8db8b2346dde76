# The map as one page that opens by a double click: cells and sums by pixel, in one pass.
# in:  atlas.zarr or, if it has no map, umap.h5ad; umap.h5ad; tables/markers.tsv; integrated.h5ad
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
        integrate=[f"{OUT}/manifests/integrate.json"] if CONFIG.integrate else [],
        integrated=([ancient(f"{OUT}/integrated.h5ad")] if CONFIG.integrate else []),
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
        labels=LABELS_OPTION,
        code=code("explore"),
    message:
        "the atlas as a page: explore.html"
    shell:
        f"{RUN}"
        " {input.script:q} {params.cells} --umap {input.umap:q}"
        " {params.markers} {params.integrated} {params.labels} {params.options} --html {output.page:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += rules.explore.output
