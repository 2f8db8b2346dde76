# Groups of the kept cells, for sums that wait for clusters or labels (config: markers, pseudobulk,
# effects).
# in:  plates/{plate}/{counts.zarr,size_factors.parquet}, map.zarr or umap.h5ad, labels.zarr
# out: cell_groups.h5
#
# A checkpoint, so that Snakemake compares the labels after they are made: only plates whose cells
# have other labels are summed again.
BY_CLUSTER = "leiden" in GROUPED
# Only other columns may be labels: a new name of a cluster sums no counts again.
BY_LABEL = CONFIG.names_cells and set(GROUPED) - {"leiden", "plate"}
# The steps that give each cell its cluster, and their output.
CLUSTERED = "map" if CONFIG.maps_all_cells else "embedding"
CLUSTERS = "map.zarr/zarr.json" if CONFIG.maps_all_cells else "umap.h5ad"


checkpoint cell_groups:
    input:
        load=each(f"{OUT}/manifests/load/{{plate}}.json"),
        stores=ancient(each(f"{OUT}/plates/{{plate}}/counts.zarr/zarr.json")),
        normalize=each(f"{OUT}/manifests/normalize/{{plate}}.json"),
        size_factors=ancient(each(f"{OUT}/plates/{{plate}}/size_factors.parquet")),
        clustered=[f"{OUT}/manifests/{CLUSTERED}.json"] if BY_CLUSTER else [],
        clusters=[ancient(f"{OUT}/{CLUSTERS}")] if BY_CLUSTER else [],
        labels_manifest=LABELS_MANIFEST if BY_LABEL else [],
        names=LABELS_STORE if BY_LABEL else [],
        script=script("cell_groups"),
    output:
        groups=f"{OUT}/cell_groups.h5",
        manifest=f"{OUT}/manifests/cell_groups.json",
    log:
        f"{OUT}/logs/cell_groups.log",
    benchmark:
        f"{OUT}/benchmarks/cell_groups/atlas.tsv"
    retries: 2
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("cell_groups")
    resources:
        **requests("cell_groups"),
    params:
        stores=each(f"{OUT}/plates/{{plate}}/counts.zarr", options=True),
        size_factors=each(f"{OUT}/plates/{{plate}}/size_factors.parquet", options=True),
        by=GROUPED,
        labels=labels_option,
        clusters=clusters_option(),
        names=result("--names", "labels.zarr", BY_LABEL),
        code=code("cell_groups"),
    message:
        "groups of the cells"
    shell:
        f"{RUN}"
        " {input.script:q} --stores {params.stores:q} --size-factors {params.size_factors:q}"
        " --by {params.by:q} --labels {params.labels:q} {params.clusters}"
        " {params.names}"
        " --groups {output.groups:q}"
        f"{STEP_TAIL}"
