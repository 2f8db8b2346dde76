# Types of the cells, by classifiers that leave doubtful cells without one (config: annotate).
# in:  the labelled cells, the CellTypist model, the table of marker genes; plates/{plate}/{counts.zarr,qc.parquet}
# out: annotator/{reference,model,markers}.h5ad, plates/{plate}/annotation.parquet; labels.smk joins them
#
# Another map or other clusters change nothing here. Classifiers of files know no plate.
KEPT_MANIFESTS = f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json"
PATHS_OF_CELLS = []
for key in ("reference", "model", "markers"):
    if path := getattr(CONFIG.annotate, key):
        if not Path(path).exists() and not path.startswith(DEMO_FOLDER):
            raise WorkflowError(f"annotate.{key}: {path} does not exist: correct it")
        is_demo = path.startswith(DEMO_FOLDER)
        PATHS_OF_CELLS.append(path if is_demo else local_source(path))


rule annotator:
    input:
        files=PATHS_OF_CELLS,
        load=(
            each(f"{OUT}/manifests/load/{{plate}}.json") if LEARNS_FROM_PLATES else []
        ),
        kept=each(KEPT_MANIFESTS) if LEARNS_FROM_PLATES else [],
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
        # The name of the column changes no classifier.
        options=sections(annotate=CONFIG.annotate.model_copy(update={"key": "any"})),
        plates=labelled_plates,
        annotators=ANNOTATORS_OPTION,
        seed=CONFIG.seed,
        code=code("annotator"),
    message:
        "learning the types of cells"
    shell:
        f"{RUN}"
        " {input.script:q} {params.options} {params.plates} --seed {params.seed}"
        " {params.annotators}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


rule annotate:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        kept=f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}"),
        annotator=rules.annotator.output.manifest,
        annotators=ancient([*ANNOTATORS.values()]),
        script=script("annotate"),
    output:
        table=f"{OUT}/plates/{{plate}}/annotation.parquet",
        manifest=f"{OUT}/manifests/annotate/{{plate}}.json",
    log:
        f"{OUT}/logs/annotate/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/annotate/{{plate}}.tsv"
    retries: 2
    group:
        together("small_plates_annotate", "annotate")
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("annotate")
    resources:
        **requests("annotate", "small_plates"),
    params:
        annotators=ANNOTATORS_OPTION,
        code=code("annotate"),
        store=subpath(input.store, parent=True),
    message:
        "types of the cells of {wildcards.plate}"
    shell:
        f"{RUN}"
        " {input.script:q} --plate {wildcards.plate} --store {params.store:q}"
        " --qc {input.qc:q} {params.annotators}"
        " --table {output.table:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"
