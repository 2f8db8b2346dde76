# Effects of conditions on each gene, from sums of replicates (config: effects).
# in:  plates/{plate}/{counts.zarr,qc.parquet}; cell_groups.h5, if the columns are clusters or labels;
#      atlas.zarr or umap.h5ad, for distances in components and shares of clusters
# out: plates/{plate}/effects.zarr, the sums; effects.h5ad, effects/*.parquet,
#      tables/{effects*,edistance,composition}.tsv
#
# A changed plate sums its own cells alone; then all models are fitted again.
if not CONFIG.pseudobulk:

    include: "pseudobulk.smk"


use rule pseudobulk as effect_sums with:
    input:
        load=rules.load.output.manifest,
        store=ancient(rules.load.output.store),
        kept=f"{OUT}/manifests/{LAST_CELL_FILTER}/{{plate}}.json",
        qc=ancient(f"{OUT}/plates/{{plate}}/{KEPT_CELLS}"),
        groups=groups_of(EFFECTS),
        script=script("pseudobulk"),
    output:
        sums=f"{OUT}/plates/{{plate}}/effects.zarr/zarr.json",
        manifest=f"{OUT}/manifests/effect_sums/{{plate}}.json",
    log:
        f"{OUT}/logs/effect_sums/{{plate}}.log",
    benchmark:
        f"{OUT}/benchmarks/effect_sums/{{plate}}.tsv"
    params:
        by=EFFECTS,
        groups=groups_option(EFFECTS),
        digest=digest_of_labels(EFFECTS),
        key="effects",
        complete=shlex.join(
            [
                "--complete",
                *(name for name in EFFECTS if name not in CONFIG.effects.within),
            ]
        ),
        code=code("pseudobulk"),
        store=subpath(input.store, parent=True),
        sums=subpath(output.sums, parent=True),
    message:
        "sums of the replicates of {wildcards.plate}"


# The cells whose distances are measured: the first store that has their components and all labels.
COMPARED, COMPARED_CELLS = (
    (MAPPED, CELLS) if waits_for_groups(EFFECTS) else ("atlas", "atlas.zarr")
)


rule edistance:
    input:
        cells_manifest=f"{OUT}/manifests/{COMPARED}.json",
        cells=ancient(first_file(COMPARED_CELLS)),
        script=script("edistance"),
    output:
        table=f"{OUT}/tables/edistance.tsv",
        manifest=f"{OUT}/manifests/edistance.json",
    log:
        f"{OUT}/logs/edistance.log",
    benchmark:
        f"{OUT}/benchmarks/edistance/atlas.tsv"
    retries: 2
    group:
        small_report
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("edistance")
    resources:
        **requests("edistance", "small_atlas"),
    params:
        cells=result("--cells", COMPARED_CELLS),
        options=sections(effects=CONFIG.effects),
        more=f"--seed {CONFIG.seed}",
        code=code("edistance"),
    message:
        "distances of {CONFIG.effects.condition} from the control"
    shell:
        f"{RUN}"
        " {input.script:q} {params.cells} {params.options} {params.more}"
        " --table {output.table:q}"
        f"{STEP_TAIL}"


use rule edistance as composition with:
    input:
        cells_manifest=f"{OUT}/manifests/{MAPPED}.json",
        cells=ancient(first_file(CELLS)),
        labels=LABELS_STORE,
        script=script("composition"),
    output:
        table=shown("composition.tsv", "Effects", "Shares of clusters (table)"),
        manifest=f"{OUT}/manifests/composition.json",
    log:
        f"{OUT}/logs/composition.log",
    benchmark:
        f"{OUT}/benchmarks/composition/atlas.tsv"
    params:
        cells=result("--cells", CELLS),
        options=sections(effects=CONFIG.effects),
        more=LABELS_OPTION,
        code=code("composition"),
    message:
        "clusters of {CONFIG.effects.condition}"


rule effects:
    input:
        effect_sums=each(f"{OUT}/manifests/effect_sums/{{plate}}.json"),
        sums=ancient(each(f"{OUT}/plates/{{plate}}/effects.zarr/zarr.json")),
        edistance=rules.edistance.output.manifest,
        distances=ancient(rules.edistance.output.table),
        script=script("effects"),
    output:
        effects=f"{OUT}/effects.h5ad",
        tables=directory(f"{OUT}/effects"),
        conditions=shown("effects.tsv", "Effects", "Effects of conditions (table)"),
        left_out=shown(
            "effects_left_out.tsv", "Effects", "Conditions without effects (table)"
        ),
        manifest=f"{OUT}/manifests/effects.json",
    log:
        f"{OUT}/logs/effects.log",
    benchmark:
        f"{OUT}/benchmarks/effects/atlas.tsv"
    retries: 2
    group:
        small_report
    conda:
        "../../envs/cpu.yaml"
    threads: threads_for("effects")
    resources:
        **requests("effects", "small_atlas"),
    params:
        sums=each(f"{OUT}/plates/{{plate}}/effects.zarr", options=True),
        options=sections(effects=CONFIG.effects),
        genes=CONFIG.genes,
        labels=labels_option,
        code=code("effects"),
    message:
        "effects of {CONFIG.effects.condition}"
    shell:
        f"{RUN}"
        " {input.script:q} --sums {params.sums:q} --genes {params.genes} {params.options}"
        " --edistance {input.distances:q}"
        " --labels {params.labels:q} --effects {output.effects:q} --tables {output.tables:q}"
        " --conditions {output.conditions:q} --left-out {output.left_out:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += [rules.effects.output.effects, rules.effects.output.manifest]
RESULTS += rules.composition.output
