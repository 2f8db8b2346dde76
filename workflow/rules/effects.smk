# Effects of conditions on each gene, from sums of replicates (config: effects).
# in:  plates/{plate}/{counts.zarr,qc.parquet}; cell_groups.h5, if the columns are clusters or labels
# out: plates/{plate}/effects.zarr, the sums; effects.h5ad, effects/*.parquet, tables/effects*.tsv
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
        code=code("pseudobulk"),
        store=subpath(input.store, parent=True),
        sums=subpath(output.sums, parent=True),
    message:
        "sums of the replicates of {wildcards.plate}"


rule effects:
    input:
        effect_sums=each(f"{OUT}/manifests/effect_sums/{{plate}}.json"),
        sums=ancient(each(f"{OUT}/plates/{{plate}}/effects.zarr/zarr.json")),
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
        small_atlas
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
        " --labels {params.labels:q} --effects {output.effects:q} --tables {output.tables:q}"
        " --conditions {output.conditions:q} --left-out {output.left_out:q}"
        f"{BLOCK_OPTIONS}{STEP_TAIL}"


RESULTS += [rules.effects.output.effects, rules.effects.output.manifest]
