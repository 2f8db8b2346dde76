# Names of clusters and values of cells from the user's tables, and types of cells (config: labels,
# annotate).
# in:  the tables; plates/{plate}/annotation.parquet; merged.zarr, map.zarr or, without it, the sample and its clusters
# out: labels.zarr, which becomes a part of atlas.zarr and umap.h5ad; tables/annotation*.tsv
TABLES_OF_TYPES = {
    "": " by cluster",
    "_by_plate": " by plate",
    "_agreement": ", sources compared",
    "_genes": ": their genes",
}
if not CONFIG.annotate:
    TABLES_OF_TYPES = {}
for path in CONFIG.labels or []:
    if not Path(path).is_file():
        raise WorkflowError(
            f"labels: {path}: there is no such table of labels: write it with scatlas label"
        )


rule labels:
    input:
        tables=[local(path) for path in CONFIG.labels or []],
        annotate=(
            each(f"{OUT}/manifests/annotate/{{plate}}.json") if CONFIG.annotate else []
        ),
        annotations=(
            ancient(each(f"{OUT}/plates/{{plate}}/annotation.parquet"))
            if CONFIG.annotate
            else []
        ),
        annotators=ancient([*ANNOTATORS.values()]),
        concat=rules.concat_on_disk.output.manifest,
        merged=ancient(rules.concat_on_disk.output.merged),
        map_manifest=[f"{OUT}/manifests/map.json"] if CONFIG.maps_all_cells else [],
        map=[ancient(f"{OUT}/map.zarr/zarr.json")] if CONFIG.maps_all_cells else [],
        subset_manifest=rules.subset.output.manifest,
        subset=ancient(rules.subset.output.subset),
        leiden_manifest=rules.leiden.output.manifest,
        leiden=ancient(rules.leiden.output.leiden),
        script=script("labels"),
    output:
        labels=f"{OUT}/labels.zarr/zarr.json",
        types=[
            shown(f"annotation{name}.tsv", "Types", f"Types of cells{what} (table)")
            for name, what in TABLES_OF_TYPES.items()
        ],
        manifest=f"{OUT}/manifests/labels.json",
    log:
        f"{OUT}/logs/labels.log",
    benchmark:
        f"{OUT}/benchmarks/labels/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("labels")
    resources:
        **requests("labels", "small_atlas"),
    params:
        tables=shlex.join(["--tables", *CONFIG.labels]) if CONFIG.labels else "",
        annotations=annotations_option,
        stores=stores("merged", "subset", "leiden"),
        map=result("--map", "map.zarr", CONFIG.maps_all_cells),
        labels=subpath(output.labels, parent=True),
        code=code("labels"),
    message:
        "names of clusters and cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.tables} {params.annotations} {params.stores}"
        " --concat {input.concat:q} {params.map} --labels {params.labels:q}"
        f"{STEP_TAIL}"


if CONFIG.annotate:
    RESULTS += rules.labels.output.types
