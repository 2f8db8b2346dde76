# New plates on a finished atlas, which stays as it is (config: atlas, new_plates).
# in:  the atlas; plates/{plate}/{counts.zarr,size_factors.parquet}
# out: mapped/reference.h5ad, mapped/{plate}.zarr, mapped/report.html; atlas.zarr, if asked for


def atlas_path():
    """Root metadata of the atlas, without the prefix or storage of the results."""
    return local(f"{CONFIG.atlas}/zarr.json")


rule reference:
    input:
        atlas=atlas_path(),
        script=script("reference"),
    output:
        reference=f"{OUT}/mapped/reference.h5ad",
        manifest=f"{OUT}/manifests/reference.json",
    log:
        f"{OUT}/logs/reference.log",
    benchmark:
        f"{OUT}/benchmarks/reference/atlas.tsv"
    retries: 2
    group:
        "reference"
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("reference")
    resources:
        **requests("reference"),
    params:
        atlas=as_is(CONFIG.atlas),
        # Snakemake compares the age of one file alone.
        stamp=lambda wildcards: stamp_of(CONFIG.atlas),
        obs=CONFIG.new_plates.obs,
        votes=CONFIG.annotate.votes if CONFIG.annotate else [],
        n_reference=CONFIG.new_plates.n_reference,
        code=code("reference"),
    message:
        "sampling the atlas"
    shell:
        f"{RUN}"
        " {input.script:q} --atlas {params.atlas:q} --obs {params.obs:q}"
        " --votes {params.votes:q}"
        " --n-reference {params.n_reference} --reference {output.reference:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


if CONFIG.annotate:

    # The classifiers of the atlas, which the next version of it needs, too.
    rule annotator:
        input:
            files=[
                local(str(Path(CONFIG.atlas).parent / f"annotator/{source}.h5ad"))
                for source in ANNOTATORS
            ],
            script=script("annotator"),
        output:
            annotators=[*ANNOTATORS.values()],
            manifest=f"{OUT}/manifests/annotator.json",
        log:
            f"{OUT}/logs/annotator.log",
        benchmark:
            f"{OUT}/benchmarks/annotator/atlas.tsv"
        retries: 2
        conda:
            "../../envs/cpu.yaml"
        threads: threads_for("annotator")
        resources:
            **requests("annotator"),
        params:
            stored=as_is(str(Path(CONFIG.atlas).parent / "annotator")),
            annotators=ANNOTATORS_OPTION,
            code=code("annotator"),
        message:
            "classifiers of the atlas"
        shell:
            f"{RUN}"
            " {input.script:q} --stored {params.stored:q} {params.annotators}"
            f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule map_plate:
    input:
        reference_manifest=rules.reference.output.manifest,
        reference=ancient(rules.reference.output.reference),
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        normalize=rules.normalize.output.manifest,
        size_factors=ancient(rules.normalize.output.table),
        doublets_manifest=(
            [f"{OUT}/manifests/doublets/{{plate}}.json"] if CONFIG.doublets else []
        ),
        doublets=(
            [ancient(f"{OUT}/plates/{{plate}}/doublets.parquet")]
            if CONFIG.doublets
            else []
        ),
        annotator=[f"{OUT}/manifests/annotator.json"] if CONFIG.annotate else [],
        annotators=ancient([*ANNOTATORS.values()]),
        script=script("map_plate"),
    output:
        mapped=f"{OUT}/mapped/{{plate}}.zarr/zarr.json",
        manifest=f"{OUT}/manifests/map_plate/{{plate}}.json",
    log:
        f"{OUT}/logs/map_plate/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/map_plate/{{plate}}.tsv"
    retries: 2
    group:
        together("small_plates", "map_plate")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("map_plate")
    resources:
        **requests("map_plate", "small_plates"),
    params:
        doublets=DOUBLETS_OPTION,
        max_missing_genes=CONFIG.new_plates.max_missing_genes,
        labels=plate_labels,
        annotators=(
            f"{ANNOTATORS_OPTION} --key {shlex.quote(CONFIG.annotate.key)}"
            if CONFIG.annotate
            else ""
        ),
        code=code("map_plate"),
        store=subpath(input.store, parent=True),
        mapped=subpath(output.mapped, parent=True),
    message:
        "mapping {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --size-factors {input.size_factors:q} {params.doublets}"
        " --reference {input.reference:q} --max-missing-genes {params.max_missing_genes}"
        " --labels {params.labels:q} {params.annotators} --mapped {params.mapped:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule map_report:
    input:
        reference_manifest=rules.reference.output.manifest,
        reference=ancient(rules.reference.output.reference),
        map_plate=all_plates(rules.map_plate.output.manifest),
        mapped=ancient(all_plates(rules.map_plate.output.mapped)),
        opening=str(HERE / "workflow/report/new_plates/opening.rst"),
        captions=sorted(map(str, (HERE / "workflow/report/new_plates").glob("*.rst"))),
        script=script("map_report"),
    output:
        page=f"{OUT}/mapped/report.html",
        figures=directory(f"{OUT}/mapped/figures"),
        tables=directory(f"{OUT}/mapped/tables"),
        manifest=f"{OUT}/manifests/map_report.json",
    log:
        f"{OUT}/logs/map_report.log",
    benchmark:
        f"{OUT}/benchmarks/map_report/atlas.tsv"
    retries: 2
    group:
        small_atlas
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("map_report")
    resources:
        **requests("map_report", "small_atlas"),
    params:
        mapped=by_plate(f"{OUT}/mapped/{{plate}}.zarr"),
        facts=by_plate(f"{OUT}/manifests/map_plate/{{plate}}.json"),
        captions=subpath(input.opening, parent=True),
        formats=CONFIG.report.formats,
        code=code("map_report"),
    message:
        "the report on the new plates"
    shell:
        f"{RUN}"
        " {input.script:q} --reference {input.reference:q} --mapped {params.mapped:q}"
        " --facts {params.facts:q} --captions {params.captions:q} --figures {output.figures:q}"
        " --tables {output.tables:q} --formats {params.formats} --report {output.page:q}"
        f"{STEP_TAIL}"


rule extend:
    input:
        reference_manifest=rules.reference.output.manifest,
        old=atlas_path(),
        map_plate=all_plates(rules.map_plate.output.manifest),
        mapped=ancient(all_plates(rules.map_plate.output.mapped)),
        load=all_plates(rules.load.output.manifest),
        script=script("extend"),
    output:
        atlas=f"{OUT}/atlas.zarr/zarr.json",
        manifest=f"{OUT}/manifests/extend.json",
    log:
        f"{OUT}/logs/extend.log",
    benchmark:
        f"{OUT}/benchmarks/extend/atlas.tsv"
    retries: 2
    group:
        "extend"
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("extend")
    resources:
        **requests("extend"),
    params:
        old=as_is(CONFIG.atlas),
        mapped=by_plate(f"{OUT}/mapped/{{plate}}.zarr"),
        plates=as_is(json.dumps(plate_rows(CONFIG, SHEET))),
        code=code("extend"),
        atlas=subpath(output.atlas, parent=True),
        manifests=subpath(output.manifest, parent=True),
    message:
        "a new version of the atlas"
    shell:
        f"{RUN}"
        " {input.script:q} --old {params.old:q} --mapped {params.mapped:q}"
        " --plates {params.plates:q} --manifests {params.manifests:q} --atlas {params.atlas:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += rules.map_report.output
RESULTS += all_plates(str(rules.map_plate.output.mapped))
