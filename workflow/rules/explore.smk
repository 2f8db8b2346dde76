# The map as one page that opens by a double click: pixels of each plate, added up.
# in:  atlas.zarr or, if it has no map, umap.h5ad; umap.h5ad; tables/markers.tsv; integrated.h5ad
# out: plates/{plate}/pixels.h5, explore.html
MAPPED_CELLS = "atlas.zarr/zarr.json" if CONFIG.maps_all_cells else "umap.h5ad"


# A checkpoint, so that Snakemake compares its digests after they are made: only plates whose cells,
# places or clusters have changed are counted again, or all if the page has other columns, genes or
# bounds.
checkpoint explore_cells:
    input:
        mapped=f"{OUT}/manifests/{MAPPED}.json",
        cells=ancient(f"{OUT}/{MAPPED_CELLS}"),
        embedding=rules.embedding.output.manifest,
        umap=ancient(rules.embedding.output.embedding),
        markers_manifest=[f"{OUT}/manifests/markers.json"] if CONFIG.markers.by else [],
        markers=[ancient(f"{OUT}/tables/markers.tsv")] if CONFIG.markers.by else [],
        script=script("explore_cells"),
    output:
        manifest=f"{OUT}/manifests/explore_cells.json",
    log:
        f"{OUT}/logs/explore_cells.log",
    benchmark:
        f"{OUT}/benchmarks/explore_cells/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("explore_cells")
    resources:
        **requests("explore_cells"),
    params:
        options=sections(explore=CONFIG.explore.content),
        cells=result("--cells", CELLS),
        markers=MARKERS_OPTION,
        code=code("explore_cells"),
    message:
        "what the pixels of each plate depend on"
    shell:
        f"{RUN}"
        " {input.script:q} {params.cells} --umap {input.umap:q} {params.markers}"
        " {params.options}"
        f"{STEP_TAIL}"


rule explore_plate:
    input:
        # The plate's values and labels; the digests hold what other plates may change.
        select_genes=rules.select_genes.output.manifest,
        digests=ancient(explore_digests),
        cells=ancient(f"{OUT}/{MAPPED_CELLS}"),
        umap=ancient(rules.embedding.output.embedding),
        markers=[ancient(f"{OUT}/tables/markers.tsv")] if CONFIG.markers.by else [],
        script=script("explore_plate"),
    output:
        pixels=f"{OUT}/plates/{{plate}}/pixels.h5",
        manifest=f"{OUT}/manifests/explore_plate/{{plate}}.json",
    log:
        f"{OUT}/logs/explore_plate/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/explore_plate/{{plate}}.tsv"
    retries: 2
    group:
        together("small_plates_explore", "explore_plate")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("explore_plate")
    resources:
        **requests("explore_plate", "small_plates"),
    params:
        digests=digests_of_pixels,
        labels=plate_labels,
        options=sections(explore=CONFIG.explore.content),
        cells=result("--cells", CELLS),
        markers=MARKERS_OPTION,
        code=code("explore_plate"),
    message:
        "pixels of {wildcards.plate} for explore.html"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} {params.cells} --umap {input.umap:q}"
        " {params.markers} {params.options} --pixels {output.pixels:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule explore:
    input:
        # Else it would not wait for pixels that the checkpoint adds to the run.
        explore_cells=f"{OUT}/manifests/explore_cells.json",
        plates=each(f"{OUT}/manifests/explore_plate/{{plate}}.json"),
        pixels=ancient(each(f"{OUT}/plates/{{plate}}/pixels.h5")),
        mapped=f"{OUT}/manifests/{MAPPED}.json",
        cells=ancient(f"{OUT}/{MAPPED_CELLS}"),
        embedding=rules.embedding.output.manifest,
        umap=ancient(rules.embedding.output.embedding),
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
        pixels=each(f"{OUT}/plates/{{plate}}/pixels.h5", options=True),
        cells=result("--cells", CELLS),
        markers=MARKERS_OPTION,
        integrated=INTEGRATED_OPTION,
        code=code("explore"),
    message:
        "the atlas as a page: explore.html"
    shell:
        f"{RUN}"
        " {input.script:q} --pixels {params.pixels:q} {params.cells} --umap {input.umap:q}"
        " {params.markers} {params.integrated} {params.options} --html {output.page:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"
